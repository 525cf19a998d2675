"""An experiment's clients as branches of a federation, in this process."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

from fedglean.engine.here import Here
from fedglean.federation.branch import Branch
from fedglean.federation.local import LocalCarrier
from fedglean.federation.mailbox import Mailbox
from fedglean.federation.options import HubOptions
from fedglean.federation.placement import Branches
from fedglean.federation.plan import RunPlan
from fedglean.federation.states import States
from fedglean.method import Method
from fedglean.names import Names
from fedglean.runs.experiment import Experiment
from fedglean.testing.trial import Outcome

RUN = "0123456789abcdef"


@dataclass(frozen=True)
class Knowing(Branch):
    """A branch that has the method itself: one under trial has no name yet under which a branch
    could find it.
    """

    method: Method = None  # type: ignore[assignment]

    def method_of(self, plan: RunPlan) -> Method:
        return self.method


def federated(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with every client behind letters, its state on disk."""
    federation, dataset, old = experiment.federation, experiment.dataset, experiment.placement

    def branch(number: int) -> Branch:
        held = federation.labelled[number], federation.unlabelled[number]
        own = folder / str(number)
        return Knowing(
            number,
            f"branch {number}",
            lambda classes: held,
            own,
            use=experiment.config.use,
            method=experiment.method,
        )

    count = len(federation.declared)
    carrier = LocalCarrier([branch(number) for number in range(count)])
    options = HubOptions(images=folder, branches=count, out=folder)
    mailbox = Mailbox(carrier, options, dataset.classes, dataset.train_images.shape[1:])
    mailbox.enrol()
    values = {each.name: getattr(old, each.name) for each in fields(Here)}
    own = {
        "mailbox": mailbox,
        "method": experiment.method,
        "plan": RunPlan.of(experiment.config, dataset),
        "run": RUN,
    }
    return replace(experiment, placement=Branches(**values | own))


def with_states(outcome: Outcome, folder: Path, names: Names) -> Outcome:
    """The clients' states themselves, where the hub knows no more than their versions."""
    places = {client: States(folder / str(client), RUN, client) for client in outcome.kept}
    return replace(
        outcome,
        kept={
            client: places[client].load(kept["version"], names.net)
            for client, kept in outcome.kept.items()
        },
    )

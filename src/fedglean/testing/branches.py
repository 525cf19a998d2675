"""An experiment's clients as branches of a federation, in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedglean.data.photos import ImageForm
from fedglean.federation.branch import Branch
from fedglean.federation.local import LocalCarrier
from fedglean.federation.mailbox import Mailbox
from fedglean.federation.nodes import Nodes
from fedglean.federation.placement import Branches
from fedglean.federation.plan import RunPlan
from fedglean.federation.states import States
from fedglean.inputs.images import Images
from fedglean.method import Method
from fedglean.models.nets import NetKind, net_of
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.experiment import Experiment
from fedglean.testing.play import FinalState, play
from fedglean.testing.small_federation import with_own_stores

RUN = "0123456789abcdef"


@dataclass(frozen=True)
class BranchWithMethod(Branch):
    """A branch that has the method and the nets themselves, for which there may be no names yet."""

    method: Method = None  # type: ignore[assignment]
    net: Callable[[str], NetKind] = net_of

    def method_of(self, plan: RunPlan) -> Method:
        return self.method

    def _net(self, name: str) -> NetKind:
        return self.net(name)


def play_at_branches(experiment: Experiment, folder: Path) -> FinalState:
    """The run with every client behind letters, its images and its state its own."""
    experiment = with_own_stores(experiment)
    dataset, method = experiment.dataset, experiment.method
    federation, use = experiment.federation, experiment.config.use
    branches, net = [], experiment.config.names.net
    for number, pair in enumerate(zip(federation.labelled, federation.unlabelled, strict=True)):
        name, holdings = f"branch {number}", partial(_whatever_the_classes, pair)
        place = folder / str(number)
        branches.append(
            BranchWithMethod(number, name, holdings, place, use=use, method=method, net=net)
        )
    options = HubOptions(images=folder, branches=len(branches), out=folder)
    shape = dataset.train_images.shape[1:]
    nodes = Nodes(LocalCarrier(branches), len(branches), dataset.classes, shape)
    mailbox = Mailbox(nodes, options)
    mailbox.enrol()
    plan, gate = RunPlan.of(experiment.config, dataset), experiment.config.gate
    placement = Branches(mailbox, federation, gate, method=method, plan=plan, run=RUN)
    exchanger = replace(experiment.exchanger, placement=placement)
    final = play(replace(experiment, exchanger=exchanger))
    # The hub knows of the clients' states no more than their versions.
    kept = {}
    for client, known in final.kept.items():
        kept[client] = States(folder / str(client), RUN, client).load(known["version"], net)
    return replace(final, kept=kept)


def _whatever_the_classes(
    pair: tuple[Images, Images], classes: Sequence[str], form: ImageForm
) -> tuple[Images, Images]:
    return pair

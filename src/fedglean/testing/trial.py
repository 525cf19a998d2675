"""A federation small enough for a test, of clients as awkward as they come, and a run of it under
observation.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedglean.data.federation import divide
from fedglean.data.partition import Split
from fedglean.data.sources import load
from fedglean.engine.here import Exchange, Here, Kept
from fedglean.engine.loop import Loop
from fedglean.engine.task import PartyError
from fedglean.errors import FedgleanError
from fedglean.exchange.aggregate import Reply
from fedglean.exchange.gate import Admitted, Envelope, Form
from fedglean.method import Method, Upload
from fedglean.models import Model
from fedglean.randomness import fold_int, order
from fedglean.runs.config import configure
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.sealed import pack, unpack
from fedglean.testing.compare import difference
from fedglean.tree import Record, Tree, row

#: (labelled, unlabelled) images of the clients; the fourth client's are all of one class.
CLIENTS = ((0, 0), (0, 1), (1, 0), (4, 6), (0, 7), (12, 0), (5, 18), (11, 29))
ONE_CLASS = 3


def small_split(labels: Tensor) -> Split:
    """Two labels a class at the hub, and `CLIENTS`."""
    shuffled = order(fold_int(0, "small split"), len(labels))
    hub = torch.cat([shuffled[labels[shuffled] == kind][:2] for kind in range(10)])
    rest = shuffled[~torch.isin(shuffled, hub)]
    parts: list[Tensor] = []
    for number, count in enumerate(count for pair in CLIENTS for count in pair):
        wanted = (
            labels[rest] == ONE_CLASS
            if number // 2 == 3
            else torch.ones_like(rest, dtype=torch.bool)
        )
        parts.append(rest[wanted][:count])
        rest = rest[~torch.isin(rest, parts[-1])]
    return Split(hub, tuple(parts[::2]), tuple(parts[1::2]))


def small_experiment(
    method: Method,
    model: str = "cnn",
    norm: str = "static",
    rounds: int = 3,
    use: Path | str | None = None,
) -> Experiment:
    """The method on `small_split` of scikit-learn's digits, in float64, where rounding hides no
    mistake.
    """
    options: dict[str, Any] = {
        "device": "cpu",
        "executor": "loop",
        "dtype": "float64",
        "quorum": 0.0,
        "evaluate_every": rounds,
        "use": use,
    }
    config = configure("hub-only", data="digits", model=model, norm=norm, rounds=rounds, **options)
    experiment = prepare(config, small_split(load("digits").train_labels))
    method.check(experiment.federation.declared, len(experiment.federation.hub))
    return replace(experiment, method=method)


def disguised(experiment: Experiment) -> Experiment:
    """The same images in the same hands, but hidden labels are false and images lie elsewhere in
    the store.
    """
    dataset, split = experiment.dataset, experiment.split
    moved = order(fold_int(0, "disguise"), len(dataset.train_labels))
    place = torch.argsort(moved)
    images, labels = dataset.train_images[moved], dataset.train_labels[moved].clone()
    hidden = torch.cat([place[part] for part in split.unlabelled])
    labels[hidden] = (labels[hidden] + 1 + torch.arange(len(hidden)) % 9) % 10
    labelled, unlabelled = (
        tuple(place[part] for part in side) for side in (split.labelled, split.unlabelled)
    )
    split = Split(place[split.hub], labelled, unlabelled)
    dataset = replace(dataset, train_images=images, train_labels=labels)
    federation, truth = divide(dataset, split, torch.device("cpu"))
    old = experiment.evaluator
    evaluator = Evaluator(old.test_images, old.test_labels, truth, old.setting)
    placement = replace(experiment.placement, federation=federation, observe=evaluator.watch)
    return replace(
        experiment,
        dataset=dataset,
        split=split,
        federation=federation,
        evaluator=evaluator,
        placement=placement,
    )


def served(
    experiment: Experiment, executor: type[Loop] = Loop, kind: type[Here] = Here, **changes: Any
) -> Experiment:
    """The experiment under another executor or placement."""
    old = experiment.placement
    values = {each.name: getattr(old, each.name) for each in fields(Here)}
    values |= {"executor": executor(old.executor.setting), **changes}
    return replace(experiment, placement=kind(**values))


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    state: Record
    kept: dict[int, Tree]
    history: list[dict[str, Any]]

    @property
    def tree(self) -> Tree:
        """All that the next round would go on from."""
        return {
            "state": self.state,
            "kept": {str(client): self.kept[client] for client in sorted(self.kept)},
        }


def play(
    experiment: Experiment,
    between: Callable[[Progress], Progress] = lambda progress: progress,
    begin: Progress | None = None,
) -> Outcome:
    """All rounds and what follows the last one, or those after `begin`; `between` may change the
    progress.
    """
    progress = begin or Progress(0, experiment.start(), Kept(), [])
    for number in range(progress.done + 1, experiment.config.rounds + 2):
        state, before = progress.state, through_bytes(progress.state)
        try:
            line = play_round(experiment, progress, number)
        except (PartyError, FedgleanError) as error:
            raise AssertionError(
                f"the method fails on a small federation of ragged clients: {error}"
            ) from error
        assert difference(before, state) is None, (
            f"round {number} wrote into the hub's state; a round returns a new one"
        )
        if line is not None:
            json.dumps(line, allow_nan=False)
        progress = between(progress)
    return Outcome(progress.state, progress.kept.states, progress.history)


def admitted(upload: Upload) -> Admitted:
    """An upload as a gate passes it on that asked for just this."""
    forms = {name: Form(part) for name, part in upload.trees.items()}
    leaves = {name: form.leaves for name, form in forms.items()}
    return Admitted(upload, forms, leaves, {name: row(part) for name, part in leaves.items()})


def through_bytes(tree: Tree) -> Tree:
    """What another machine, or a later process, would get."""
    models = [each for each in tree_leaves(tree, is_leaf=_is_model) if _is_model(each)]
    kinds = {each.architecture.name: each.architecture.kind for each in models}
    try:
        return unpack(pack(tree), Path("memory"), lambda name: kinds[name])[0]
    except TypeError as error:
        raise AssertionError(
            f"state, keep, messages and uploads must be storable: {error}"
        ) from error


def _is_model(node: Tree) -> bool:
    return isinstance(node, Model)


def restarted(progress: Progress) -> Progress:
    """The progress as another process would find it."""
    states = {client: through_bytes(state) for client, state in progress.kept.states.items()}
    return Progress(
        progress.done, through_bytes(progress.state), Kept(states), list(progress.history)
    )


@dataclass(frozen=True)
class Watched(Here):
    """`here` that notes the uploads and sees to it that nothing lent to a client was written
    into.
    """

    uploads: list[Envelope] = field(default_factory=list)

    def exchange(self, exchange: Exchange, kept: Kept) -> tuple[Reply, int]:
        ask, round = exchange.ask, exchange.round
        states = {str(client): state for client, state in kept.states.items()}
        message = {
            "message": dict(ask.message),
            "each": {str(client): dict(own) for client, own in ask.each.items()},
        }
        before = through_bytes([states, message])
        answer = Here.exchange(replace(self, deliver=self._note), exchange, kept)
        unchanged = [
            difference(*pair) is None for pair in zip(before, [states, message], strict=True)
        ]
        assert unchanged[0], (
            f"round {round}: a client wrote into me.state in place; pass keep= to Upload"
        )
        assert unchanged[1], (
            f"round {round}: a client wrote into its message, which all clients share"
        )
        return answer

    def _note(self, envelope: Envelope) -> list[Envelope]:
        self.uploads.append(envelope)
        return [envelope]


@dataclass(frozen=True)
class Wire(Here):
    """`here` whose messages and uploads are sent as bytes, as they would be to another machine."""

    def exchange(self, exchange: Exchange, kept: Kept) -> tuple[Reply, int]:
        ask = exchange.ask
        each = {client: through_bytes(dict(own)) for client, own in ask.each.items()}
        sent = replace(ask, message=through_bytes(dict(ask.message)), each=each)
        return Here.exchange(replace(self, deliver=_posted), replace(exchange, ask=sent), kept)


def _posted(envelope: Envelope) -> list[Envelope]:
    upload = envelope.upload
    weight = {name: through_bytes(upload.weight(name)) for name in upload.trees}
    sent = Upload(
        weight=weight, keep=upload.keep, report=upload.report, **through_bytes(upload.trees)
    )
    return [replace(envelope, upload=sent)]

"""A run without a folder: all its rounds, and what a method goes on from after each of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_leaves

from fedglean.engine.task import PartyError
from fedglean.errors import FedgleanError
from fedglean.exchange.states import ClientStates
from fedglean.models import Model
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.sealed import pack, unpack
from fedglean.testing.difference import difference
from fedglean.tree import Tree, restore


@dataclass(frozen=True)
class FinalState:
    """What a run came to: the hub's state, what clients kept, a line for each round."""

    state: Any
    kept: dict[int, Tree]
    history: list[dict[str, Any]]

    @property
    def refused(self) -> list[dict[str, Any]]:
        """Uploads that the gate refused, of all rounds."""
        refused = []
        for line in self.history:
            refused += line["refused"]
        return refused

    @property
    def tree(self) -> Tree:
        """All that the next round would go on from."""
        kept = {str(client): self.kept[client] for client in sorted(self.kept)}
        return {"state": self.state, "kept": kept}


def play(
    experiment: Experiment,
    between: Callable[[Progress], Progress] = lambda progress: progress,
    begin: Progress | None = None,
) -> FinalState:
    """All rounds and what follows the last, or those after `begin`; `between` changes progress."""
    progress = begin or Progress(0, experiment.start(), ClientStates(), [])
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
    return FinalState(progress.state, progress.kept.states, progress.history)


def through_bytes(tree: Tree) -> Tree:
    """What another machine, or a later process, would get."""
    kinds = {}
    for node in tree_leaves(tree, is_leaf=lambda node: isinstance(node, Model)):
        if isinstance(node, Model):
            kinds[node.architecture.name] = node.architecture.kind
    try:
        return unpack(pack(tree), Path("memory"), kinds.__getitem__)[0]
    except TypeError as error:
        raise AssertionError(
            f"state, keep, messages and uploads must be storable: {error}"
        ) from error


def restarted(experiment: Experiment, progress: Progress) -> Progress:
    """The progress as another process would find it."""
    states = {client: through_bytes(state) for client, state in progress.kept.states.items()}
    state = restore(through_bytes(progress.state), experiment.start())
    return Progress(progress.done, state, ClientStates(states), list(progress.history))

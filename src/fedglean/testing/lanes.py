"""Executors for tests: they show the mistakes that `loop` forgives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedglean import tree
from fedglean.engine.batches import Setting, batches
from fedglean.engine.loop import Loop
from fedglean.engine.task import Party, Task
from fedglean.method import Batch, Train, Trained
from fedglean.randomness import fold_int
from fedglean.tree import Tree


class Notebook(Loop):
    """`loop` that notes every training that a client asks for."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.trainings: list[Train] = []

    def _answer_tasks(self, waiting: Sequence[Task]) -> list[Any]:
        for task in waiting:
            parts = [part.request for part in task.call.parts()]
            self.trainings += [part for part in parts if isinstance(part, Train)]
        return super()._answer_tasks(waiting)


class Backwards(Loop):
    """`loop` that serves the clients of a block from the last to the first."""

    def run(self, parties: Sequence[Party]) -> list[Any]:
        return super().run(parties[::-1])[::-1]


class TwoLanes(Loop):
    """`loop` whose every training step is lifted over two lanes.

    The first lane is the client; the second differs from it in every number: its models, memory and
    frozen parts are scaled, and it draws other batches. The client's result must not notice.
    """

    def _train(self, request: Train, key: int) -> Trained:
        step = vmap(request.stepper())
        models, memory = (
            _two_lanes(tree.trainable(request.models)),
            _two_lanes(request.start_memory()),
        )
        frozen = _two_lanes(dict(request.frozen))
        totals: dict[str, Tensor] = {}
        mine, others = (
            batches(request, key, self.setting),
            batches(request, fold_int(key, "lane"), self.setting),
        )
        for batch, other in zip(mine, others, strict=True):
            models, memory, metrics = step(models, memory, _side_by_side(batch, other), frozen)
            totals = {
                name: value[0].double() + totals.get(name, 0.0) for name, value in metrics.items()
            }
        means = {name: float(total) / request.length for name, total in totals.items()}
        return Trained(_first_lane(models), _first_lane(memory), request.length, means)


def _two_lanes(lane: Tree) -> Tree:
    return tree.map(lambda leaf: torch.stack([leaf, _scaled(leaf)]), lane)


def _side_by_side(batch: Batch, other: Batch) -> Batch:
    both: Batch = tree.map(lambda a, b: torch.stack([a, _scaled(b)]), batch, other)
    return both


def _first_lane(lanes: Tree) -> Tree:
    return tree.map(lambda leaf: leaf[0].clone(), lanes)


def _scaled(leaf: Tensor) -> Tensor:
    return leaf * 1.01 if leaf.is_floating_point() else leaf

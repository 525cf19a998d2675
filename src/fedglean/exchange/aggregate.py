"""How admitted uploads become one: the door `aggregate`, and the weighted mean.

An aggregate combines one block of clients at a time, wherever the block is served; the parts of
blocks are merged in the order of client numbers, so neither completion order nor the number of
workers can change a bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedglean.tree import Tree
from fedglean.uploads import Combined


@dataclass(frozen=True)
class Weighted:
    """An admitted upload: by name all its numbers as one row, and a weight, a number or a row."""

    client: int
    rows: Mapping[str, Tensor]
    weights: Mapping[str, float | Tensor]


class Aggregate(Protocol):
    """Combines uploads. What it keeps of a block is a tree, so that it can travel.

    `serves` are the kinds of `Ask(collect=)` that it can answer: "sum", or also "all", which needs
    every upload by itself.
    """

    @property
    def serves(self) -> tuple[str, ...]: ...

    def start(self) -> Tree:
        """What is kept of no upload."""

    def add(self, kept: Tree, upload: Weighted) -> Tree:
        """With one more upload; what was kept may be changed in place."""

    def merge(self, kept: Tree, other: Tree) -> Tree:
        """With those of the next block; what was kept may be changed in place."""

    def combine(self, kept: Tree) -> Mapping[str, Combined]:
        """What all uploads came to, by name."""


@dataclass(frozen=True)
class Mean:
    """Sums by weight in float64, which `Reply.mean` divides by the sum of the weights.

    It keeps by name [row of sums, sum of weights, number of uploads].
    """

    serves: tuple[str, ...] = ("sum", "all")

    def start(self) -> dict[str, list[Tree]]:
        return {}

    def add(self, kept: dict[str, list[Tree]], upload: Weighted) -> dict[str, list[Tree]]:
        for name, row in upload.rows.items():
            weight = upload.weights[name]
            if isinstance(weight, Tensor):
                _accumulate(kept, name, row * weight, weight, 1)
            else:
                _accumulate(kept, name, row, weight, 1, factor=weight)
        return kept

    def merge(self, kept: dict[str, list[Tree]], other: dict[str, list[Tree]]) -> Tree:
        for name, (total, weight, count) in other.items():
            _accumulate(kept, name, total, weight, count)
        return kept

    def combine(self, kept: dict[str, list[Tree]]) -> dict[str, Combined]:
        return {name: Combined(*parts) for name, parts in kept.items()}


MEAN = Mean()


@dataclass(frozen=True)
class AggregateKind:
    """An aggregate under a name; a form such as "trimmed:SHARE" is made with its value."""

    make: Callable[..., Aggregate]
    summary: str


AGGREGATES: Mapping[str, AggregateKind] = {
    "mean": AggregateKind(Mean, "the mean by weight, summed in float64")
}


def _accumulate(
    kept: dict[str, list[Tree]],
    name: str,
    row: Tensor,
    weight: float | Tensor,
    count: int,
    factor: float = 1.0,
) -> None:
    if name not in kept:
        kept[name] = [row.double() * factor, weight, count]
        return
    parts = kept[name]
    parts[0].add_(row, alpha=factor)  # in float64, and without a copy of the row in between
    parts[1] = parts[1] + weight
    parts[2] += count

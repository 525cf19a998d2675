"""Sums of admitted uploads, in float64 and in a fixed order.

A `Partial` is the sum of one block of clients. Blocks are cut by client number and added in order, so neither
completion order nor the number of workers can change a bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.admit import Refusal
from fedglean.method import Upload
from fedglean.tree import Tree


@dataclass
class Partial:
    """Weighted sums of uploads, name by name and leaf by leaf."""

    totals: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reports: dict[str, tuple[float, float]] = field(default_factory=dict)
    uploads: dict[int, Upload] = field(default_factory=dict)
    abstained: list[int] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    received: int = 0

    def include(self, client: int, upload: Upload, images: int, keep_all: bool) -> None:
        """Add one admitted upload; reports are averaged by the number of images behind them."""
        self.answered.append(client)
        for name, sent in upload.trees.items():
            leaves = tree.named(sent)
            self.received += tree.size_in_bytes(sent)
            weights = _leaf_weights(upload.weight(name), leaves)
            scaled = {path: leaf.double() * weights[path] for path, leaf in leaves.items()}
            _accumulate(self.totals, name, scaled)
            _accumulate(self.weights, name, weights)
            self.counts[name] = self.counts.get(name, 0) + 1
        for name, value in upload.report.items():
            total, count = self.reports.get(name, (0.0, 0.0))
            self.reports[name] = (total + images * float(value), count + images)
        if keep_all:
            self.uploads[client] = upload

    def __add__(self, other: "Partial") -> "Partial":
        """This block followed by the next."""
        for name in other.totals:
            _accumulate(self.totals, name, other.totals[name])
            _accumulate(self.weights, name, other.weights[name])
            self.counts[name] = self.counts.get(name, 0) + other.counts[name]
        for name, (total, count) in other.reports.items():
            mine = self.reports.get(name, (0.0, 0.0))
            self.reports[name] = (mine[0] + total, mine[1] + count)
        self.uploads |= other.uploads
        self.abstained += other.abstained
        self.refused += other.refused
        self.answered += other.answered
        self.received += other.received
        return self


def _accumulate(sums: dict[str, dict[str, Tensor]], name: str, leaves: Mapping[str, Tensor]) -> None:
    before = sums.get(name)
    sums[name] = dict(leaves) if before is None else {path: before[path] + leaf for path, leaf in leaves.items()}


def _leaf_weights(weight: Any, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(weight, int | float):
        return {
            path: torch.tensor(float(weight), dtype=torch.float64, device=leaf.device) for path, leaf in leaves.items()
        }
    return {path: leaf.double() for path, leaf in tree.named(weight).items()}


class Reply:
    """The answer to an `Ask`: sums of what was admitted, and who was not."""

    def __init__(self, sums: Partial, templates: Mapping[str, Tree]) -> None:
        self._sums, self._templates = sums, templates
        self.answered, self.refused, self.abstained = sums.answered, sums.refused, sums.abstained
        self.received = sums.received
        self.uploads = dict(sorted(sums.uploads.items()))
        self.report = {name: total / count for name, (total, count) in sums.reports.items() if count}

    def has(self, name: str) -> bool:
        """Whether anybody uploaded that name."""
        return name in self._sums.totals

    def count(self, name: str) -> int:
        return self._sums.counts.get(name, 0)

    def weight(self, name: str) -> float:
        """Sum of the weights, where they are numbers."""
        leaves = self._sums.weights.get(name, {})
        return float(next(iter(leaves.values()))) if leaves else 0.0

    def sum(self, name: str) -> Tree:
        """Weighted sum; zeros where nobody uploaded the name."""
        if not self.has(name):
            return tree.zeros(self._templates[name])
        return self._restore(name, self._sums.totals[name])

    def mean(self, name: str) -> Tree:
        """Weighted mean; an element that nobody owns, or all of it if nobody uploaded the name, is as it was sent."""
        template = self._templates[name]
        if not self.has(name):
            return template
        sent, weights = tree.named(template), self._sums.weights[name]
        means = {
            path: torch.where(weights[path] > 0, total / weights[path].clamp(min=1e-300), sent[path].double())
            for path, total in self._sums.totals[name].items()
        }
        return self._restore(name, means)

    def _restore(self, name: str, leaves: Mapping[str, Tensor]) -> Tree:
        dtypes = tree.named(self._templates[name])
        return tree.rebuild(self._templates[name], {path: leaf.to(dtypes[path].dtype) for path, leaf in leaves.items()})

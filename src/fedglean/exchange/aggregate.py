"""Sums of admitted uploads, in float64 and in a fixed order.

A `Partial` is the sum of one block of clients. Blocks are cut by client number and added in order,
so neither completion order nor the number of workers can change a bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import unknown
from fedglean.exchange.gate import Admitted, Refusal
from fedglean.method import Upload
from fedglean.tree import Tree

#: What clients report, by name: the weighted sum and the weight.
Reports = dict[str, tuple[float, float]]


def add_reports(reports: Reports, others: Reports) -> None:
    for name, (total, count) in others.items():
        mine = reports.get(name, (0.0, 0.0))
        reports[name] = (mine[0] + total, mine[1] + count)


def mean_reports(reports: Reports) -> dict[str, float]:
    return {name: total / count for name, (total, count) in reports.items() if count}


@dataclass
class Partial:
    """Weighted sums of uploads: per name a row of numbers, and the sum of its weights, a number or
    a row.

    `counts` are uploads by name; `uploads` holds them one by one if asked for. `told` are the
    clients to which the message was sent.
    """

    totals: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)
    uploads: dict[int, Upload] = field(default_factory=dict)
    told: list[int] = field(default_factory=list)
    abstained: list[int] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    received: int = 0

    def include(self, client: int, admitted: Admitted, images: int, keep_all: bool) -> None:
        """Add one admitted upload; reports are averaged by the number of images behind them."""
        self.answered.append(client)
        upload = admitted.upload
        for name, row in admitted.rows.items():
            self.received += admitted.forms[name].bytes
            weight = upload.weight(name)
            if isinstance(weight, int | float):
                self._accumulate(name, row, float(weight), 1, factor=float(weight))
            else:
                self.received += admitted.forms[name].bytes  # the weights travel too
                weight = admitted.forms[name].row_of(weight).double()
                self._accumulate(name, row * weight, weight, 1)
        add_reports(
            self.reports,
            {name: (images * float(value), images) for name, value in upload.report.items()},
        )
        if keep_all:
            self.uploads[client] = admitted.as_asked()

    def __iadd__(self, other: "Partial") -> "Partial":
        """This block, followed by the next."""
        for name in other.totals:
            self._accumulate(name, other.totals[name], other.weights[name], other.counts[name])
        add_reports(self.reports, other.reports)
        self.uploads |= other.uploads
        self.told += other.told
        self.abstained += other.abstained
        self.refused += other.refused
        self.answered += other.answered
        self.received += other.received
        return self

    def _accumulate(
        self, name: str, row: Tensor, weight: Any, count: int, factor: float = 1.0
    ) -> None:
        if name in self.totals:
            self.totals[name].add_(
                row, alpha=factor
            )  # in float64, and without a copy of the row in between
            self.weights[name] = self.weights[name] + weight
        else:
            self.totals[name], self.weights[name] = row.double() * factor, weight
        self.counts[name] = self.counts.get(name, 0) + count


class Reply:
    """The answer to an `Ask`: sums of what was admitted, and which clients were refused."""

    def __init__(self, sums: Partial, templates: Mapping[str, Tree]) -> None:
        self._sums, self._templates = sums, templates
        self.answered, self.refused, self.abstained = sums.answered, sums.refused, sums.abstained
        self.received = sums.received
        self.uploads = dict(sorted(sums.uploads.items()))
        self.reports, self.report = sums.reports, mean_reports(sums.reports)

    def has(self, name: str) -> bool:
        """Whether any client uploaded that name."""
        return name in self._sums.totals

    def count(self, name: str) -> int:
        return self._sums.counts.get(name, 0)

    def weight(self, name: str) -> float:
        """Sum of the weights; if they are trees, of those of their first element."""
        weight = self._sums.weights.get(name, 0.0)
        return float(weight[0]) if isinstance(weight, Tensor) else float(weight)

    def sum(self, name: str) -> Tree:
        """Weighted sum; zeros if no client uploaded the name."""
        if not self.has(name):
            return tree.zeros(self._template(name))
        return tree.from_row(self._templates[name], self._sums.totals[name])

    def _template(self, name: str) -> Tree:
        if name not in self._templates:
            raise unknown("part of an upload", name, self._templates)
        return self._templates[name]

    def mean(self, name: str) -> Tree:
        """Weighted mean; an element that nobody owns, or all of it if no client uploaded it, is as
        it was sent.
        """
        template = self._template(name)
        if not self.has(name):
            return template
        total, weight = self._sums.totals[name], self._sums.weights[name]
        if not isinstance(weight, Tensor):
            return tree.from_row(template, total / weight)
        owned = torch.where(weight > 0, total / weight.clamp(min=1e-300), tree.row(template))
        return tree.from_row(template, owned)

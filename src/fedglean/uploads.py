"""What clients send, and what the hub gets of it."""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import unknown
from fedglean.tree import Tree

#: What clients report, by name: the weighted sum and the weight.
Reports = dict[str, tuple[float, float]]


class Upload:
    """What a client sends: trees by name, one weight for all or one per name, numbers to report.

    A name's weight may be a tree of the name's shape (an element that nobody owns keeps its value).
    `keep` stays at the client: it is its state from the moment the upload is admitted.
    """

    def __init__(
        self,
        *,
        weight: float | Mapping[str, Any] = 1.0,
        keep: Tree = None,
        report: Mapping[str, float] | None = None,
        **trees: Tree,
    ) -> None:
        self.trees, self.all_weights = trees, weight
        self.keep, self.report = keep, dict(report or {})

    @classmethod
    def of(cls, trees: Mapping[str, Tree], **others: Any) -> "Upload":
        """An upload of trees whose names are computed."""
        upload = cls(**others)
        upload.trees = dict(trees)
        return upload

    def weight(self, name: str) -> Any:
        if isinstance(self.all_weights, Mapping):
            return self.all_weights.get(name, 1.0)
        return self.all_weights


@dataclass(frozen=True)
class Refusal:
    """Why an upload was not admitted."""

    round: int
    ask: int
    client: int
    reason: str


@dataclass(frozen=True)
class Combined:
    """What the uploads of one name came to: sums in a row, the sum of weights, how many came."""

    total: Tensor
    weight: float | Tensor
    count: int


class Reply:
    """The answer to an `Ask`: what the admitted uploads came to, and which clients sent none.

    `templates` have the shapes of sums, and are what an element keeps that nobody uploaded.
    """

    def __init__(
        self,
        combined: Mapping[str, Combined],
        templates: Mapping[str, Tree],
        *,
        answered: Iterable[int] = (),
        abstained: Iterable[int] = (),
        refused: Iterable[Refusal] = (),
        uploads: Mapping[int, Upload] | None = None,
        reports: Reports | None = None,
        received: int = 0,
    ) -> None:
        self.combined, self.templates = dict(combined), dict(templates)
        self.answered, self.abstained = list(answered), list(abstained)
        self.refused = list(refused)
        self.uploads = dict(sorted((uploads or {}).items()))
        self.reports = reports or {}
        self.received = received

    @classmethod
    def of_means(cls, **means: Tree) -> "Reply":
        """A reply with these means, each as if one client of weight 1 had sent it."""
        combined = {name: Combined(tree.row(mean).double(), 1.0, 1) for name, mean in means.items()}
        return cls(combined, means)

    def with_means(self, **means: Tree) -> "Reply":
        """The same reply with other means, as a server's optimiser or a rule of one's own gives."""
        changed = copy(self)
        changed.combined = self.combined | Reply.of_means(**means).combined
        changed.templates = self.templates | means
        return changed

    @property
    def report(self) -> dict[str, float]:
        """Means of what clients reported."""
        return mean_reports(self.reports)

    def has(self, name: str) -> bool:
        """Whether any client uploaded that name."""
        return name in self.combined

    def count(self, name: str) -> int:
        return self.combined[name].count if self.has(name) else 0

    def weight(self, name: str) -> float:
        """Sum of the weights; if they are trees, of those of their first element."""
        if not self.has(name):
            return 0.0
        weight = self.combined[name].weight
        return float(weight[0]) if isinstance(weight, Tensor) else float(weight)

    def sum(self, name: str) -> Tree:
        """Weighted sum; zeros if no client uploaded the name."""
        template = self._template(name)
        if not self.has(name):
            return tree.zeros(template)
        return tree.from_row(template, self.combined[name].total)

    def mean(self, name: str) -> Tree:
        """Weighted mean; an element that nobody owns or uploaded is as it was sent."""
        template = self._template(name)
        if not self.has(name):
            return template
        total, weight = self.combined[name].total, self.combined[name].weight
        if not isinstance(weight, Tensor):
            return tree.from_row(template, total / weight)
        owned = torch.where(weight > 0, total / weight.clamp(min=1e-300), tree.row(template))
        return tree.from_row(template, owned)

    def _template(self, name: str) -> Tree:
        if name not in self.templates:
            raise unknown("part of an upload", name, self.templates)
        return self.templates[name]


def add_reports(reports: Reports, others: Reports) -> None:
    for name, (total, count) in others.items():
        old_total, old_count = reports.get(name, (0.0, 0.0))
        reports[name] = (old_total + total, old_count + count)


def mean_reports(reports: Reports) -> dict[str, float]:
    return {name: total / count for name, (total, count) in reports.items() if count}

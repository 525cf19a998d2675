"""The gate: what a client sent is checked before it can reach a sum, in simulation as in a real federation.

An upload is judged by what was asked for, never by what it says of itself. A refused upload has no effect at all: the
round ends with the model it would have had without that client, and the client's state stays as it was.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.method import Ask, Declared, Expect, Upload
from fedglean.tree import Tree

_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Envelope:
    """An upload with the exchange it claims to belong to."""

    round: int
    ask: int
    client: int
    upload: Any


@dataclass(frozen=True)
class Refusal:
    """Why an upload was not admitted."""

    round: int
    ask: int
    client: int
    reason: str


class Refused(Exception):
    """Raised inside the gate alone; `Gate.admit` turns it into a `Refusal`."""


class Gate:
    """The gate of one exchange: it knows what was asked of whom, and lets each client in once.

    `stretch` bounds how far an upload may move from the message: its distance may be so many times 1 + the norm of
    what was sent.
    """

    def __init__(
        self, round: int, number: int, ask: Ask, declared: Mapping[int, Declared], stretch: float = 100.0
    ) -> None:
        self.round, self.number, self.declared, self.stretch = round, number, declared, stretch
        self.references = {name: tree.trainable(part) for name, part in ask.message.items() if tree.named(part)}
        self.asked, self.expected, self.seen = set(ask.to), ask.expect, set[int]()
        self.each = ask.each
        self.rows: dict[str, tuple[Tensor, float]] = {}

    def admit(self, envelope: Envelope) -> Upload | Refusal:
        """The upload itself, or why not."""
        try:
            self._check_address(envelope)
            self._check(envelope.upload, envelope.client)
        except Refused as refused:
            return Refusal(self.round, self.number, envelope.client, str(refused))
        self.seen.add(envelope.client)
        return self._as_asked(envelope.upload, envelope.client)

    def _as_asked(self, upload: Upload, client: int) -> Upload:
        """The admitted tensors in the shape of what was asked for, whatever containers they came in."""
        trees = {
            name: tree.rebuild(self._template(name, client), tree.named(sent)) for name, sent in upload.trees.items()
        }
        return Upload(weight=upload.all_weights, keep=upload.keep, report=upload.report, **trees)

    def _check_address(self, envelope: Envelope) -> None:
        if (envelope.round, envelope.ask) != (self.round, self.number):
            raise Refused(f"stale: it answers round {envelope.round}, exchange {envelope.ask}")
        if envelope.client not in self.asked:
            raise Refused("this client was not asked")
        if envelope.client in self.seen:
            raise Refused("duplicate: this client has answered already")

    def _check(self, upload: Any, client: int) -> None:
        if not isinstance(upload, Upload):
            raise Refused(f"not an upload but a {type(upload).__name__}")
        if not upload.trees:
            raise Refused("empty: no name was uploaded")
        declared = self.declared[client]
        for name, sent in upload.trees.items():
            template = self._template(name, client)
            _check_shape(name, sent, template)
            self._check_size(name, sent, template, declared)
            _check_weight(name, upload.weight(name), template, max(1.0, float(declared.total)))
        _check_report(upload.report)

    def _template(self, name: str, client: int) -> Tree:
        if name in self.expected:
            return self.expected[name].tree
        own = self.each.get(client, {})
        if name in own:
            return tree.trainable(own[name])
        if name not in self.references:
            known = ", ".join([*self.references, *self.expected])
            raise Refused(f"unknown name '{name}'; asked for: {known}")
        return self.references[name]

    def _check_size(self, name: str, sent: Tree, template: Tree, declared: Declared) -> None:
        """Finite and not too large, found out in one go: on a GPU every look at a number is a wait."""
        numbers = tree.row(sent)
        if not numbers.numel():
            return
        expected = name in self.expected
        distance = numbers.abs().max() if expected else (numbers - self._row(name, template)[0]).norm()
        moved = float(distance)
        if not math.isfinite(moved) and (path := _not_finite(sent)):
            raise Refused(f"'{name}' at {path} is not finite")
        if expected and moved > (limit := self.expected[name].bound * max(1, declared.total)):
            raise Refused(f"'{name}' has an entry of {moved:.3g}; at most {limit:.3g} is possible")
        if not expected and moved > (limit := self.stretch * (1 + self._row(name, template)[1])):
            raise Refused(f"'{name}' moved by {moved:.3g}; at most {limit:.3g} is allowed")

    def _row(self, name: str, template: Tree) -> tuple[Tensor, float]:
        """What was sent, as a row, and its norm: the same for every client, unless it was sent to one alone."""
        if template is not self.references.get(name):
            row = tree.row(template)
            return row, float(row.norm())
        if name not in self.rows:
            row = tree.row(template)
            self.rows[name] = row, float(row.norm())
        return self.rows[name]


def _not_finite(sent: Tree) -> str | None:
    return next((path for path, leaf in tree.named(sent).items() if not bool(torch.isfinite(leaf).all())), None)


def _check_shape(name: str, sent: Tree, template: Tree) -> None:
    try:
        got, want = tree.named(sent), tree.named(template)
    except Exception:
        raise Refused(f"'{name}' is no tree of tensors") from None
    if missing := want.keys() - got.keys():
        raise Refused(f"'{name}' lacks {sorted(missing)[0]}")
    if extra := got.keys() - want.keys():
        raise Refused(f"'{name}' has a part nobody asked for: {sorted(extra)[0]}")
    for path, leaf in got.items():
        if leaf.dtype != want[path].dtype:
            raise Refused(f"'{name}' at {path} is {leaf.dtype}, expected {want[path].dtype}")
        if leaf.shape != want[path].shape:
            raise Refused(f"'{name}' at {path} has shape {tuple(leaf.shape)}, expected {tuple(want[path].shape)}")


def _check_weight(name: str, weight: Any, template: Tree, limit: float) -> None:
    if isinstance(weight, int | float) and not isinstance(weight, bool):
        if not 0 < weight <= limit:  # not so for NaN either
            raise Refused(f"weight {_shown(weight)} of '{name}' is outside (0, {limit:g}]")
        return
    try:
        _check_shape(f"weight of {name}", weight, template)
    except Refused:
        raise Refused(f"weight of '{name}' is neither a number nor a tree of its shape") from None
    numbers = tree.row(weight)
    if not bool(((numbers >= 0) & (numbers <= limit)).all()):  # not so for NaN either
        raise Refused(f"weight of '{name}' has an entry outside [0, {limit:g}]")


def _shown(weight: float) -> str:
    # A whole number may be too long to be written, or even to be made a float.
    return f"{weight:g}" if abs(weight) <= _LARGEST or weight != weight else "beyond all floats"


def _check_report(report: Mapping[str, Any]) -> None:
    for name, value in report.items():
        if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise Refused(f"reported '{name}' is not a finite number")


__all__ = ["Envelope", "Expect", "Gate", "Refusal"]

"""The gate: what a client sent is checked before it can reach a sum, simulated or real.

An upload is judged by what was asked for, never by what it says of itself. A refused upload has no
effect at all: the round ends with the model it would have had without that client, and the client's
state stays as it was.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.method import Ask, Declared, Expect
from fedglean.tree import Tree
from fedglean.uploads import Refusal, Upload

_LARGEST = sys.float_info.max
#: So many times a number of images is still a float.
_REPORTED = 1e200
#: What a client may put into a line of a round: numbers that it reports, letters of the name of
#: one, and of a reason.
_NUMBERS, _NAME, _REASON = 1000, 100, 300


@dataclass(frozen=True)
class Envelope:
    """An upload with the exchange it claims to belong to."""

    round: int
    ask: int
    client: int
    upload: Any


class Refused(Exception):
    """Raised inside the gate alone; `Gate.admit` turns it into a `Refusal`."""


@dataclass(frozen=True)
class Form:
    """What an upload of one name must look like: the tree that was sent, or that is expected."""

    tree: Tree

    @cached_property
    def leaves(self) -> dict[str, Tensor]:
        return tree.named(self.tree)

    @cached_property
    def bytes(self) -> int:
        return tree.size_in_bytes(self.tree)

    @cached_property
    def origin(self) -> Tensor:
        """What was sent, as the row that distances are measured from."""
        return self.judged(tree.row(self.tree))

    @cached_property
    def norm(self) -> float:
        return _length(self.origin)

    @cached_property
    def variances(self) -> Tensor | None:
        """Where in a row running variances are, if anywhere."""
        if not any(map(_is_variance, self.leaves)):
            return None
        parts = []
        for path, leaf in self.leaves.items():
            parts.append(leaf.new_full((leaf.numel(),), _is_variance(path)))
        return torch.cat(parts) > 0

    def judged(self, row: Tensor) -> Tensor:
        """A row as its distance is measured: of variances the root, for they grow with squares.

        Of a negative one there is none, and the distance is not finite.
        """
        return row if self.variances is None else torch.where(self.variances, row.sqrt(), row)

    def row_of(self, sent: Tree) -> Tensor:
        """The numbers of another tree of this form, in the same order."""
        got = tree.named(sent)
        return tree.row({path: got[path] for path in self.leaves})

    def read(self, name: str, sent: Tree) -> dict[str, Tensor]:
        """The leaves of what was sent, in the order in which they were asked for."""
        try:
            got = tree.named(sent)
        except Exception:
            raise Refused(f"'{name}' is not a tree of tensors") from None
        if self.leaves and not got:
            raise Refused(f"'{name}' is a {type(sent).__name__} without tensors")
        if missing := self.leaves.keys() - got.keys():
            raise Refused(f"'{name}' lacks {sorted(missing)[0]}")
        if extra := got.keys() - self.leaves.keys():
            raise Refused(f"'{name}' has a part that was not asked for: {sorted(extra)[0]}")
        for path, want in self.leaves.items():
            if got[path].dtype != want.dtype:
                raise Refused(f"'{name}' at {path} is {got[path].dtype}, expected {want.dtype}")
            if got[path].shape != want.shape:
                raise Refused(
                    f"'{name}' at {path} has shape {tuple(got[path].shape)}, expected "
                    f"{tuple(want.shape)}"
                )
        return {path: got[path] for path in self.leaves}


@dataclass(frozen=True)
class Expected:
    """What an upload that was not in the message must look like."""

    expect: Expect

    @cached_property
    def form(self) -> Form:
        return Form(self.expect.tree)

    @cached_property
    def low(self) -> Tensor:
        return self._entries(self.expect.low)

    @cached_property
    def bound(self) -> Tensor:
        return self._entries(self.expect.bound)

    def _entries(self, limit: float | Tree) -> Tensor:
        if isinstance(limit, int | float):
            return torch.full_like(tree.row(self.form.tree), limit)
        return self.form.row_of(limit)

    def check(self, name: str, row: Tensor, images: int) -> None:
        high = self.bound * images
        wrong = (row.abs() > high) | (row < self.low)
        if not bool(wrong.any()):
            return
        place = int(wrong.int().argmax())
        raise Refused(
            f"'{name}' has an entry of {float(row[place]):.3g}, which should be from "
            f"{max(float(self.low[place]), -float(high[place])):.3g} to {float(high[place]):.3g}"
        )


@dataclass(frozen=True)
class Admitted:
    """An upload that passed: by name its leaves, and all their numbers as one row."""

    upload: Upload
    forms: dict[str, Form]
    leaves: dict[str, dict[str, Tensor]]
    rows: dict[str, Tensor]

    def as_asked(self) -> Upload:
        """The upload in the shape of what was asked for, whatever containers it came in."""
        own, trees = self.upload, {}
        for name, form in self.forms.items():
            trees[name] = tree.rebuild(form.tree, self.leaves[name])
        return Upload.of(trees, weight=own.all_weights, keep=own.keep, report=own.report)


class Gate:
    """The gate of one exchange: it knows what was asked of whom, and lets each client in once.

    Of those that were asked it lets in the ones in `declared`; the others answer at a gate of their
    own. `stretch` bounds how far an upload may move from the message: its distance may be so many
    times 1 + the norm of what was sent.
    """

    def __init__(
        self,
        round: int,
        number: int,
        ask: Ask,
        declared: Mapping[int, Declared],
        stretch: float = 100.0,
    ) -> None:
        self.round, self.number, self.declared, self.stretch = round, number, declared, stretch
        self.sent: dict[str, Form] = {}
        for name, part in ask.message.items():
            if tree.named(part):
                self.sent[name] = Form(tree.trainable(part))
        self.expected = {name: Expected(expect) for name, expect in ask.expect.items()}
        self.asked, self.each, self.once, self.seen = ask.asked, ask.each, ask.once, set[int]()

    def admit(self, envelope: Envelope) -> Admitted | Refusal:
        """The upload as it can be added up, or why not."""
        try:
            self._check_address(envelope)
            admitted = self._read(envelope.upload, envelope.client)
        except Refused as refused:
            return Refusal(self.round, self.number, envelope.client, str(refused)[:_REASON])
        self.seen.add(envelope.client)
        return admitted

    def _check_address(self, envelope: Envelope) -> None:
        if (envelope.round, envelope.ask) != (self.round, self.number):
            raise Refused(f"stale: it answers round {envelope.round}, exchange {envelope.ask}")
        if envelope.client not in self.asked:
            raise Refused("this client was not asked")
        if envelope.client not in self.declared:
            raise Refused("this client answers in another block")
        if envelope.client in self.seen:
            raise Refused("duplicate: this client has answered already")

    def _read(self, upload: Any, client: int) -> Admitted:
        if not isinstance(upload, Upload):
            raise Refused(f"not an upload but a {type(upload).__name__}")
        if not upload.trees:
            raise Refused(
                "empty: no name was uploaded; a client with nothing to send returns None, one that "
                "has only something to keep sends torch.ones(()) under a name that the Ask expects"
            )
        declared = self.declared[client]
        forms = {name: self._form(name, client) for name in upload.trees}
        leaves = {name: form.read(name, upload.trees[name]) for name, form in forms.items()}
        rows = {name: tree.row(part) for name, part in leaves.items()}
        for name, form in forms.items():
            self._check_size(name, rows[name], leaves[name], form, declared)
            limit = 1.0 if name in self.once else max(1.0, float(declared.total))
            _check_weight(name, upload.weight(name), form, limit)
        _check_report(upload.report)
        return Admitted(upload, forms, leaves, rows)

    def _form(self, name: str, client: int) -> Form:
        if name in self.expected:
            return self.expected[name].form
        own = self.each.get(client, {})
        if name in own:
            return Form(tree.trainable(own[name]))
        if name not in self.sent:
            known = ", ".join([*self.sent, *self.expected])
            raise Refused(f"unknown name '{name}', asked for was {known}")
        return self.sent[name]

    def _check_size(
        self, name: str, row: Tensor, leaves: Mapping[str, Tensor], form: Form, declared: Declared
    ) -> None:
        """Finite and not too large, in one go: on a GPU every look at a number is a wait."""
        if not row.numel():
            return
        expected = self.expected.get(name)
        moved = float(row.abs().max()) if expected else _length(form.judged(row) - form.origin)
        if not math.isfinite(moved):
            _check_numbers(name, leaves)
        if expected:
            expected.check(name, row, max(1, declared.total))
        elif moved > (limit := self.stretch * (1 + form.norm)):
            raise Refused(f"'{name}' moved by {moved:.3g}, more than the {limit:.3g} allowed")


def _length(row: Tensor) -> float:
    """The norm, in float64 only where squares are too large for float32."""
    length = float(torch.linalg.vector_norm(row))
    if math.isfinite(length):
        return length
    return float(torch.linalg.vector_norm(row, dtype=torch.float64))


def _is_variance(path: str) -> bool:
    return path.endswith(".variance")


def _check_numbers(name: str, leaves: Mapping[str, Tensor]) -> None:
    """Say which leaf it is that makes a distance infinite, if it is one alone."""
    for path, leaf in leaves.items():
        if not bool(torch.isfinite(leaf).all()):
            raise Refused(f"'{name}' at {path} is not finite")
        if _is_variance(path) and bool((leaf < 0).any()):
            raise Refused(f"'{name}' at {path} is a negative variance")


def _check_weight(name: str, weight: Any, form: Form, limit: float) -> None:
    if isinstance(weight, int | float) and not isinstance(weight, bool):
        if not 0 < weight <= limit:  # not so for NaN either
            raise Refused(f"weight {_shown(weight)} of '{name}' is outside (0, {limit:g}]")
        return
    try:
        leaves = form.read(f"weight of {name}", weight)
    except Refused:
        raise Refused(f"weight of '{name}' is neither a number nor a tree of its shape") from None
    numbers = tree.row(leaves)
    if not bool(((numbers >= 0) & (numbers <= limit)).all()):  # not so for NaN either
        raise Refused(f"weight of '{name}' has an entry outside [0, {limit:g}]")


def _shown(weight: float) -> str:
    # A whole number may be too long to be written, or even to be made a float.
    return f"{weight:g}" if abs(weight) <= _LARGEST or weight != weight else "beyond all floats"


def _check_report(report: Mapping[str, Any]) -> None:
    if len(report) > _NUMBERS or any(len(name) > _NAME for name in report):
        raise Refused(
            f"it reports more than {_NUMBERS} numbers, or one with a name of more than {_NAME} "
            "letters"
        )
    for name, value in report.items():
        is_number = isinstance(value, int | float) and abs(value) <= _REPORTED
        if not is_number or not name.isprintable():
            raise Refused(f"reported '{name}' is not a finite number up to {_REPORTED:g}")


def needed(quorum: float, count: int) -> int:
    """How many of so many clients are a quorum; 0.07 * 100 is a hair above 7, and is 7."""
    return math.ceil(round(quorum * count, 9))

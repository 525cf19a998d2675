"""What can happen to an upload on its way to the hub, as functions for `Here.deliver`.

Every fault strikes only at the given (round, client) pairs; `chain` puts several of them on the
same way.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.engine.here import Deliver
from fedglean.exchange.gate import Envelope
from fedglean.method import Upload
from fedglean.tree import Tree

At = tuple[int, int]
Damage = Callable[[Upload], Any]


def drop(*at: At) -> Deliver:
    """The upload never arrives."""
    return lambda envelope: [] if _hit(envelope, at) else [envelope]


def duplicate(*at: At) -> Deliver:
    """The upload arrives twice."""
    return lambda envelope: [envelope] * (2 if _hit(envelope, at) else 1)


def poison(damage: Damage, *at: At) -> Deliver:
    """The upload arrives damaged."""
    return lambda envelope: [
        replace(envelope, upload=damage(envelope.upload)) if _hit(envelope, at) else envelope
    ]


def delay(*at: At, rounds: int = 1) -> Deliver:
    """The upload arrives that many rounds late, ahead of the first delivery from then on."""
    waiting: list[Envelope] = []

    def deliver(envelope: Envelope) -> Iterable[Envelope]:
        late = [old for old in waiting if envelope.round >= old.round + rounds]
        waiting[:] = [old for old in waiting if old not in late]
        if _hit(envelope, at):
            waiting.append(envelope)
            return late
        return [*late, envelope]

    return deliver


def chain(*faults: Deliver) -> Deliver:
    """One fault after the other: what the first lets through is what the second gets."""

    def deliver(envelope: Envelope) -> Iterable[Envelope]:
        passed = [envelope]
        for fault in faults:
            passed = [after for before in passed for after in fault(before)]
        return passed

    return deliver


def not_a_number(upload: Upload) -> Upload:
    return _with_first_leaf(upload, lambda leaf: torch.full_like(leaf, math.nan))


def infinite(upload: Upload) -> Upload:
    return _with_first_leaf(upload, lambda leaf: torch.full_like(leaf, math.inf))


def absurd(upload: Upload) -> Upload:
    """Finite, but larger than any training makes it."""
    return _with_first_leaf(upload, lambda leaf: torch.full_like(leaf, 1e30))


def wrong_shape(upload: Upload) -> Upload:
    return _with_first_leaf(upload, lambda leaf: leaf[None])


def wrong_dtype(upload: Upload) -> Upload:
    return _with_first_leaf(upload, lambda leaf: leaf.to(torch.float16))


def missing_leaf(upload: Upload) -> Upload:
    name, first = next(iter(upload.trees.items()))
    leaves = tree.named(first)
    return _changed(upload, {**upload.trees, name: dict(list(leaves.items())[1:])})


def unknown_name(upload: Upload) -> Upload:
    return _changed(upload, {**upload.trees, "unasked": torch.zeros(1)})


def bad_weight(upload: Upload) -> Upload:
    return Upload(weight=1e9, keep=upload.keep, report=upload.report, **upload.trees)


def negative_weight(upload: Upload) -> Upload:
    return Upload(weight=-1.0, keep=upload.keep, report=upload.report, **upload.trees)


def garbage(upload: Upload) -> str:
    return "not an upload"


#: Every damage that the gate must see.
DAMAGES: dict[str, Damage] = {
    "not a number": not_a_number,
    "infinite": infinite,
    "absurd": absurd,
    "wrong shape": wrong_shape,
    "wrong dtype": wrong_dtype,
    "missing leaf": missing_leaf,
    "unknown name": unknown_name,
    "bad weight": bad_weight,
    "negative weight": negative_weight,
    "garbage": garbage,
}


def _hit(envelope: Envelope, at: tuple[At, ...]) -> bool:
    return (envelope.round, envelope.client) in at


def _changed(upload: Upload, trees: dict[str, Tree]) -> Upload:
    weight = {name: upload.weight(name) for name in upload.trees}
    return Upload(weight=weight, keep=upload.keep, report=upload.report, **trees)


def _with_first_leaf(upload: Upload, damage: Callable[[Tensor], Tensor]) -> Upload:
    """Only the first leaf of the last name is damaged: whoever checks must look at every name."""
    *_, name = upload.trees
    leaves = tree.named(upload.trees[name])
    first = next(iter(leaves))
    leaves[first] = damage(leaves[first])
    return _changed(upload, {**upload.trees, name: tree.rebuild(upload.trees[name], leaves)})

"""What can happen to an upload on its way to the hub, as functions for `Clients.deliver`.

Every fault strikes only at the given (round, client) pairs; `chain` puts several of them on the
same way.
"""

import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.engine.clients import Deliver
from fedglean.exchange.gate import Envelope
from fedglean.method import Upload

At = tuple[int, int]
Damage = Callable[[Upload], Any]


def drop(*at: At) -> Deliver:
    """The upload never arrives."""
    return _strike(at, lambda envelope: [])


def duplicate(*at: At) -> Deliver:
    """The upload arrives twice."""
    return _strike(at, lambda envelope: [envelope, envelope])


def poison(damage: Damage, *at: At) -> Deliver:
    """The upload arrives damaged."""
    return _strike(at, lambda envelope: [replace(envelope, upload=damage(envelope.upload))])


def delay(*at: At, rounds: int = 1) -> Deliver:
    """The upload arrives that many rounds late, ahead of the first delivery from then on."""
    waiting: list[Envelope] = []

    def deliver(envelope: Envelope) -> Iterable[Envelope]:
        late = [old for old in waiting if envelope.round >= old.round + rounds]
        waiting[:] = [old for old in waiting if old not in late]
        if _is_hit(envelope, at):
            waiting.append(envelope)
            return late
        return [*late, envelope]

    return deliver


def chain(*faults: Deliver) -> Deliver:
    """One fault after the other: what the first lets through is what the second gets."""

    def deliver(envelope: Envelope) -> Iterable[Envelope]:
        passed = [envelope]
        for fault in faults:
            before, passed = passed, []
            for each in before:
                passed += fault(each)
        return passed

    return deliver


def damaged_leaf(change: Callable[[Tensor], Tensor]) -> Damage:
    """Only the first leaf of the last name: whoever checks must look at every name."""

    def damage(upload: Upload) -> Upload:
        *_, name = upload.trees
        leaves = tree.named(upload.trees[name])
        first = next(iter(leaves))
        leaves[first] = change(leaves[first])
        damaged = tree.rebuild(upload.trees[name], leaves)
        return _with(upload, trees={**upload.trees, name: damaged})

    return damage


def missing_leaf(upload: Upload) -> Upload:
    name, first = next(iter(upload.trees.items()))
    leaves = list(tree.named(first).items())
    return _with(upload, trees={**upload.trees, name: dict(leaves[1:])})


def unknown_name(upload: Upload) -> Upload:
    return _with(upload, trees={**upload.trees, "unasked": torch.zeros(1)})


def garbage(upload: Upload) -> str:
    return "not an upload"


not_a_number = damaged_leaf(lambda leaf: torch.full_like(leaf, math.nan))
#: Every damage that the gate must see.
DAMAGES: dict[str, Damage] = {
    "not a number": not_a_number,
    "infinite": damaged_leaf(lambda leaf: torch.full_like(leaf, math.inf)),
    # Finite, but larger than any training makes it.
    "absurd": damaged_leaf(lambda leaf: torch.full_like(leaf, 1e30)),
    "wrong shape": damaged_leaf(lambda leaf: leaf[None]),
    "wrong dtype": damaged_leaf(lambda leaf: leaf.to(torch.float16)),
    "missing leaf": missing_leaf,
    "unknown name": unknown_name,
    "bad weight": lambda upload: _with(upload, all_weights=1e9),
    "negative weight": lambda upload: _with(upload, all_weights=-1.0),
    "garbage": garbage,
}


def _strike(at: tuple[At, ...], change: Deliver) -> Deliver:
    """What becomes of an upload there; others arrive as they are."""
    return lambda envelope: change(envelope) if _is_hit(envelope, at) else [envelope]


def _is_hit(envelope: Envelope, at: tuple[At, ...]) -> bool:
    return (envelope.round, envelope.client) in at


def _with(upload: Upload, **changes: Any) -> Upload:
    changed = copy(upload)
    vars(changed).update(changes)
    return changed

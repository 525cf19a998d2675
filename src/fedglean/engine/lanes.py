"""Trainings of one signature as one: parameters stacked along an axis of lanes, the step lifted
over it.

Clients take different numbers of steps. The longest come first; a lane that is done is held still
by `where`, and the stack is cut to half its width once half of the lanes are done. On a GPU the
lifted step is captured and replayed (`graph`); there the stack is also filled up to a width that
was captured before.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.engine.batches import Batcher, Lane, Setting, at
from fedglean.engine.graph import CapturedStep, Lifted, give_back
from fedglean.engine.trace import RecordedStep
from fedglean.method import Batch, Trained
from fedglean.models.convolution import in_groups
from fedglean.tree import Tree

#: Steps for which a narrower stack must last to be compiled, which takes a minute.
LEAST = 100


class StackTrainer:
    """Trains groups of lanes, and remembers the steps that it captured."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.parties = setting, 0
        self.captures: dict[Any, CapturedStep | None] = {}
        self.steps: dict[Any, RecordedStep] = {}
        self.widths: dict[Any, set[int]] = {}

    def train(self, lanes: Sequence[Lane], signature: Any) -> list[Trained]:
        """The answers, in the order of the lanes, whose lengths must not rise."""
        on_cuda = lanes[0].device.type == "cuda"
        stack = LaneStack(self._filled(lanes, signature) if on_cuda else lanes, self.setting)
        for width, steps in segments(stack.lengths, LEAST if self.setting.compile else 1):
            stack.narrow(width)
            stride = max(1, self.setting.images_at_once // (width * lanes[0].images_a_step))
            if on_cuda:
                self._replay(stack, width, steps, stride, signature)
            else:
                stack.play(width, steps, stride, self._step(stack, width, signature))
        return stack.results()[: len(lanes)]

    def _step(self, stack: "LaneStack", width: int, signature: Any) -> RecordedStep:
        key = (signature, width, stack.shared)
        if key not in self.steps:
            models, memory, frozen = stack.start(width)
            example = models, memory, at(stack.batches(width, range(1)), 0), frozen
            self.steps[key] = RecordedStep(stack.step, *example, self.setting.record_after)
        return self.steps[key]

    def forget(self) -> None:
        """Give up everything that was captured, and the memory it holds."""
        self.captures.clear()
        self.widths.clear()
        gc.collect()
        give_back()

    def _filled(self, lanes: Sequence[Lane], signature: Any) -> list[Lane]:
        """Idle lanes are added up to a width that is known: a new one would have to be captured.

        To compile one takes a minute, so there the first width is that of a round in which every
        party trains.
        """
        least = max(len(lanes), self.parties) if self.setting.compile else len(lanes)
        known = self.widths.setdefault(signature, set())
        width = min((each for each in known if each >= len(lanes)), default=least)
        known.add(width)
        idle = Lane(lanes[0].train, lanes[0].key, idle=True)
        return [*lanes, *[idle] * (width - len(lanes))]

    def _replay(
        self, stack: "LaneStack", width: int, steps: range, stride: int, signature: Any
    ) -> None:
        key = (signature, width, stack.shared)
        if key not in self.captures:
            self.captures[key] = self._capture(
                stack, width, _room(stack.batches(width, steps[:stride]), stride)
            )
        capture = self.captures[key]
        if capture is None:
            stack.play(width, steps, stride, self._step(stack, width, signature))
            return
        capture.load(*stack.start(width), stack.lengths_of(width), steps.start)
        for begin in range(steps.start, steps.stop, stride):
            some = range(begin, min(begin + stride, steps.stop))
            capture.play(stack.batches(width, some), len(some))
        stack.take(width, capture.models, capture.memory, capture.totals)

    def _capture(self, stack: "LaneStack", width: int, room: Batch) -> CapturedStep | None:
        """The step captured, else a plainer one, or none, with a warning that says why."""
        for compiled in (True, False) if self.setting.compile else (False,):
            half = compiled and self.setting.half
            try:
                with in_groups() if compiled and width > 1 else nullcontext():
                    return CapturedStep(
                        stack.step, *stack.start(width), room, width, compiled=compiled, half=half
                    )
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                what = "captured; it runs unrecorded"
                if compiled:
                    what = "compiled; it runs uncompiled, in full precision"
                first_line = next(iter(str(error).strip().splitlines()), "")
                warnings.warn(
                    f"a training step could not be {what} ({type(error).__name__}: {first_line})",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return None


class LaneStack:
    """The state of a group of lanes while it trains."""

    def __init__(self, lanes: Sequence[Lane], setting: Setting) -> None:
        self.lanes, self.batcher = lanes, Batcher(lanes, setting)
        trains = [lane.train for lane in lanes]
        self.models = _stacked([tree.trainable(train.models) for train in trains])
        self.memory = _stacked([train.start_memory() for train in trains])
        frozen = [dict(train.frozen) for train in trains]
        self.frozen_of, self.shared, axes = _shared_or_stacked(frozen, lanes[0].device)
        self.step: Lifted = vmap(trains[0].stepper(), in_dims=(0, 0, 0, axes))
        self.lengths = [lane.length for lane in lanes]
        self.totals: dict[str, Tensor] = {}
        self.done: dict[int, tuple[Tree, Tree]] = {}

    def start(self, width: int) -> tuple[Tree, Tree, Tree]:
        """What a step of so many lanes begins with: models, memory, what is frozen."""
        return self.models, self.memory, self.frozen_of(width)

    def lengths_of(self, width: int) -> Tensor:
        return torch.tensor(self.lengths[:width], device=self.lanes[0].device)

    def batches(self, width: int, steps: range) -> Batch:
        return self.batcher.chunk(steps, width)

    def play(self, width: int, steps: range, stride: int, step: RecordedStep) -> None:
        """Step by step, without a graph."""
        leaves, structure = pytree.tree_flatten((self.models, self.memory))
        state: Sequence[Tensor] = leaves
        frozen = pytree.tree_leaves(self.frozen_of(width))
        totals: list[Tensor] = []
        for begin in range(steps.start, steps.stop, stride):
            some = range(begin, min(begin + stride, steps.stop))
            batches = zip(
                *[leaf.unbind(0) for leaf in pytree.tree_leaves(self.batches(width, some))],
                strict=True,
            )
            for number, batch in zip(some, batches, strict=True):
                new = self._held(step(state, batch, frozen), state, number, width)
                state, metrics = new[: len(state)], new[len(state) :]
                totals = totals or [
                    value.new_zeros(width, dtype=torch.float64) for value in metrics
                ]
                for total, value in zip(totals, metrics, strict=True):
                    total.add_(value)
        models, memory = pytree.tree_unflatten(state, structure)
        self.take(width, models, memory, dict(zip(step.names, totals, strict=True)))

    def _held(
        self, new: Sequence[Tensor], old: Sequence[Tensor], number: int, width: int
    ) -> Sequence[Tensor]:
        """What a step made of the state, and its metrics; nothing of lanes that have finished."""
        moving = [number < length for length in self.lengths[:width]]
        if all(moving):
            return new
        on = torch.tensor(moving, device=self.lanes[0].device)  # lanes
        still = [*old, *(torch.zeros_like(value) for value in new[len(old) :])]
        held = []
        for moved, kept in zip(new, still, strict=True):
            where = on.reshape(-1, *[1] * (moved.dim() - 1))  # lanes x 1 x ...
            held.append(torch.where(where, moved, kept))
        return held

    def take(self, width: int, models: Tree, memory: Tree, metrics: dict[str, Tensor]) -> None:
        """Go on from here; metrics are added up."""
        self.models, self.memory = models, memory
        for name, value in metrics.items():
            total = self.totals.setdefault(
                name, value.new_zeros(len(self.lanes), dtype=torch.float64)
            )
            total[:width] += value

    def narrow(self, width: int) -> None:
        """Set the finished lanes aside, each with tensors of its own."""
        leaves, structure = pytree.tree_flatten((self.models, self.memory))
        finished = range(width, len(self.lanes) - len(self.done))
        if finished:
            lanes = zip(*[leaf[width:].unbind(0) for leaf in leaves], strict=True)
            for place, lane in zip(finished, lanes, strict=True):
                own = [torch.empty_like(part) for part in lane]
                torch._foreach_copy_(own, lane)  # one kernel for all
                self.done[place] = pytree.tree_unflatten(own, structure)
            self.models, self.memory = pytree.tree_unflatten(
                [leaf[:width] for leaf in leaves], structure
            )

    def results(self) -> list[Trained]:
        self.narrow(0)
        totals = {name: total.tolist() for name, total in self.totals.items()}
        results = []
        for place, length in enumerate(self.lengths):
            means = {name: total[place] / length for name, total in totals.items() if length}
            results.append(Trained(*self.done[place], length, means))
        return results


def segments(lengths: Sequence[int], least: int = 1) -> Iterator[tuple[int, range]]:
    """(width, steps): lengths fall, and the width halves once half of it has finished.

    Lengths 9, 9, 2, 1 are played as (4, steps 0 and 1) and (2, steps 2 to 8). A width that would
    not last for `least` steps is left out, and the wider one before it goes on in its place.
    """
    width = playing = len(lengths)
    begin = now = 0  # `playing` lanes play since step `begin`; from `now` on `width` lanes would do
    while width:
        half = width // 2
        end = lengths[half] if half else lengths[0]
        if end - now >= least:
            if now > begin:
                yield playing, range(begin, now)
            playing, begin = width, now
        now, width = max(now, end), half
    if now > begin:
        yield playing, range(begin, now)


def _room(chunk: Batch, steps: int) -> Batch:
    """The chunk with room for so many steps."""
    room: Batch = tree.map(
        lambda leaf: torch.cat([leaf, leaf[:1].expand(steps - len(leaf), *leaf.shape[1:])]), chunk
    )
    return room


def _stacked(trees: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: torch.stack(leaves), trees[0], *trees[1:])


def _shared_or_stacked(
    trees: Sequence[Tree], device: torch.device
) -> tuple[Callable[[int], Tree], tuple[bool, ...], Tree]:
    """The trees as one, for any width; which leaves are shared; each leaf's axis of lanes."""
    columns = list(zip(*(pytree.tree_leaves(part) for part in trees), strict=True))
    shape = pytree.tree_structure(trees[0])
    same = tuple(all(leaf is column[0] for leaf in column) for column in columns)
    leaves = [
        (column[0] if shared else torch.stack(column)).to(device)
        for column, shared in zip(columns, same, strict=True)
    ]
    axes = pytree.tree_unflatten([None if shared else 0 for shared in same], shape)

    def narrowed(width: int) -> Tree:
        cut = [leaf if shared else leaf[:width] for leaf, shared in zip(leaves, same, strict=True)]
        return pytree.tree_unflatten(cut, shape)

    return narrowed, same, axes

"""Trainings of one signature as one: parameters on an axis of lanes, the step lifted over it.

Clients take different numbers of steps. The longest come first; a lane that is done is held still
by `where`, and the stack is cut to half its width once half of the lanes are done. On a GPU the
lifted step is captured and replayed (`graph`); there the stack is also filled up to a width that
was captured before.
"""

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.engine.batches import Batcher, Lane, Setting, at
from fedglean.engine.graph import CapturedStep, Lifted, give_back, of_lanes
from fedglean.engine.trace import RecordedStep
from fedglean.method import Trained
from fedglean.models.convolution import in_groups
from fedglean.models.model import bring_frozen
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
        stack = LaneStack(self._fill_up(lanes, signature) if on_cuda else lanes, self.setting)
        for width, steps in segments(stack.lengths, LEAST if self.setting.compile else 1):
            stack.narrow(width)
            key = (signature, width, stack.shared)
            capture = self._capture_of(stack, width, key) if on_cuda else None
            if capture is not None:
                stack.replay(width, steps, capture)
            else:
                stack.play(width, steps, self._step_of(stack, width, key))
        return stack.results()[: len(lanes)]

    def forget(self) -> None:
        """Give up everything that was captured, and the memory it holds."""
        self.captures.clear()
        self.widths.clear()
        gc.collect()
        give_back()

    def _fill_up(self, lanes: Sequence[Lane], signature: Any) -> list[Lane]:
        """Idle lanes are added up to a width that is known: a new one would have to be captured.

        To compile one takes a minute, so there the first width is that of a round in which every
        party trains.
        """
        known = self.widths.setdefault(signature, set())
        enough = [width for width in known if width >= len(lanes)]
        if enough:
            width = min(enough)
        elif self.setting.compile:
            width = max(len(lanes), self.parties)
        else:
            width = len(lanes)
        known.add(width)
        idle = Lane(lanes[0].train, lanes[0].key, idle=True)
        return [*lanes, *[idle] * (width - len(lanes))]

    def _step_of(self, stack: "LaneStack", width: int, key: Any) -> RecordedStep:
        if key not in self.steps:
            models, memory, frozen = stack.start(width)
            batch = at(stack.batcher.chunk(range(1), width), 0)
            example = models, memory, batch, frozen
            self.steps[key] = RecordedStep(stack.step, *example, self.setting.record_after)
        return self.steps[key]

    def _capture_of(self, stack: "LaneStack", width: int, key: Any) -> CapturedStep | None:
        if key not in self.captures:
            self.captures[key] = self._capture(stack, width)
        return self.captures[key]

    def _capture(self, stack: "LaneStack", width: int) -> CapturedStep | None:
        """The step captured, else a plainer one, or none, with a warning that says why."""
        room = stack.batcher.chunk(range(stack.batcher.steps_at_once(width)), width)
        attempts = [(False, "captured; it runs unrecorded")]
        if self.setting.compile:
            attempts.insert(0, (True, "compiled; it runs uncompiled, in full precision"))
        for compiled, what in attempts:
            half = compiled and self.setting.half
            try:
                with in_groups() if compiled and width > 1 else nullcontext():
                    return CapturedStep(
                        stack.step, *stack.start(width), room, width, compiled=compiled, half=half
                    )
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
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
        self.lengths = [lane.length for lane in lanes]
        trains = [lane.train for lane in lanes]
        self.models = _stack([tree.trainable(train.models) for train in trains])
        bring_frozen(self.models)
        self.memory = _stack([train.start_memory() for train in trains])
        self.frozen, self.is_shared = _share(
            [dict(train.frozen) for train in trains], lanes[0].device
        )
        axes = tree.map(lambda is_shared: None if is_shared else 0, self.is_shared)
        self.step: Lifted = vmap(trains[0].stepper(), in_dims=(0, 0, 0, axes))
        self.totals: dict[str, Tensor] = {}
        self.done: dict[int, tuple[Tree, Tree]] = {}

    @property
    def shared(self) -> tuple[bool, ...]:
        """Which leaves of what is frozen are the same tensor for all lanes."""
        return tuple(pytree.tree_leaves(self.is_shared))

    def start(self, width: int) -> tuple[Tree, Tree, Tree]:
        """What a step of so many lanes begins with: models, memory, what is frozen."""

        def cut(leaf: Tensor, is_shared: bool) -> Tensor:
            return leaf if is_shared else leaf[:width]

        return self.models, self.memory, tree.map(cut, self.frozen, self.is_shared)

    def replay(self, width: int, steps: range, capture: CapturedStep) -> None:
        """Take these steps with a graph."""
        lengths = torch.tensor(self.lengths[:width], device=self.batcher.device)
        capture.load(*self.start(width), lengths, steps.start)
        for some in self.batcher.cut(steps, width):
            capture.play(self.batcher.chunk(some, width), len(some))
        self._take(width, capture.models, capture.memory, capture.totals)

    def play(self, width: int, steps: range, step: RecordedStep) -> None:
        """Take these steps without a graph."""
        models, memory, frozen = self.start(width)
        leaves, structure = pytree.tree_flatten((models, memory))
        state: Sequence[Tensor] = leaves
        fixed = pytree.tree_leaves(frozen)
        totals: dict[str, Tensor] = {}
        for some in self.batcher.cut(steps, width):
            chunk = pytree.tree_leaves(self.batcher.chunk(some, width))
            batches = zip(*[leaf.unbind() for leaf in chunk], strict=True)
            for number, batch in zip(some, batches, strict=True):
                new = self._hold(step(state, batch, fixed), state, number, width)
                state, metrics = new[: len(state)], new[len(state) :]
                for name, value in zip(step.names, metrics, strict=True):
                    if name not in totals:
                        totals[name] = value.new_zeros(width, dtype=torch.float64)
                    totals[name].add_(value)
        models, memory = pytree.tree_unflatten(state, structure)
        self._take(width, models, memory, totals)

    def _hold(
        self, new: Sequence[Tensor], old: Sequence[Tensor], number: int, width: int
    ) -> Sequence[Tensor]:
        """What a step made of the state, and its metrics; nothing of lanes that have finished."""
        if number < self.lengths[width - 1]:  # the shortest
            return new
        moving = [number < length for length in self.lengths[:width]]
        on = torch.tensor(moving, device=self.batcher.device)  # lanes
        still = [*old, *(torch.zeros_like(value) for value in new[len(old) :])]
        return [of_lanes(on, moved, kept) for moved, kept in zip(new, still, strict=True)]

    def _take(self, width: int, models: Tree, memory: Tree, metrics: dict[str, Tensor]) -> None:
        """Go on from here; metrics are added up."""
        self.models, self.memory = models, memory
        for name, value in metrics.items():
            zeros = value.new_zeros(len(self.lanes), dtype=torch.float64)
            self.totals.setdefault(name, zeros)[:width] += value

    def narrow(self, width: int) -> None:
        """Set the finished lanes aside, each with tensors of its own."""
        finished = range(width, len(self.lanes) - len(self.done))
        if not finished:
            return
        leaves, structure = pytree.tree_flatten((self.models, self.memory))
        lanes = zip(*[leaf[width:].unbind() for leaf in leaves], strict=True)
        for place, lane in zip(finished, lanes, strict=True):
            own = [torch.empty_like(part) for part in lane]
            torch._foreach_copy_(own, lane)  # one kernel for all
            self.done[place] = pytree.tree_unflatten(own, structure)
        rest = [leaf[:width] for leaf in leaves]
        self.models, self.memory = pytree.tree_unflatten(rest, structure)

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


def _stack(trees: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: torch.stack(leaves), *trees)


def _share(trees: Sequence[Tree], device: torch.device) -> tuple[Tree, Tree]:
    """The trees as one; and where it has a leaf that is the same tensor for all, unstacked."""

    def is_same(*leaves: Tensor) -> bool:
        return all(leaf is leaves[0] for leaf in leaves)

    def stack(is_shared: bool, *leaves: Tensor) -> Tensor:
        return (leaves[0] if is_shared else torch.stack(leaves)).to(device)

    is_shared = tree.map(is_same, *trees)
    return tree.map(stack, is_shared, *trees), is_shared

"""The executor `stack`: a block of clients as one tensor program.

The parties' generators run side by side. Whenever all of them wait, their requests are sorted into groups that agree in
function, trees, shapes and streams; each group is served by single batched calls, with the clients along an extra axis
that `torch.func.vmap` takes away from the method's step. Clients with fewer steps are held still, and left out once
the group can be cut to half its width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.augment import view
from fedglean.data.images import Predictions
from fedglean.engines.batches import Lane, at, chunk
from fedglean.engines.loop import Conversation, Loop, Observer, Party
from fedglean.method import Predict, Statistics, Train, Trained, probabilities
from fedglean.models import Model
from fedglean.randomness import fold, fold_int
from fedglean.tree import Tree


@dataclass(frozen=True)
class Call:
    """One request of one party, with the key of its draws."""

    request: Any
    key: int
    observe: Observer | None = None


class Stack(Loop):
    """Serves the requests of a block together."""

    def run(self, parties: Sequence[Party]) -> list[Any]:
        talks = [Conversation(party) for party in parties]
        for talk in talks:
            talk.go_on(None)
        while waiting := [talk for talk in talks if not talk.done]:
            calls = [
                _calls(talk.request, fold_int(talk.party.key, talk.number), talk.party.observe) for talk in waiting
            ]
            with waiting[0].blamed(f"and {len(waiting) - 1} others " if len(waiting) > 1 else ""):
                answers = iter(self.answer([call for some in calls for call in some]))
            for talk, some in zip(waiting, calls, strict=True):
                own = [next(answers) for _ in some]
                talk.go_on(own if isinstance(talk.request, list) else own[0])
        return [talk.result for talk in talks]

    def serve(self, request: Any, key: int, observe: Observer | None = None) -> Any:
        answers = self.answer(_calls(request, key, observe))
        return answers if isinstance(request, list) else answers[0]

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        """The answers to many requests, in order; those of one signature are served at once."""
        groups: dict[Any, list[int]] = {}
        for place, call in enumerate(calls):
            groups.setdefault(_signature(call.request), []).append(place)
        answers: list[Any] = [None] * len(calls)
        for places in groups.values():
            for place, answer in zip(places, self._group([calls[place] for place in places]), strict=True):
                answers[place] = answer
        return answers

    def _group(self, calls: Sequence[Call]) -> list[Any]:
        request = calls[0].request
        if isinstance(request, Train):
            return self._train_together([Lane(call.request, call.key) for call in calls])
        with torch.no_grad():
            if isinstance(request, Predict) and _one_by_one(request.models):
                return self._predict_together(calls)
            if isinstance(request, Statistics):
                return self._measure_together([call.request for call in calls])
        return [super(Stack, self).serve(call.request, call.key, call.observe) for call in calls]

    def _train_together(self, lanes: Sequence[Lane]) -> list[Trained]:
        places = sorted(range(len(lanes)), key=lambda place: -lanes[place].length)
        ordered = [lanes[place] for place in places]
        finished = _Lanes(ordered).trained(
            self.setting.images_at_once, lambda some, steps: chunk(some, self.setting, steps)
        )
        return [finished[places.index(place)] for place in range(len(lanes))]

    def _predict_together(self, calls: Sequence[Call]) -> list[Any]:
        """One model, many parties: their images in one row."""
        request: Predict = calls[0].request
        counts = [len(call.request.images) for call in calls]
        positions = [torch.arange(count, device=request.images.index.device) for count in counts]
        keys = [
            torch.as_tensor(fold(fold_int(call.key, "view"), own)) for call, own in zip(calls, positions, strict=True)
        ]
        pixels = torch.cat([call.request.images.pixels(own) for call, own in zip(calls, positions, strict=True)])
        size = self.setting.images_at_once
        parts = [
            request.apply(request.models, view(request.view, some, own, self.setting.recipe, self.setting.dtype))
            for some, own in zip(_cut(pixels, size), _cut(torch.cat(keys), size), strict=True)
        ]
        output = torch.cat(parts) if parts else self._nothing(request)
        return [_predicted(call, own) for call, own in zip(calls, torch.split(output, counts), strict=True)]

    def _measure_together(self, requests: Sequence[Statistics]) -> list[dict[str, Tensor]]:
        """One model, many parties: batches of equal size in one call, whoever they are from."""
        model = requests[0].model
        sums = [model.empty_sums() for _ in requests]
        pieces = [
            (size, place, part)
            for place, request in enumerate(requests)
            for part in _cut(torch.arange(len(request.images), device=request.images.index.device), request.batch)
            if (size := len(part)) > 1
        ]
        lifted = vmap(lambda images: model.record(images))
        for size in sorted({size for size, _, _ in pieces}):
            some = [(place, part) for own, place, part in pieces if own == size]
            stride = max(1, self.setting.images_at_once // size)
            for begin in range(0, len(some), stride):
                row = some[begin : begin + stride]
                pixels = torch.cat([requests[place].images.pixels(part) for place, part in row])
                unused = torch.zeros(len(pixels), dtype=torch.long, device=pixels.device)
                made = view("plain", pixels, unused, self.setting.recipe, self.setting.dtype)
                found = lifted(made.reshape(len(row), size, *made.shape[1:]))
                for lane, (place, _) in enumerate(row):
                    sums[place] = {name: total + found[name][lane] for name, total in sums[place].items()}
        return sums


class _Lanes:
    """Several trainings of one signature, the longest first, as one."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        trains = [lane.train for lane in lanes]
        self.models = _stacked([tree.trainable(train.models) for train in trains])
        self.memory = _stacked([train.start_memory() for train in trains])
        self.frozen, axes = _shared_or_stacked([dict(train.frozen) for train in trains])
        self.step = vmap(trains[0].stepper(), in_dims=(0, 0, 0, axes))
        self.lengths = [lane.length for lane in lanes]
        self.totals: dict[str, Tensor] = {}
        self.done: dict[int, tuple[Tree, Tree]] = {}

    def trained(self, images_at_once: int, make: Callable[[Sequence[Lane], range], Any]) -> list[Trained]:
        for width, steps in _segments(self.lengths):
            self._narrow(width)
            stride = max(1, images_at_once // (width * self.lanes[0].images_a_step))
            for begin in range(steps.start, steps.stop, stride):
                some = range(begin, min(begin + stride, steps.stop))
                made = make(self.lanes[:width], some)
                for place, number in enumerate(some):
                    self._step(at(made, place), number, width)
        self._narrow(0)
        return [self._result(place) for place in range(len(self.lanes))]

    def _step(self, batch: Any, number: int, width: int) -> None:
        frozen = self.frozen(width)
        models, memory, metrics = self.step(self.models, self.memory, batch, frozen)
        moving = [number < length for length in self.lengths[:width]]
        if not all(moving):
            on = torch.tensor(moving, device=batch.step.device)
            models, memory = _held(on, models, self.models), _held(on, memory, self.memory)
            metrics = {name: torch.where(on, value, torch.zeros_like(value)) for name, value in metrics.items()}
        self.models, self.memory = models, memory
        for name, value in metrics.items():
            total = self.totals.setdefault(name, torch.zeros(len(self.lanes), dtype=torch.float64, device=value.device))
            total[:width] += value

    def _narrow(self, width: int) -> None:
        """Set the finished lanes aside."""
        for place in range(width, len(self.lanes) - len(self.done)):
            pick = lambda leaf, place=place: leaf[place].clone()  # noqa: E731
            self.done[place] = (tree.map(pick, self.models), tree.map(pick, self.memory))
        if width:
            self.models, self.memory = (
                tree.map(lambda leaf: leaf[:width], part) for part in (self.models, self.memory)
            )

    def _result(self, place: int) -> Trained:
        models, memory = self.done[place]
        count = max(1, self.lengths[place])
        return Trained(
            models,
            memory,
            self.lengths[place],
            {name: float(total[place]) / count for name, total in self.totals.items()},
        )


def _segments(lengths: Sequence[int]) -> Iterator[tuple[int, range]]:
    """(width, steps): lengths fall, and the width halves once half of it has finished; few widths, as each compiles."""
    width, begin = len(lengths), 0
    while width:
        half = width // 2
        end = lengths[half] if half else lengths[0]
        if end > begin:
            yield width, range(begin, end)
            begin = end
        width = half


def _calls(request: Any, key: int, observe: Observer | None) -> list[Call]:
    if not isinstance(request, list):
        return [Call(request, key, observe)]
    return [Call(part, fold_int(key, "part", place), observe) for place, part in enumerate(request)]


def _signature(request: Any) -> Any:
    """Requests of one signature can be served together."""
    if isinstance(request, Train):
        what = request.step or (request.loss, replace(request.sgd, rate=0.0))  # type: ignore[type-var]
        trees = (tree.trainable(request.models), request.start_memory(), dict(request.frozen))
        leaves, shape = pytree.tree_flatten(trees)
        streams = tuple(
            (name, stream.views, stream.batch, _kind(stream.images.label)) for name, stream in request.streams.items()
        )
        return "train", what, repr(shape), tuple(map(_kind, leaves)), streams
    if isinstance(request, Predict):
        return "predict", id(request.models), request.apply, request.view, request.threshold, request.batch
    if isinstance(request, Statistics):
        return "statistics", id(request.model), request.batch
    return "other", id(request)


def _kind(leaf: Any) -> Any:
    return (tuple(leaf.shape[1:]) if leaf.dim() else (), leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _one_by_one(models: Tree) -> bool:
    """Whether an image's prediction does not depend on its neighbours."""
    nodes = pytree.tree_leaves(models, is_leaf=lambda node: isinstance(node, Model))
    return all(not isinstance(node, Model) or bool(node.statistics) or not node.needs_statistics for node in nodes)


def _predicted(call: Call, output: Tensor) -> Any:
    request: Predict = call.request
    if request.apply is not probabilities:
        return output
    predictions = Predictions(request.images, output, request.threshold)
    if call.observe is not None and request.threshold is not None:
        call.observe(predictions)
    return predictions


def _cut(rows: Tensor, size: int) -> Sequence[Tensor]:
    return torch.split(rows, size) if len(rows) else ()


def _stacked(trees: Sequence[Tree]) -> Tree:
    return tree.map(lambda *leaves: torch.stack(leaves), trees[0], *trees[1:])


def _shared_or_stacked(trees: Sequence[Tree]) -> tuple[Callable[[int], Tree], Tree]:
    """The trees as one, for any width, and which axis is the lanes': none where all hold the very same tensor."""
    columns = list(zip(*(pytree.tree_leaves(part) for part in trees), strict=True))
    shape = pytree.tree_structure(trees[0])
    same = [all(leaf is column[0] for leaf in column) for column in columns]
    leaves = [column[0] if shared else torch.stack(column) for column, shared in zip(columns, same, strict=True)]
    axes = pytree.tree_unflatten([None if shared else 0 for shared in same], shape)

    def narrowed(width: int) -> Tree:
        cut = [leaf if shared else leaf[:width] for leaf, shared in zip(leaves, same, strict=True)]
        return pytree.tree_unflatten(cut, shape)

    return narrowed, axes


def _held(on: Tensor, new: Tree, old: Tree) -> Tree:
    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(on.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    return tree.map(choose, new, old)

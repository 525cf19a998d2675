"""The executor `stack`: a block of clients as one tensor program.

The parties' generators run side by side. Whenever all of them wait, their requests are sorted into groups that agree in
function, trees, shapes and streams; each group is served by single batched calls, with the clients along an extra axis
that `torch.func.vmap` takes away from the method's step. Clients with fewer steps are held still, and left out once
the group can be cut to half its width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.augment import view
from fedglean.data.images import Predictions
from fedglean.engines.batches import Lane, Setting
from fedglean.engines.lanes import Trainer
from fedglean.engines.loop import Conversation, Loop, Observer, Party
from fedglean.method import Predict, Statistics, Stream, Train, Trained, probabilities
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

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._trainer = Trainer(setting)

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
        alone_on_a_cpu = len(calls) == 1 and not _on_cuda(request)
        if isinstance(request, Train) and not alone_on_a_cpu:
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
        finished = self._trainer.train(ordered, _signature(ordered[0].train))
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
        model, device = requests[0].model, requests[0].images.index.device
        lifted = vmap(lambda images: model.record(images))
        sums = {name: zero.new_zeros(len(requests), *zero.shape) for name, zero in model.empty_sums().items()}
        for size, row in self._rows_of_equal_size(requests):
            pixels = torch.cat([requests[place].images.pixels(part) for place, part in row])
            unused = torch.zeros(len(pixels), dtype=torch.long, device=device)
            made = view("plain", pixels, unused, self.setting.recipe, self.setting.dtype)
            found = lifted(made.reshape(len(row), size, *made.shape[1:]))
            places = torch.tensor([place for place, _ in row], device=device)
            sums = {name: total.index_add(0, places, found[name]) for name, total in sums.items()}
        return [{name: total[place] for name, total in sums.items()} for place in range(len(requests))]

    def _rows_of_equal_size(self, requests: Sequence[Statistics]) -> Iterator[tuple[int, list[tuple[int, Tensor]]]]:
        """(size, [(party, which of its images)]), as many batches at once as memory likes."""
        by_size: dict[int, list[tuple[int, Tensor]]] = {}
        for place, request in enumerate(requests):
            everything = torch.arange(len(request.images), device=request.images.index.device)
            for part in _cut(everything, request.batch):
                by_size.setdefault(len(part), []).append((place, part))
        by_size.pop(1, None)  # one image has no variance
        for size, some in by_size.items():
            stride = max(1, self.setting.images_at_once // size)
            for begin in range(0, len(some), stride):
                yield size, some[begin : begin + stride]


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
        streams = tuple((name, each.views, each.batch, _label(each)) for name, each in request.streams.items())
        return "train", what, repr(shape), tuple((leaf.shape, leaf.dtype) for leaf in leaves), streams
    if isinstance(request, Predict):
        return "predict", id(request.models), request.apply, request.view, request.threshold, request.batch
    if isinstance(request, Statistics):
        return "statistics", id(request.model), request.batch
    return "other", id(request)


def _on_cuda(request: Any) -> bool:
    """One training alone gains nothing from a stack, but everything from being captured."""
    return isinstance(request, Train) and next(iter(request.streams.values())).images.index.is_cuda


def _label(stream: Stream) -> Any:
    """What one image's label looks like; how many there are is each client's own business."""
    label = stream.images.label
    return None if label is None else (label.shape[1:], label.dtype)


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

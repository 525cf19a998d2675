"""The executor `stack`: a block of clients as one tensor program.

The parties' coroutines run side by side. Whenever all of them wait, their requests are sorted into
groups that agree in function, trees, shapes and streams; each group is served by single batched
calls, with the clients along an extra axis that `torch.func.vmap` takes away from the method's
step. Clients with fewer steps are held still, and left out once the group can be cut to half its
width.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedglean.engine.batches import Lane, Setting
from fedglean.engine.graph import fused
from fedglean.engine.lanes import StackTrainer
from fedglean.engine.loop import Loop, view_keys
from fedglean.engine.signature import signature_of
from fedglean.engine.task import Call, Party, by_call, parts_of, run_together
from fedglean.inputs.views import view
from fedglean.method import Apply, Predict, Statistics, Train, Trained
from fedglean.models import Model
from fedglean.tree import Tree

#: Batches of statistics at once where the pass over them is compiled: for sizes that so many share,
#: as clients may differ in the size of their last batch.
ROWS = 16
#: Images in one forward pass at most: a GPU is full with them, and more only take memory.
FORWARD = 8192


#: What makes batch-norm sums of a model's batches, a row each.
RecordSums = Callable[[Model, Tensor], dict[str, Tensor]]


class Stack(Loop):
    """Serves the requests of a whole block together."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._trainer = StackTrainer(setting)

    def run(self, parties: Sequence[Party]) -> list[Any]:
        self._trainer.parties = len(parties)
        try:
            return run_together(parties, self._answer_tasks)
        finally:
            self._trainer.parties = 0

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        """Requests of one signature are served at once, whoever they are from."""
        parts = parts_of(calls)
        groups: dict[Any, list[int]] = {}
        for place, call in enumerate(parts):
            groups.setdefault(signature_of(call.request), []).append(place)
        answers: dict[int, Any] = {}
        for signature, places in groups.items():
            group = [parts[place] for place in places]
            answers |= zip(places, self._answer_group(group, signature), strict=True)
        return by_call(calls, [answers[place] for place in range(len(parts))])

    def _answer_group(self, calls: Sequence[Call], signature: Any) -> list[Any]:
        request = calls[0].request
        # One training alone gains nothing from a stack, but everything from being captured.
        if isinstance(request, Train) and (len(calls) > 1 or _is_on_cuda(request)):
            return self._train_together([Lane(call.request, call.key) for call in calls], signature)
        with torch.no_grad():
            if isinstance(request, Predict | Apply) and _is_one_by_one(request.models):
                return self._predict_together(calls)
            if isinstance(request, Statistics):
                return self._measure_together([call.request for call in calls])
        return [self._answer_one(call) for call in calls]

    def _train_together(self, lanes: Sequence[Lane], signature: Any) -> list[Trained]:
        """As many lanes at once as memory holds, the longest first.

        Compiled, not more than there are parties: where each trains several models, one width
        serves every round, and those with few steps do not stand idle beside the others.
        """
        parties = self._trainer.parties if self.setting.compile else 0
        places = sorted(range(len(lanes)), key=lambda place: -lanes[place].length)
        finished: dict[int, Trained] = {}
        while rest := places[len(finished) :]:
            limits = [limit for limit in (self.widest, parties) if limit]
            some = rest[: min(limits, default=None)]
            trained = None
            try:
                trained = self._trainer.train([lanes[place] for place in some], signature)
            except torch.OutOfMemoryError:
                if len(some) == 1:
                    raise
            # Outside of `except`: only here have the error's frames let go of their tensors.
            if trained is None:
                self.widest = -(-len(some) // 2)
                self._trainer.forget()
            else:
                finished |= dict(zip(some, trained, strict=True))
        return [finished[place] for place in range(len(lanes))]

    def _predict_together(self, calls: Sequence[Call]) -> list[Any]:
        """One model, many parties: their images in one row."""
        request: Predict | Apply = calls[0].request
        indices, keys, counts = [], [], []
        for call in calls:
            index = call.request.images.index  # images of one party
            indices.append(index)
            keys.append(view_keys(call, torch.arange(len(index), device=index.device)))
            counts.append(len(index))
        rows = zip(self._cut(torch.cat(indices)), self._cut(torch.cat(keys)), strict=True)
        parts = []
        for index, own_keys in rows:  # images of all parties
            parts.append(self._outputs(request, request.images.store[index], own_keys))
        output = torch.cat(parts) if parts else self._nothing(request)
        answers = []
        for call, own in zip(calls, torch.split(output, counts), strict=True):
            answers.append(call.predictions(own if len(own) else self._nothing(call.request)))
        return answers

    def _measure_together(self, requests: Sequence[Statistics]) -> list[dict[str, Tensor]]:
        """One model, many parties: batches of equal size in one call, whoever they are from."""
        model, store = requests[0].model, requests[0].images.store
        empty = model.empty_sums()
        sizes = [zero.numel() for zero in empty.values()]
        # Parties x sums of all names side by side, as one `index_add_` wants them.
        sums = torch.zeros(len(requests), sum(sizes), dtype=torch.float64, device=store.device)
        for size, row, record in self._rows_of_equal_size(requests):
            index = torch.cat([part for _, part in row])
            made = view("plain", store[index], index, self.setting.recipe, self.setting.dtype)
            found = record(model, made.reshape(len(row), size, *made.shape[1:]))
            own = [found[name].reshape(len(row), -1) for name in empty]  # batches x sums of a name
            parties = torch.tensor([party for party, _ in row]).to(store.device, non_blocking=True)
            sums.index_add_(0, parties, torch.cat(own, 1))
        answers: list[dict[str, Tensor]] = [{} for _ in requests]
        columns = torch.split(sums, sizes, dim=1)
        for (name, zero), column in zip(empty.items(), columns, strict=True):
            shaped = column.reshape(-1, *zero.shape)  # parties x the shape of a name
            for answer, part in zip(answers, shaped.unbind(), strict=True):
                answer[name] = part
        return answers

    def _rows_of_equal_size(
        self, requests: Sequence[Statistics]
    ) -> Iterator[tuple[int, list[tuple[int, Tensor]], RecordSums]]:
        """(size, [(party, where in the store its images are)], what adds them up)."""
        by_size: dict[int, list[tuple[int, Tensor]]] = {}
        for party, request in enumerate(requests):
            for part in torch.split(request.images.index, request.batch):
                by_size.setdefault(len(part), []).append((party, part))
        for size, some in by_size.items():
            if size < 2:
                continue  # one image has no variance
            most, record = max(1, self._images_at_once // size), _record
            if self.setting.compile and len(some) >= ROWS:
                most, record = ROWS, self._record_compiled
            for begin in range(0, len(some), most):
                yield size, some[begin : begin + most], record

    @property
    def _images_at_once(self) -> int:
        return min(FORWARD, self.setting.images_at_once)

    def _cut(self, images: Tensor) -> Sequence[Tensor]:
        return torch.split(images, self._images_at_once) if len(images) else ()

    @cached_property
    def _compiled_pass(self) -> RecordSums:
        return fused(_record, self.setting.half)

    def _record_compiled(self, model: Model, batches: Tensor) -> dict[str, Tensor]:
        # Filled up to one number of batches: another would have to be compiled.
        idle = batches[:1].expand(ROWS - len(batches), *batches.shape[1:])
        sums = self._compiled_pass(model, torch.cat([batches, idle]))
        return {name: part[: len(batches)] for name, part in sums.items()}


def _record(model: Model, batches: Tensor) -> dict[str, Tensor]:
    """Batch-norm sums of each batch."""
    sums: dict[str, Tensor] = vmap(model.record)(batches)
    return sums


def _is_on_cuda(request: Train) -> bool:
    return next(iter(request.streams.values())).images.index.is_cuda


def _is_one_by_one(models: Tree) -> bool:
    """Whether an image's prediction does not depend on its neighbours."""
    nodes = pytree.tree_leaves(models, is_leaf=lambda node: isinstance(node, Model))
    mixing = [
        node
        for node in nodes
        if isinstance(node, Model) and node.needs_statistics and not node.statistics
    ]
    return not mixing

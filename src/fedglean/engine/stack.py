"""The executor `stack`: a block of clients as one tensor program.

The parties' generators run side by side. Whenever all of them wait, their requests are sorted into
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
from fedglean.engine.loop import Loop
from fedglean.engine.signature import signature_of
from fedglean.engine.task import Call, Party, by_call, run_together
from fedglean.inputs.views import channels_last, view
from fedglean.method import Apply, Predict, Statistics, Train, Trained
from fedglean.models import Model
from fedglean.randomness import fold, fold_int
from fedglean.tree import Tree

#: Batches of statistics at once where the pass over them is compiled: for sizes that so many share,
#: as clients may differ in the size of their last batch.
ROWS = 16
#: Images in one forward pass at most: a GPU is full with them, and more only take memory.
FORWARD = 8192


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
        parts = [call.parts() for call in calls]
        single = [part for some in parts for part in some]
        groups: dict[Any, list[int]] = {}
        for place, call in enumerate(single):
            groups.setdefault(signature_of(call.request), []).append(place)
        answers: dict[int, Any] = {}
        for signature, places in groups.items():
            answers |= zip(
                places, self._group([single[place] for place in places], signature), strict=True
            )
        inorder = (answers[place] for place in range(len(single)))
        return by_call(calls, [[next(inorder) for _ in some] for some in parts])

    def _group(self, calls: Sequence[Call], signature: Any) -> list[Any]:
        request = calls[0].request
        alone_on_a_cpu = len(calls) == 1 and not _on_cuda(request)
        if isinstance(request, Train) and not alone_on_a_cpu:
            return self._train_together([Lane(call.request, call.key) for call in calls], signature)
        with torch.no_grad():
            if isinstance(request, Predict | Apply) and _one_by_one(request.models):
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
            most = min((limit for limit in (self.widest, parties) if limit), default=None)
            some, trained = rest[:most], None
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
        counts = [len(call.request.images) for call in calls]
        positions = [torch.arange(count, device=request.images.index.device) for count in counts]
        keys = [
            torch.as_tensor(fold(fold_int(call.key, "view"), own))
            for call, own in zip(calls, positions, strict=True)
        ]
        index = torch.cat([call.request.images.index for call in calls])  # images of all parties
        store = request.images.store
        size = min(FORWARD, self.setting.images_at_once)
        recipe, dtype = self.setting.recipe, self.setting.dtype
        parts = [
            request.function(
                request.models, channels_last(view(request.view, store[some], own, recipe, dtype))
            )
            for some, own in zip(_cut(index, size), _cut(torch.cat(keys), size), strict=True)
        ]
        output = torch.cat(parts) if parts else self._nothing(request)
        answers = zip(calls, torch.split(output, counts), strict=True)
        return [
            call.predictions(own if len(own) else self._nothing(call.request))
            for call, own in answers
        ]

    def _measure_together(self, requests: Sequence[Statistics]) -> list[dict[str, Tensor]]:
        """One model, many parties: batches of equal size in one call, whoever they are from."""
        model, store = requests[0].model, requests[0].images.store
        empty, device = model.empty_sums(), store.device
        # A row a party: the sums of all names side by side, as one `index_add_` wants them.
        sums = torch.zeros(
            len(requests),
            sum(zero.numel() for zero in empty.values()),
            dtype=torch.float64,
            device=device,
        )
        for size, row, compiled in self._rows_of_equal_size(requests):
            index = torch.cat([part for _, part in row])
            made = view("plain", store[index], index, self.setting.recipe, self.setting.dtype)
            record = self._compiled_record if compiled else _recorded
            found = record(model, made.reshape(len(row), size, *made.shape[1:]))
            places = torch.tensor([place for place, _ in row]).to(device, non_blocking=True)
            sums.index_add_(
                0, places, torch.cat([found[name].reshape(len(row), -1) for name in empty], 1)
            )
        columns = torch.split(sums, [zero.numel() for zero in empty.values()], dim=1)
        shaped = [
            column.reshape(-1, *zero.shape).unbind()
            for column, zero in zip(columns, empty.values(), strict=True)
        ]
        return [dict(zip(empty, own, strict=True)) for own in zip(*shaped, strict=True)]

    def _rows_of_equal_size(
        self, requests: Sequence[Statistics]
    ) -> Iterator[tuple[int, list[tuple[int, Tensor]], bool]]:
        """(size, [(party, where in the store its images are)], compiled), as memory likes."""
        by_size: dict[int, list[tuple[int, Tensor]]] = {}
        for place, request in enumerate(requests):
            for part in _cut(request.images.index, request.batch):
                by_size.setdefault(len(part), []).append((place, part))
        by_size.pop(1, None)  # one image has no variance
        for size, some in by_size.items():
            compiled = self.setting.compile and len(some) >= ROWS
            stride = ROWS if compiled else max(1, min(FORWARD, self.setting.images_at_once) // size)
            for begin in range(0, len(some), stride):
                yield size, some[begin : begin + stride], compiled

    @cached_property
    def _compiled_pass(self) -> Callable[..., dict[str, Tensor]]:
        return fused(_recorded, self.setting.half)

    def _compiled_record(self, model: Model, rows: Tensor) -> dict[str, Tensor]:
        # Filled up to one number of rows: another would have to be compiled.
        filled = torch.cat([rows, rows[:1].expand(ROWS - len(rows), *rows.shape[1:])])
        return {
            name: part[: len(rows)] for name, part in self._compiled_pass(model, filled).items()
        }


def _recorded(model: Model, rows: Tensor) -> dict[str, Tensor]:
    """Batch-norm sums of each row."""
    sums: dict[str, Tensor] = vmap(model.record)(rows)
    return sums


def _on_cuda(request: Any) -> bool:
    """One training alone gains nothing from a stack, but everything from being captured."""
    return isinstance(request, Train) and next(iter(request.streams.values())).images.index.is_cuda


def _one_by_one(models: Tree) -> bool:
    """Whether an image's prediction does not depend on its neighbours."""
    nodes = pytree.tree_leaves(models, is_leaf=lambda node: isinstance(node, Model))
    return all(
        not isinstance(node, Model) or bool(node.statistics) or not node.needs_statistics
        for node in nodes
    )


def _cut(rows: Tensor, size: int) -> Sequence[Tensor]:
    return torch.split(rows, size) if len(rows) else ()

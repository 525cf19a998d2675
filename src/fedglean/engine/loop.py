"""The executor `loop`: one client after the other, the reference that all others must equal."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.engine.batches import Setting, batches
from fedglean.engine.signature import signature_of
from fedglean.engine.task import (
    Call,
    Observer,
    Party,
    Task,
    by_call,
    closing,
    parts_of,
    run_together,
)
from fedglean.engine.trace import RecordedStep
from fedglean.inputs.views import channels_last, view
from fedglean.method import Apply, Predict, Statistics, Train, Trained
from fedglean.randomness import fold, fold_int
from fedglean.tree import Tree


class Loop:
    """Serves requests one by one."""

    #: How many trainings at once fit into memory, if not all did.
    widest: int | None = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.steps: dict[Any, RecordedStep] = {}

    def run(self, parties: Sequence[Party]) -> list[Any]:
        """What each party of a block returned."""
        with closing(parties):
            return [run_together([party], self._answer_tasks)[0] for party in parties]

    def _answer_tasks(self, waiting: Sequence[Task]) -> list[Any]:
        with waiting[0].blamed(others=len(waiting) - 1):
            return self.answer([task.call for task in waiting])

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        """The answers to many calls, in order."""
        return by_call(calls, [self._answer_one(part) for part in parts_of(calls)])

    def serve(self, request: Any, key: int, observe: Observer | None = None) -> Any:
        """The answer to one request."""
        return self.answer([Call(request, key, observe)])[0]

    def _answer_one(self, call: Call) -> Any:
        request = call.request
        if isinstance(request, Train):
            return self._train(request, call.key)
        with torch.no_grad():
            if isinstance(request, Statistics):
                return self._statistics(request)
            if isinstance(request, Predict | Apply):
                return self._predict(request, call)
        known = "Train, Predict, Apply or Statistics"
        raise TypeError(f"a client awaits, and together takes, {known}, not {request!r:.80}")

    def _train(self, request: Train, key: int) -> Trained:
        models = _lay_out(tree.trainable(request.models), channels_last)
        memory = request.start_memory()
        leaves, structure = pytree.tree_flatten((models, memory))
        state: Sequence[Tensor] = leaves
        frozen = pytree.tree_leaves(dict(request.frozen))
        signature = signature_of(request)
        totals: dict[str, Tensor] = {}
        for batch in batches(request, key, self.setting):
            if signature not in self.steps:
                example = models, memory, batch, dict(request.frozen)
                self.steps[signature] = RecordedStep(
                    request.stepper(), *example, self.setting.record_after
                )
            step = self.steps[signature]
            new = step(state, pytree.tree_leaves(_lay_out(batch, channels_last)), frozen)
            state, metrics = new[: len(state)], new[len(state) :]
            for name, value in zip(step.names, metrics, strict=True):
                totals[name] = value.double() + totals.get(name, 0.0)
        means = {name: float(total) / request.length for name, total in totals.items()}
        models, memory = _lay_out(pytree.tree_unflatten(state, structure), _usual_order)
        return Trained(models, memory, request.length, means)

    def _predict(self, request: Predict | Apply, call: Call) -> Any:
        parts = []
        for position in _slices(request.images.index, request.batch):
            keys = view_keys(call, position)
            parts.append(self._outputs(request, request.images.pixels(position), keys))
        return call.predictions(torch.cat(parts) if parts else self._nothing(request))

    def _outputs(self, request: Predict | Apply, pixels: Tensor, keys: Tensor) -> Any:
        made = view(request.view, pixels, keys, self.setting.recipe, self.setting.dtype)
        return request.function(request.models, channels_last(made))

    def _nothing(self, request: Predict | Apply) -> Tensor:
        """The answer for no image."""
        shape = [0]
        if isinstance(request, Predict):
            shape.append(request.models.architecture.classes)
        return torch.zeros(shape, dtype=self.setting.dtype, device=request.images.index.device)

    def _statistics(self, request: Statistics) -> dict[str, Tensor]:
        sums = request.model.empty_sums()
        for position in _slices(request.images.index, request.batch):
            if len(position) == 1:
                continue  # one image has no variance
            pixels = request.images.pixels(position)
            made = view("plain", pixels, position, self.setting.recipe, self.setting.dtype)
            sums = tree.add(sums, request.model.record(channels_last(made)))
        return sums


def view_keys(call: Call, position: Tensor) -> Tensor:
    return torch.as_tensor(fold(fold_int(call.key, "view"), position))


def _lay_out(part: Tree, order: Callable[[Tensor], Tensor]) -> Tree:
    """Images and kernels in another order in memory; all of them, for it shows in last bits."""

    def in_order(leaf: Tensor) -> Tensor:
        return order(leaf) if leaf.dim() == 4 and not leaf.is_cuda else leaf

    return tree.map(in_order, part)


def _usual_order(leaf: Tensor) -> Tensor:
    """In the usual order; `contiguous` would leave the strides of a single channel as they are."""
    return leaf.reshape(-1).reshape(leaf.shape)


def _slices(index: Tensor, batch: int) -> Sequence[Tensor]:
    return torch.split(torch.arange(len(index), device=index.device), batch) if len(index) else ()

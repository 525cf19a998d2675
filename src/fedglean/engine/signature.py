"""What requests must have in common to be served together, or by the same recorded step."""

import inspect
from collections.abc import Hashable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.method import Apply, Predict, Statistics, Stream, Train
from fedglean.models import Model
from fedglean.optimiser import without_rate


def signature_of(request: Any) -> Any:
    """Requests of one signature can be served together."""
    if isinstance(request, Train):
        what = identity_of(request.step)
        if request.step is None and request.optimiser is not None:
            what = identity_of(request.loss), without_rate(request.optimiser)
        trees = (tree.trainable(request.models), request.start_memory(), dict(request.frozen))
        leaves, shape = pytree.tree_flatten(trees)
        streams = tuple((name, *_drawing(each)) for name, each in request.streams.items())
        return "train", what, shape, tuple(map(_kind, leaves)), streams
    if isinstance(request, Predict | Apply):
        models, shape = pytree.tree_flatten(
            request.models, is_leaf=lambda node: isinstance(node, Model)
        )
        # Pseudo-labels stay apart: last bits depend on who shares a batch.
        is_labelling = isinstance(request, Predict) and request.threshold is not None
        how = request.function, request.view, request.batch, is_labelling
        return "predict", shape, tuple(map(id, models)), id(request.images.store), *how
    if isinstance(request, Statistics):
        return "statistics", id(request.model), id(request.images.store), request.batch
    return "other", id(request)


def identity_of(function: Any) -> Any:
    """A method's own function, whichever copy it is bound to: each exchange may unpickle one."""
    own = inspect.ismethod(function) and isinstance(function.__self__, Hashable)
    return (function.__func__, function.__self__) if own else function


def _kind(leaf: Any) -> tuple[Any, ...]:
    if not isinstance(leaf, Tensor):
        advice = f"; write torch.tensor({leaf})" if isinstance(leaf, int | float) else ""
        raise TypeError(f"models, memory and frozen must hold only tensors, not {leaf!r}{advice}")
    return leaf.shape, leaf.dtype


def _drawing(stream: Stream) -> tuple[Any, ...]:
    """What lanes must have in common to be drawn for together; the number of images may differ."""
    store, label = stream.images.store, stream.images.label
    labels = None if label is None else (label.shape[1:], label.dtype)
    return stream.views, stream.batch, stream.draw, id(store), labels

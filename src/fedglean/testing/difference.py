"""Where two trees differ."""

from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.tree import Tree

#: Differences of leaves whose entries are all smaller than this are judged as if the largest were
#: this: a bias that should be zero is rounding and nothing else.
SMALLEST = 1e-3


def difference(a: Tree, b: Tree, tolerance: float = 0.0) -> str | None:
    """What differs first by more than a tolerance, relative to a leaf's largest entry, if any."""
    shape, ours = tree.encode(tree.map(_as_tensor, a))
    other_shape, theirs = tree.encode(tree.map(_as_tensor, b))
    if ours.keys() != theirs.keys():
        return f"only one of them has {min(ours.keys() ^ theirs.keys())}"
    if shape != other_shape:
        return "they are built differently"
    for path, leaf in ours.items():
        gap = _gap(leaf, theirs[path], tolerance)
        if gap is not None:
            return f"{path} differs {gap}"
    return None


def _gap(a: Tensor, b: Tensor, tolerance: float) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return "in shape or dtype"
    if bool((a.eq(b) | (a.isnan() & b.isnan())).all()):
        return None
    gap, scale = float((a.double() - b.double()).abs().max()), float(a.double().abs().max())
    return None if gap <= tolerance * max(scale, SMALLEST) else f"by {gap:.2g}"


def _as_tensor(leaf: Any) -> Any:
    return torch.tensor(leaf, dtype=torch.float64) if isinstance(leaf, bool | int | float) else leaf

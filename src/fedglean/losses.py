"""Pure pieces that several methods share; all of them can be lifted."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedglean import tree
from fedglean.models import Model
from fedglean.randomness import Key, beta
from fedglean.tree import Tree


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Mean over the batch; labels are classes or soft."""
    return F.cross_entropy(logits, label)


def uniformity(logits: Tensor) -> Tensor:
    """Mean KL divergence of the predictions from the uniform distribution: log C minus entropy."""
    log_probability = logits.log_softmax(-1)
    entropy = -(log_probability.exp() * log_probability).sum(-1)
    return (math.log(logits.shape[-1]) - entropy).mean()


def sharpen(probability: Tensor, exponent: float) -> Tensor:
    """Probabilities to a power, normalised: the soft labels of eq. (8) in Fed-SHVR, MixMatch's sharpening."""
    return (exponent * probability.clamp(min=1e-30).log()).softmax(-1)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the softened outputs, mean over the batch; the teacher's gradient is stopped."""
    target = (teacher / temperature).softmax(-1).detach()
    return F.kl_div((student / temperature).log_softmax(-1), target, reduction="batchmean")


def mix_ratio(key: Key, concentration: float, like: Tensor) -> Tensor:
    """One Mixup ratio for a batch."""
    return beta(key, concentration, concentration).to(like.dtype)


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """Sum of squared differences over all leaves."""
    return sum(((x - y).square().sum() for x, y in zip(_leaves(a), _leaves(b), strict=True)), torch.zeros(()))


def _leaves(weights: Tree) -> list[Tensor]:
    return list(tree.named(weights).values())


def lanes(model: Model, *views: Tensor) -> Sequence[Tensor]:
    """Logits of several views, each normalised by its own batch statistics.

    On a GPU the views are lanes of an inner `vmap`: one wide call in place of several narrow ones. A running average
    is moved by one view after the other, so there it is not.
    """
    if views[0].is_cuda and model.architecture.norm != "running":
        return list(vmap(model)(torch.stack(views)))
    return [model(view) for view in views]

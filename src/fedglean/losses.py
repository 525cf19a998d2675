"""Pure pieces that several methods share; all of them can be lifted."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.models import Model
from fedglean.randomness import Key, beta, fold, order
from fedglean.tree import Tree


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Mean over the batch; labels are classes or soft.

    As a product: lifted, torch's own form for classes falls apart into three times as many
    operations.
    """
    return -(one_hot(label, logits) * logits.log_softmax(-1)).sum(-1).mean()


def masked_cross_entropy(
    logits: Tensor, label: Tensor, mask: Tensor, over: str = "batch"
) -> Tensor:
    """Cross-entropy where the mask is 1: mean over all the batch, as in FixMatch, or "masked"."""
    losses = F.cross_entropy(logits, label, reduction="none") * mask
    return losses.mean() if over == "batch" else losses.sum() / mask.sum().clamp(min=1)


def pseudo_label_loss(
    guess: Tensor, logits: Tensor, threshold: float, over: str = "batch"
) -> tuple[Tensor, Tensor]:
    """FixMatch's unlabelled loss, eq. (4), and the mask: 1 where the guess reaches the threshold.

    `logits` learn the likeliest class of the guess, which has no gradient.
    """
    confidence, label = guess.detach().softmax(-1).max(-1)
    mask = (confidence >= threshold).to(logits.dtype)
    return masked_cross_entropy(logits, label, mask, over), mask


def consistency(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of probabilities; the teacher has no gradient."""
    return (student.softmax(-1) - teacher.detach().softmax(-1)).square().mean()


def ramp(done: Tensor, over: float, shape: str = "linear") -> Tensor:
    """How much of its weight a term has: all once `done` reaches `over`, or always if that is 0.

    Linear from 0, or "sigmoid": exp(-5 (1 - x)^2), which starts at 0.0067 (Laine and Aila 2017).
    """
    share = (done / over).clamp(max=1.0) if over else torch.ones_like(done)
    return share if shape == "linear" else torch.exp(-5 * (1 - share).square())


def moving_average(average: Tree, new: Tree, decay: float | Tensor) -> Tree:
    """decay * average + (1 - decay) * new at every leaf."""
    return tree.map(lambda a, b: decay * a + (1 - decay) * b, average, new)


def one_hot(label: Tensor, like: Tensor) -> Tensor:
    """Labels as probabilities, in shape and dtype of such logits; soft ones stay as they are."""
    if label is None:
        raise ValueError(
            "these images have no labels; Predict(threshold=...) labels the confident ones"
        )
    if label.is_floating_point():
        return label
    return (label[:, None] == torch.arange(like.shape[-1], device=label.device)).to(like.dtype)


def uniformity(logits: Tensor) -> Tensor:
    """Mean KL divergence of the predictions from the uniform distribution: log C minus entropy."""
    log_probability = logits.log_softmax(-1)
    entropy = -(log_probability.exp() * log_probability).sum(-1)
    return (math.log(logits.shape[-1]) - entropy).mean()


def sharpen(probability: Tensor, exponent: float) -> Tensor:
    """Probabilities to a power, normalised: MixMatch's sharpening, eq. (8) of Fed-SHVR."""
    return (exponent * probability.clamp(min=1e-30).log()).softmax(-1)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the softened outputs; the teacher has no gradient."""
    target = (teacher / temperature).softmax(-1).detach()
    return F.kl_div((student / temperature).log_softmax(-1), target, reduction="batchmean")


def guess_label(views: Sequence[Tensor], exponent: float) -> Tensor:
    """MixMatch's guess, eqs. (6)-(7): the mean prediction over views, sharpened; no gradient."""
    mean = torch.stack([logits.detach().softmax(-1) for logits in views]).mean(0)
    return sharpen(mean, exponent)


def mix(key: Key, images: Tensor, label: Tensor, concentration: float) -> tuple[Tensor, Tensor]:
    """MixMatch's Mixup, eqs. (8)-(11): images and soft labels, each with another of the batch.

    One ratio for all, at least one half: what stands at a place stays mostly that, so a batch of
    labelled and unlabelled parts can be cut apart again.
    """
    ratio = mix_ratio(fold(key, "ratio"), concentration, like=images)
    ratio = torch.maximum(ratio, 1 - ratio)
    other = order(fold(key, "partners"), len(images))
    return ratio * images + (1 - ratio) * images[other], ratio * label + (1 - ratio) * label[other]


def mixmatch_losses(
    model: Model,
    labelled: tuple[Tensor, Tensor],
    views: Sequence[Tensor],
    exponent: float,
    concentration: float,
    key: Key,
) -> tuple[Tensor, Tensor]:
    """MixMatch's two losses, eqs. (3)-(4), once all images were mixed with one another.

    The mixed batch is normalised as a whole, which is what interleaving is after; guessing moves no
    running average.
    """
    images, label = labelled
    guess = guess_label(lanes(model.for_training(), *views), exponent)
    soft = torch.cat([one_hot(label, like=guess), *[guess] * len(views)])
    mixed, target = mix(key, torch.cat([images, *views]), soft, concentration)
    logits, count = model(mixed), len(images)
    error = logits[count:].softmax(-1) - target[count:]
    return cross_entropy(logits[:count], target[:count]), error.square().mean()


def mix_ratio(key: Key, concentration: float, like: Tensor) -> Tensor:
    """One Mixup ratio for a batch."""
    return beta(key, concentration, concentration).to(like.dtype)


def squared_distance(a: Tree, b: Tree) -> Tensor:
    """Sum of squared differences over all leaves."""
    squares = tree.map(lambda x, y: (x - y).square().sum(), a, b)
    return sum(pytree.tree_leaves(squares), torch.zeros(()))


def lanes(model: Model, *views: Tensor) -> Sequence[Tensor]:
    """Logits of several views, each normalised by its own batch statistics.

    On a GPU the views are lanes of an inner `vmap`: one wide call in place of several narrow ones.
    A running average is moved by one view after the other, so there it is not.
    """
    if views[0].is_cuda and model.architecture.norm != "running":
        return list(vmap(model)(torch.stack(views)))
    return [model(view) for view in views]


def jointly(model: Model, *parts: Tensor) -> Sequence[Tensor]:
    """Logits of several batches in one call, normalised by the statistics of all together."""
    return torch.split(model(torch.cat(parts)), [len(part) for part in parts])

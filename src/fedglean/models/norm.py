"""Normalisation layers as pure functions, and the statistics that static batch norm is tested with.

A normaliser takes the layer's name, the features and the layer's weight and bias. What it remembers
goes into a plain dict whose entries are replaced; no tensor of a model is written into, so
`torch.func.vmap` and `grad` go through.

Static batch norm (SemiFL, Appendix B) has no running averages. Its test statistics come from one
pass over the data, as sums that add up over batches and clients, from which both formulas follow:

    cumulative   mean over images of their batch's mean and unbiased variance; with equal batches
                 what PyTorch's `momentum=None` gives. The released code's, without the variance
                 between batches.
    pooled       mean and unbiased variance over all elements, as if all images were in one batch.
                 The paper's.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglean.errors import DataError, unknown

MOMENTUM, EPSILON = 0.1, 1e-5

Sums = Mapping[str, Tensor]


class Normaliser(Protocol):
    """Normalises the features of a layer; `epsilon` is what keeps a variance from being zero."""

    def __call__(
        self, name: str, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = EPSILON, /
    ) -> Tensor: ...


NORMS: dict[str, str] = {
    "static": "batch norm without running averages; statistics for tests are computed afterwards",
    "running": (
        "batch norm with running averages that are part of the model and averaged like weights"
    ),
    "group": "group norm; up to 32 groups of at least two channels",
    "instance": "every channel of every image by itself",
    "layer": "every image by itself",
}


def groups(kind: str, channels: int) -> int:
    """How many groups a layer of `channels` has; batch norms count as none.

    Group norm takes the largest divisor of the channels that is at most 32 and leaves two channels
    a group: with one channel a group it would be instance norm.
    """
    if kind == "group":
        return next(n for n in range(max(1, min(32, channels // 2)), 0, -1) if channels % n == 0)
    return {"instance": channels, "layer": 1}.get(kind, 0)


def batch(
    name: str, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = EPSILON, /
) -> Tensor:
    """By the batch's own mean and biased variance, never computed in half precision."""
    y = F.batch_norm(_wide(x), None, None, weight, bias, training=True, eps=epsilon)
    return y.to(x.dtype)


def fixed(
    statistics: Mapping[str, Tensor],
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float = EPSILON,
    /,
) -> Tensor:
    """By given statistics: a factor and a summand a channel. `F.batch_norm` is no faster, and
    `vmap` unrolls it.
    """
    factor = weight * torch.rsqrt(statistics[f"{name}.variance"] + epsilon)
    summand = bias - statistics[f"{name}.mean"] * factor
    shape = (-1, *[1] * (x.dim() - 2))
    return torch.addcmul(summand.reshape(shape), x, factor.reshape(shape)).to(x.dtype)


def grouped(
    kind: str, name: str, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = EPSILON, /
) -> Tensor:
    """By the statistics of one image's groups of channels."""
    return F.group_norm(x, groups(kind, x.shape[1]), weight, bias, epsilon)


def running(
    statistics: dict[str, Tensor],
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float = EPSILON,
    /,
) -> Tensor:
    """`batch`, and the averages in `statistics` move on; PyTorch's rule, with the unbiased
    variance.
    """
    y, mean, variance = _batch_and_moments(x, weight, bias, epsilon)
    for entry, new in ((f"{name}.mean", mean), (f"{name}.variance", variance)):
        old = statistics[entry]
        statistics[entry] = (1 - MOMENTUM) * old + MOMENTUM * new.to(old.dtype)
    return y


def recorded(
    sums: dict[str, Tensor],
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float = EPSILON,
    /,
) -> Tensor:
    """`batch`, and the layer's sums are put into `sums`.

    `square` sums the mean square, so that the pooled variance needs nothing that is not a sum;
    `elements` counts images times positions, which is what a channel's variance is over and what
    Bessel's correction of the pooled one needs.
    """
    images, elements = x.shape[0], x.shape[0] * math.prod(x.shape[2:])
    y, mean, variance = _batch_and_moments(x, weight, bias, epsilon)
    mean, variance = mean.double(), variance.double()
    sums[f"{name}.mean"] = images * mean
    sums[f"{name}.variance"] = images * variance
    sums[f"{name}.square"] = images * (variance * ((elements - 1) / elements) + mean**2)
    sums[f"{name}.elements"] = torch.tensor(float(elements), dtype=torch.float64, device=x.device)
    return y


def _batch_and_moments(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`batch`, with each channel's mean and unbiased variance.

    They are what batch norm leaves in fresh buffers with momentum 1, much faster than
    `torch.var_mean`. The buffers are `new_zeros`, which under `vmap` have a lane each as `x` has;
    `torch.zeros` would not.
    """
    wide = _wide(x)
    mean, variance = wide.new_zeros(x.shape[1]), wide.new_zeros(x.shape[1])
    y = F.batch_norm(wide, mean, variance, weight, bias, training=True, momentum=1.0, eps=epsilon)
    return y.to(x.dtype), mean, variance


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def in_training(kind: str, statistics: dict[str, Tensor]) -> Normaliser:
    """The normaliser of a training forward; `running` replaces the entries of `statistics`."""
    if kind == "static":
        return batch
    return partial(running, statistics) if kind == "running" else partial(grouped, kind)


def in_evaluation(kind: str, statistics: Mapping[str, Tensor]) -> Normaliser:
    """The normaliser of a test; static batch norm that has no statistics yet uses the batch's
    own.
    """
    if kind == "running" or (kind == "static" and statistics):
        return partial(fixed, statistics)
    return batch if kind == "static" else partial(grouped, kind)


def empty_sums(layers: Mapping[str, int], device: torch.device) -> dict[str, Tensor]:
    """What `recorded` sums up, of no image at all; `layers` names the channels of each layer."""
    sums = {"images": torch.zeros((), dtype=torch.float64, device=device)}
    for name, channels in layers.items():
        for part in ("mean", "variance", "square"):
            sums[f"{name}.{part}"] = torch.zeros(channels, dtype=torch.float64, device=device)
        sums[f"{name}.elements"] = torch.zeros((), dtype=torch.float64, device=device)
    return sums


def lowest(sums: Sums) -> dict[str, Tensor]:
    """How low each entry of sums or of statistics can be: a mean without end, all else no lower
    than 0.
    """
    return {
        name: torch.full_like(value, -math.inf if name.endswith(".mean") else 0.0)
        for name, value in sums.items()
    }


def cumulative(sums: Sums, name: str) -> tuple[Tensor, Tensor]:
    """The released code's mean and variance of one layer."""
    return sums[f"{name}.mean"] / sums["images"], sums[f"{name}.variance"] / sums["images"]


def pooled(sums: Sums, name: str) -> tuple[Tensor, Tensor]:
    """The paper's mean and variance of one layer, its N being images times positions."""
    mean, elements = sums[f"{name}.mean"] / sums["images"], sums[f"{name}.elements"]
    biased = (sums[f"{name}.square"] / sums["images"] - mean**2).clamp(min=0)
    return mean, biased * elements / (elements - 1).clamp(min=1)


FORMULAS: dict[str, Callable[[Sums, str], tuple[Tensor, Tensor]]] = {
    "cumulative": cumulative,
    "pooled": pooled,
}


def statistics_of(sums: Sums, layers: Mapping[str, int], formula: str) -> dict[str, Tensor]:
    """The statistics that `fixed` reads, in float64."""
    if formula not in FORMULAS:
        raise unknown("formula of batch-norm statistics", formula, FORMULAS)
    if not bool(sums["images"] > 0):
        raise DataError(
            "batch-norm statistics need at least one batch of two images, but none was recorded"
        )
    statistics = {}
    for name in layers:
        statistics[f"{name}.mean"], statistics[f"{name}.variance"] = FORMULAS[formula](sums, name)
    return statistics

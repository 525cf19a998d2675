"""A model and a data set with a smooth objective, for Fed-SHVR's theorem: a file for `use`.

A linear classifier's loss is smooth. It must not be able to fit all labels either: where it can,
gradients have no noise at the solution, and every method converges faster than a bound that reckons
with some. Four digits that look alike, seen as two by two pixels, leave it that noise.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglean.data.dataset import Dataset, channel_statistics
from fedglean.data.sources import load
from fedglean.models.layers import Layers, by_fan_in

KINDS = (3, 5, 8, 9)
#: Of "faint-digits": smaller inputs make a smoother loss, so that larger steps keep to the bounds,
#: and slower progress.
FAINT = 0.7


def linear(layers: Layers, images: Tensor) -> Tensor:
    """A linear map of the pixels without a bias."""
    pixels = images.flatten(1)
    shape = (layers.classes, pixels.shape[1])
    return F.linear(pixels, layers.parameter("weight", shape, by_fan_in, shape[1]))


def faint_digits(root: object = None) -> Dataset:
    """Coarse digits with inputs of a smaller size."""
    coarse = coarse_digits()
    return replace(coarse, name="faint-digits", std=tuple(each / FAINT for each in coarse.std))


def coarse_digits(root: object = None) -> Dataset:
    """Four kinds of scikit-learn's digits as four numbers each: the means of their quarters.

    The numbers are channels of an image of one pixel, so that each is normalised by itself.
    """
    digits = load("digits")
    train_images, train_labels = _quarter(digits.train_images, digits.train_labels)
    test_images, test_labels = _quarter(digits.test_images, digits.test_labels)
    mean, std = channel_statistics(train_images)
    return replace(
        digits,
        name="coarse-digits",
        classes=tuple(map(str, KINDS)),
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        mean=mean,
        std=std,
        pad=0,
    )


def _quarter(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    chosen = torch.isin(labels, torch.tensor(KINDS))
    quarters = images[chosen].double().reshape(-1, 2, 4, 2, 4).mean((2, 4)).reshape(-1, 4, 1, 1)
    return quarters.round().to(torch.uint8), torch.searchsorted(torch.tensor(KINDS), labels[chosen])


MODELS: dict[str, Callable[[Layers, Tensor], Tensor]] = {"linear": linear}
DATASETS: dict[str, Callable[..., Dataset]] = {
    "coarse-digits": coarse_digits,
    "faint-digits": faint_digits,
}

"""A data set as one value: all its images in memory, and how to look at them."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedglean.data.partition import Split


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels in 0..1, exact: counted, not summed.

    A channel without any contrast gets 1, so that normalising never divides by zero.
    """
    grey = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        share = torch.bincount(images[:, channel].reshape(-1), minlength=256).double()
        share = share / share.sum()
        mean = float(share @ grey)
        means.append(mean)
        deviations.append(math.sqrt(float(share @ (grey - mean) ** 2)) or 1.0)
    return tuple(means), tuple(deviations)


def _digests(images: Tensor) -> list[bytes]:
    return [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]


@dataclass(frozen=True)
class Dataset:
    """Images N x C x H x W in uint8 with int64 labels; -1 is an unknown label.

    `mean` and `std` are of pixels in 0..1. `flip` and `pad` say what a weak view may do: a
    horizontal flip, a crop after reflecting that many pixels. `given` is who holds what, if the
    user's own folders say it; published sets leave that to a partition. `mark` stands in for the
    pixels if another machine may decode them slightly differently.
    """

    name: str
    classes: tuple[str, ...]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    pad: int
    given: Split | None = None
    mark: str = ""

    def leaked(self) -> int:
        """How many test images are among the training images too, pixel for pixel."""
        known = set(_digests(self.train_images))
        return sum(each in known for each in _digests(self.test_images))

    @cached_property
    def digest(self) -> str:
        """A checksum of these very images and labels, in this order."""
        found = hashlib.sha256(repr((self.mark, self.classes, *self.train_images.shape)).encode())
        pixels = () if self.mark else (self.train_images, self.test_images)
        for part in (self.train_labels, self.test_labels, *pixels):
            found.update(part.cpu().contiguous().numpy())
        return found.hexdigest()

"""The folders of one party: the hub has hub/CLASS and perhaps test/CLASS, a branch has what
clients/NAME would hold.

Read one by one they give the same images in the same order as `data.folders` reads from all of them
together, so that a federation can be rehearsed as a simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.folders import File, at_the_hub, files_held, mark_of, pixels_of
from fedglean.data.own import UNKNOWN, refuse_untested
from fedglean.data.partition import Split
from fedglean.errors import DataError
from fedglean.inputs.images import Images

#: (labelled, unlabelled) images, once the classes are known.
Holdings = Callable[[Sequence[str]], tuple[Images, Images]]


class Counted(Protocol):
    """What the hub knows of a branch's images: how many, and for each channel the sum and the sum
    of squares of all their pixels.
    """

    @property
    def name(self) -> str: ...
    @property
    def labelled(self) -> int: ...
    @property
    def unlabelled(self) -> int: ...
    @property
    def sums(self) -> Sequence[int]: ...
    @property
    def squares(self) -> Sequence[int]: ...


def branch_images(folder: Path) -> Holdings:
    """Labelled are the images in folders that are called like one of the hub's classes."""

    def read(classes: Sequence[str]) -> tuple[Images, Images]:
        files = list(files_held(folder, 0, tuple(classes))) if folder.is_dir() else []
        if not files:
            raise DataError(f"{folder} holds no images; put the branch's images there")
        store, labels = torch.from_numpy(pixels_of(files)), _labels(files)
        is_known = labels != UNKNOWN
        labelled, unlabelled = is_known.nonzero()[:, 0], (~is_known).nonzero()[:, 0]
        return Images(store, labelled, labels[labelled]), Images(store, unlabelled)

    return read


@dataclass(frozen=True)
class HubImages:
    """What the hub itself has: images to train on, perhaps none, and images to test on."""

    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mark: str

    @property
    def shape(self) -> list[int]:
        return list(self.test_images.shape[1:])

    def to(self, device: torch.device) -> "HubImages":
        return replace(
            self,
            images=self.images.to(device),
            labels=self.labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
        )

    def dataset(self, branches: Sequence[Counted]) -> Dataset:
        """The hub's images beside what the branches declared, of which a split needs no more than
        the numbers.
        """
        total = len(self.images)
        sums, squares = pixel_sums(self.images)
        for each in branches:
            total += each.labelled + each.unlabelled
            sums = [a + b for a, b in zip(sums, each.sums, strict=True)]
            squares = [a + b for a, b in zip(squares, each.squares, strict=True)]
        _, height, width = self.shape
        mean, std = normalisation(max(1, total) * height * width, sums, squares)
        return Dataset(
            name="folder",
            classes=self.classes,
            train_images=self.images,
            train_labels=self.labels,
            test_images=self.test_images,
            test_labels=self.test_labels,
            mean=mean,
            std=std,
            flip=False,
            pad=min(height, width) // 8,
            given=split_of(len(self.images), branches),
            mark=self.mark,
        )


def hub_images(root: Path) -> HubImages:
    """As `data.folders` reads the hub's part. A hub without labels needs test/CLASS, which then
    names the classes.
    """
    classes, hub, test = at_the_hub(root)
    images = torch.from_numpy(pixels_of([*hub, *test]))
    labels, test_labels = _labels(hub), _labels(test)
    refuse_untested(root, classes, labels.numpy(), test_labels.numpy())
    mark = mark_of(root, [*hub, *test])
    return HubImages(classes, images[: len(hub)], labels, images[len(hub) :], test_labels, mark)


def pixel_sums(images: Tensor) -> tuple[list[int], list[int]]:
    """Of N x C x H x W images, a channel: the sum of all pixels in 0..255, and of their squares."""
    pixels = images.long()
    return pixels.sum(dim=(0, 2, 3)).tolist(), (pixels * pixels).sum(dim=(0, 2, 3)).tolist()


def normalisation(
    pixels: int, sums: Sequence[int], squares: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation a channel of pixels in 0..1, as `channel_statistics` has them; exact up to
    the last step.
    """
    means, deviations = [], []
    for total, square in zip(sums, squares, strict=True):
        variance = (pixels * square - total * total) / (255 * pixels) ** 2
        means.append(total / (255 * pixels))
        deviations.append(sqrt(variance) or 1.0)
    return tuple(means), tuple(deviations)


def split_of(hub: int, branches: Sequence[Counted]) -> Split:
    """Who holds how many. The hub has never seen a branch's image: an index beyond its own stands
    for one.
    """
    counts: list[int] = []
    for each in branches:
        counts += each.labelled, each.unlabelled
    parts = torch.split(torch.arange(sum(counts)) + hub, counts)
    names = tuple(each.name for each in branches)
    return Split(torch.arange(hub), parts[::2], parts[1::2], names)


def _labels(files: list[File]) -> Tensor:
    return torch.tensor([file.label for file in files], dtype=torch.int64)

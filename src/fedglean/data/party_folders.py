"""The folders of one party: the hub's hub/CLASS and test/CLASS, or a branch's clients/NAME.

Read one by one they give the same images in the same order as `data.folders` reads from all of them
together, so that a federation can be rehearsed as a simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.folders import at_the_hub, files_of_client, labels_of, mark_of, paths_of
from fedglean.data.own import UNKNOWN, refuse_untested
from fedglean.data.partition import Split
from fedglean.data.photos import AS_THEY_ARE, ImageForm, pixels_of
from fedglean.errors import DataError
from fedglean.inputs.images import Images

#: (labelled, unlabelled) images, once the classes and the form of all images are known.
Holdings = Callable[[Sequence[str], ImageForm], tuple[Images, Images]]


class Counted(Protocol):
    """How many images a branch has, and for each channel the sums of its pixels and squares."""

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

    def read(classes: Sequence[str], form: ImageForm = AS_THEY_ARE) -> tuple[Images, Images]:
        files = files_of_client(folder, 0, tuple(classes)) if folder.is_dir() else []
        if not files:
            raise DataError(f"{folder} holds no images; put the branch's images there")
        store, labels = pixels_of(paths_of(files), form), labels_of(files)
        is_known = labels != UNKNOWN
        labelled, unlabelled = is_known.nonzero()[:, 0], (~is_known).nonzero()[:, 0]
        return Images(store, labelled, labels[labelled]), Images(store, unlabelled)

    return read


def hub_images(root: Path, form: ImageForm = AS_THEY_ARE) -> Dataset:
    """As `data.folders` reads the hub's part; where it is empty, test/CLASS names the classes."""
    classes, hub, test = at_the_hub(root)
    images = pixels_of(paths_of([*hub, *test]), form)
    labels, test_labels = labels_of(hub), labels_of(test)
    refuse_untested(root, classes, labels, test_labels)
    alone = Dataset(
        name="folder",
        classes=classes,
        train_images=images[: len(hub)],
        train_labels=labels,
        test_images=images[len(hub) :],
        test_labels=test_labels,
        mean=(),
        std=(),
        flip=False,
        pad=min(images.shape[2:]) // 8,
        mark=mark_of(root, [*hub, *test]),
    )
    return with_branches(alone, [])


def with_branches(hub: Dataset, branches: Sequence[Counted]) -> Dataset:
    """The hub's images beside what the branches declared, of which only the numbers are needed."""
    total = len(hub.train_images)
    sums, squares = pixel_sums(hub.train_images)
    for each in branches:
        total += each.labelled + each.unlabelled
        sums = [a + b for a, b in zip(sums, each.sums, strict=True)]
        squares = [a + b for a, b in zip(squares, each.squares, strict=True)]
    height, width = hub.train_images.shape[2:]
    mean, std = normalisation(max(1, total) * height * width, sums, squares)
    return replace(hub, mean=mean, std=std, given=split_of(len(hub.train_images), branches))


def pixel_sums(images: Tensor) -> tuple[list[int], list[int]]:
    """Of N x C x H x W images, a channel: the sum of all pixels in 0..255, and of their squares."""
    pixels = images.long()
    return pixels.sum(dim=(0, 2, 3)).tolist(), (pixels * pixels).sum(dim=(0, 2, 3)).tolist()


def normalisation(
    pixels: int, sums: Sequence[int], squares: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation a channel of pixels in 0..1, exact up to the last step."""
    means, deviations = [], []
    for total, square in zip(sums, squares, strict=True):
        variance = (pixels * square - total * total) / (255 * pixels) ** 2
        means.append(total / (255 * pixels))
        deviations.append(sqrt(variance) or 1.0)
    return tuple(means), tuple(deviations)


def split_of(hub: int, branches: Sequence[Counted]) -> Split:
    """Who holds how many; an index beyond the hub's own stands for an image it has never seen."""
    counts: list[int] = []
    for each in branches:
        counts += each.labelled, each.unlabelled
    parts = torch.split(torch.arange(sum(counts)) + hub, counts)
    names = tuple(each.name for each in branches)
    return Split(torch.arange(hub), parts[::2], parts[1::2], names)

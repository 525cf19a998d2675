"""The folders of one party: the hub has hub/CLASS and perhaps test/CLASS, a branch has what
clients/NAME would hold.

Read one by one they give the same images in the same order as `data.folders` reads from all of them
together, so that a federation can be rehearsed as a simulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.folders import File, at_the_hub, files_held, mark_of, pixels_of
from fedglean.data.own import UNKNOWN, refuse_untested
from fedglean.data.partition import Split
from fedglean.errors import DataError
from fedglean.federation.branch import Holdings
from fedglean.federation.wire import Declaration
from fedglean.inputs.images import Images


def branch_images(folder: Path) -> Holdings:
    """Labelled are the images in folders that are called like one of the hub's classes."""

    def read(classes: Sequence[str]) -> tuple[Images, Images]:
        files = list(files_held(folder, 0, tuple(classes))) if folder.is_dir() else []
        if not files:
            raise DataError(f"{folder} holds no images; put the branch's images there")
        store, labels = (
            torch.from_numpy(pixels_of(files)),
            torch.tensor([file.label for file in files]),
        )
        known = labels != UNKNOWN
        (mine,), (its,) = known.nonzero(as_tuple=True), (~known).nonzero(as_tuple=True)
        return Images(store, mine, labels[mine]), Images(store, its)

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
        parts = ("images", "labels", "test_images", "test_labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in parts})

    def dataset(self, declared: Sequence[Declaration]) -> Dataset:
        """The hub's images beside what the branches declared, of which a split needs no more than
        the numbers.
        """
        total = len(self.images) + sum(each.labelled + each.unlabelled for each in declared)
        pixels = self.images.long()
        sums, squares = (part.sum(dim=(0, 2, 3)).tolist() for part in (pixels, pixels * pixels))
        for each in declared:
            sums, squares = (
                [a + b for a, b in zip(*pair, strict=True)]
                for pair in ((sums, each.sums), (squares, each.squares))
            )
        mean, std = normalisation(max(1, total) * self.shape[1] * self.shape[2], sums, squares)
        return Dataset(
            "folder",
            self.classes,
            self.images,
            self.labels,
            self.test_images,
            self.test_labels,
            mean,
            std,
            False,
            min(self.shape[1:]) // 8,
            split_of(len(self.images), declared),
            mark=self.mark,
        )


def hub_images(root: Path) -> HubImages:
    """As `data.folders` reads the hub's part. A hub without labels needs test/CLASS, which then
    names the classes.
    """
    classes, hub, test = at_the_hub(root)
    images = torch.from_numpy(pixels_of([*hub, *test]))
    labels, test_labels = (_labels(part) for part in (hub, test))
    refuse_untested(root, classes, labels.numpy(), test_labels.numpy())
    return HubImages(
        classes,
        images[: len(hub)],
        labels,
        images[len(hub) :],
        test_labels,
        mark_of(root, [*hub, *test]),
    )


def _labels(files: list[File]) -> Tensor:
    return torch.from_numpy(np.array([file.label for file in files], dtype=np.int64))


def normalisation(
    pixels: int, sums: Sequence[int], squares: Sequence[int]
) -> tuple[tuple[float, ...], ...]:
    """Mean and deviation a channel of pixels in 0..1, as `channel_statistics` has them; exact up to
    the last step.
    """
    mean = tuple(each / (255 * pixels) for each in sums)
    variances = [
        (pixels * b - a * a) / (255 * pixels) ** 2 for a, b in zip(sums, squares, strict=True)
    ]
    return mean, tuple(sqrt(each) or 1.0 for each in variances)


def split_of(hub: int, declared: Sequence[Declaration]) -> Split:
    """Who holds how many. The hub has never seen a branch's image: an index beyond its own stands
    for one.
    """
    counts = [count for each in declared for count in (each.labelled, each.unlabelled)]
    parts = torch.split(torch.arange(sum(counts)) + hub, counts)
    names = tuple(each.name for each in declared)
    return Split(torch.arange(hub), tuple(parts[::2]), tuple(parts[1::2]), names)

"""A user's own federation, from folders or arrays: the last step, and what is refused there."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglean.data.dataset import Dataset, channel_statistics
from fedglean.data.partition import Split
from fedglean.errors import DataError

HUB = -1
UNKNOWN = -1


@dataclass(frozen=True)
class Collected:
    """All images N x C x H x W of a federation. `owners` has a client's number or HUB, `labels` a
    class or UNKNOWN.
    """

    source: Path
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    mark: str = ""


def federated(name: str, own: Collected) -> Dataset:
    """The data set with its `given` split; mean and deviation are those of all training images,
    labelled or not.
    """
    _refuse(own)
    images = torch.from_numpy(own.images)
    mean, std = channel_statistics(images)
    return Dataset(
        name=name,
        classes=own.classes,
        train_images=images,
        train_labels=torch.from_numpy(own.labels),
        test_images=torch.from_numpy(own.test_images),
        test_labels=torch.from_numpy(own.test_labels),
        mean=mean,
        std=std,
        flip=False,
        pad=min(images.shape[-2:]) // 8,
        given=_split(own),
        mark=own.mark,
    )


def refuse_untested(
    source: Path,
    classes: tuple[str, ...],
    labels: NDArray[np.int64],
    test_labels: NDArray[np.int64],
) -> None:
    """Every class that there are labels of must be in the test set."""
    if lacking := sorted(set(labels.tolist()) - set(test_labels.tolist())):
        named = classes[lacking[0]]
        raise DataError(
            f"the test set of {source} has no images of the class '{named}', which has labels; add "
            "some"
        )


def _split(own: Collected) -> Split:
    def held(owner: int, labelled: bool) -> Tensor:
        return torch.from_numpy(
            np.flatnonzero((own.owners == owner) & ((own.labels != UNKNOWN) == labelled))
        )

    numbers = range(len(own.clients))
    return Split(
        hub=held(HUB, True),
        labelled=tuple(held(number, True) for number in numbers),
        unlabelled=tuple(held(number, False) for number in numbers),
        names=own.clients,
    )


def _refuse(own: Collected) -> None:
    if not own.clients:
        raise DataError(f"{own.source} has no clients; add at least one")
    for number, client in enumerate(own.clients):
        if not (own.owners == number).any():
            raise DataError(
                f"client '{client}' in {own.source} has no images; add some, or remove it"
            )
    if own.images.min() == own.images.max():
        raise DataError(
            f"all pixels of all training images in {own.source} are the same; nothing can be "
            "learnt from them"
        )
    known = np.unique(own.labels[own.labels != UNKNOWN])
    if not len(known):
        raise DataError(
            f"{own.source} has no labelled images; label a few of each class, at the hub or at a "
            "client"
        )
    refuse_untested(own.source, own.classes, known, own.test_labels)
    if unheard := sorted(set(own.test_labels.tolist()) - set(known.tolist())):
        named = own.classes[unheard[0]]
        raise DataError(
            f"nobody in {own.source} has labels of the class '{named}' of the test set; add some"
        )

"""A user's own federation, from folders or arrays: the last step, and what is refused there."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedglean.data.dataset import Dataset, channel_statistics
from fedglean.data.partition import Split
from fedglean.errors import DataError

HUB = -1
UNKNOWN = -1


@dataclass(frozen=True)
class Collected:
    """All images N x C x H x W of a federation.

    `owners` has a client's number or HUB for each, `labels` a class or UNKNOWN.
    """

    source: Path
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    images: Tensor
    labels: Tensor
    owners: Tensor
    test_images: Tensor
    test_labels: Tensor
    mark: str = ""


def dataset_of(name: str, own: Collected) -> Dataset:
    """The data set with its `given` split; mean and deviation are those of all training images."""
    _refuse(own)
    mean, std = channel_statistics(own.images)
    return Dataset(
        name=name,
        classes=own.classes,
        train_images=own.images,
        train_labels=own.labels,
        test_images=own.test_images,
        test_labels=own.test_labels,
        mean=mean,
        std=std,
        flip=False,
        pad=min(own.images.shape[-2:]) // 8,
        given=_split(own),
        mark=own.mark,
    )


def refuse_untested(
    source: Path, classes: tuple[str, ...], labels: Tensor, test_labels: Tensor
) -> None:
    """Every class that there are labels of must be in the test set."""
    lacking = sorted(set(labels.tolist()) - set(test_labels.tolist()))
    if lacking:
        raise DataError(
            f"the test set of {source} has no images of the class '{classes[lacking[0]]}', which "
            "has labels; add some"
        )


def _split(own: Collected) -> Split:
    is_known = own.labels != UNKNOWN
    labelled, unlabelled = [], []
    for number in range(len(own.clients)):
        is_mine = own.owners == number
        labelled.append((is_mine & is_known).nonzero()[:, 0])
        unlabelled.append((is_mine & ~is_known).nonzero()[:, 0])
    hub = (own.owners == HUB).nonzero()[:, 0]
    return Split(hub, tuple(labelled), tuple(unlabelled), own.clients)


def _refuse(own: Collected) -> None:
    if not own.clients:
        raise DataError(f"{own.source} has no clients; add at least one")
    for number, client in enumerate(own.clients):
        if not (own.owners == number).any():
            raise DataError(f"client '{client}' in {own.source} has no images; add some")
    if own.images.min() == own.images.max():
        raise DataError(f"all training pixels in {own.source} are the same; they teach nothing")
    known = own.labels[own.labels != UNKNOWN]
    if not len(known):
        raise DataError(f"{own.source} has no labelled images; label a few of each class")
    refuse_untested(own.source, own.classes, known, own.test_labels)
    unheard = sorted(set(own.test_labels.tolist()) - set(known.tolist()))
    if unheard:
        raise DataError(
            f"nobody in {own.source} has labels of the class '{own.classes[unheard[0]]}' of the "
            "test set; add some"
        )

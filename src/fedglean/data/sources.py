"""Data sets by name: scikit-learn's digits, published sets from disk, a user's own images.

Nothing is downloaded. Whatever is read of a published set is compared with known checksums, in any
layout, so that two people who name the same set train on the same pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedglean.data.arrays import from_npz
from fedglean.data.catalogue import PUBLISHED, Published
from fedglean.data.dataset import Dataset, channel_statistics
from fedglean.data.folders import from_folder
from fedglean.data.formats import Part, digest
from fedglean.data.layouts import Found, find, places
from fedglean.errors import ConfigError, DataError, unknown
from fedglean.randomness import key, order

__all__ = ["DATASETS", "PUBLISHED", "Dataset", "Published", "Source", "load", "load_published"]


@dataclass(frozen=True)
class Source:
    """A data set under a name: how it is read, and whether from a place on disk."""

    load: Callable[..., Dataset]
    summary: str
    is_on_disk: bool = False


def load(
    name: str,
    root: Path | None = None,
    allow_partial: bool = False,
    images: int | None = None,
    source: Source | None = None,
) -> Dataset:
    """The data set `name`, read from below `root`; `npz` is the file `root`, digits need none.

    `allow_partial` accepts a published set of which only some parts are on disk; `images` uses only
    that many training images, the same ones in every run; `source` is what the name stands for, by
    default the package's.
    """
    source = source or source_of(name)
    if root is None and source.is_on_disk:
        place = "mine.npz" if name == "npz" else "FOLDER"
        raise ConfigError(
            f"the data set '{name}' is read from disk; say where it is with --data-root {place}, "
            "or use 'digits', which is built in"
        )
    if root is not None and name == "digits":
        raise ConfigError("'digits' is built in; for your own images use --data folder")
    options = {"allow_partial": allow_partial} if name in PUBLISHED else {}
    dataset = source.load(None if root is None else Path(root), **options)
    _check(name, dataset)
    return dataset if images is None else _some_of(dataset, images)


def source_of(name: str, known: Mapping[str, Source] | None = None) -> Source:
    """What a name stands for; a path in its place is probably that of the user's own images."""
    known = DATASETS if known is None else known
    if name in known:
        return known[name]
    place = Path(name)
    if place.exists():
        raise ConfigError(
            f"'{name}' is a path on disk, not the name of a data set; for your own images use "
            f"--data {'folder' if place.is_dir() else 'npz'} --data-root {name}"
        )
    raise unknown("data set", name, known)


def _some_of(dataset: Dataset, images: int) -> Dataset:
    if dataset.given is not None:
        raise ConfigError(f"'{dataset.name}' says who holds which images; leave out data.images")
    count = len(dataset.train_images)
    if images > count:
        raise ConfigError(
            f"data.images is {images}, but {dataset.name} has only {count} training images; use at "
            f"most {count}"
        )
    chosen = order(key(0, "images"), count)[:images].sort().values
    return replace(
        dataset,
        train_images=dataset.train_images[chosen],
        train_labels=dataset.train_labels[chosen],
    )


def load_published(known: Published, root: Path, allow_partial: bool = False) -> Dataset:
    """Find, decode and check one published set."""
    found = _find_layout(known, root)
    if found.missing and not allow_partial:
        raise DataError(
            f"{known.name} is incomplete: {found.missing[0]} is missing; get it with "
            f"{known.fetch}, or use what there is with --allow-partial"
        )
    parts: dict[str, list[Part]] = {"train": [], "test": []}
    for part in found.layout.read(found.files):
        if digest(part) != known.digests.get(part.name):
            raise DataError(
                f"{part.source} does not hold the published images or labels of {known.name} (the "
                f"checksum of part '{part.name}' differs); get it again with {known.fetch}"
            )
        parts[part.name.partition("_")[0]].append(part)
    for split, size in zip(parts, known.sizes, strict=True):
        count = sum(len(part.labels) for part in parts[split])
        if count < size and not (allow_partial and count):
            raise DataError(
                f"only {count} of {size} {split} images of {known.name} are in {root}; get the "
                f"rest with {known.fetch}"
            )
    train_images, train_labels = _join(parts["train"])
    test_images, test_labels = _join(parts["test"])
    return Dataset(
        name=known.name,
        classes=known.classes,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        mean=known.mean,
        std=known.std,
        flip=known.flip,
        pad=known.pad,
    )


def _find_layout(known: Published, root: Path) -> Found:
    found = find(known.layouts, root)
    if found is not None:
        return found
    above = root.absolute().parent
    if find(known.layouts, above):
        raise DataError(
            f"there is no {known.name} in {root}, but there is in the folder above; use "
            f"--data-root {above}"
        )
    raise DataError(
        f"there is no {known.name} in {root}; get it with {known.fetch}, or name a folder that "
        f"has {places(known.layouts)}"
    )


def _join(parts: list[Part]) -> tuple[Tensor, Tensor]:
    """Images and labels of one split in published order, colour first."""
    order = np.argsort(np.concatenate([part.positions for part in parts]), kind="stable")
    images = np.concatenate([part.images for part in parts])[order].transpose(0, 3, 1, 2)
    labels = np.concatenate([part.labels for part in parts])[order]
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def _check(name: str, dataset: Dataset) -> None:
    """What the rest relies on; a function of the user's own may have made it."""
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"'{name}' must return a fedglean.data.dataset.Dataset, not a {type(dataset).__name__}"
        )
    _check_part(name, "training", dataset, dataset.train_images, dataset.train_labels)
    _check_part(name, "test", dataset, dataset.test_images, dataset.test_labels)


def _check_part(name: str, part: str, dataset: Dataset, images: Tensor, labels: Tensor) -> None:
    channels, classes = len(dataset.mean), len(dataset.classes)
    are_images = images.dtype == torch.uint8 and images.ndim == 4
    are_labels = labels.dtype == torch.int64 and labels.shape == images.shape[:1] and len(labels)
    if not (are_images and are_labels and images.shape[1] == channels == len(dataset.std)):
        raise DataError(
            f"the {part} images of '{name}' must be uint8 of n x {channels} x height x width with "
            f"n > 0 labels of int64, not {images.dtype} of {tuple(images.shape)} with "
            f"{labels.dtype} of {tuple(labels.shape)}"
        )
    lowest = -1 if part == "training" else 0
    if not lowest <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(f"the {part} labels of '{name}' must be from {lowest} to {classes - 1}")


def _digits(root: Path | None) -> Dataset:
    """scikit-learn's 1797 digits of 8 x 8; their 17 grey levels are spread over 0..255."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    grey = torch.from_numpy((raw.images.astype(np.int64) * 255 + 8) // 16)
    images = grey.to(torch.uint8)[:, None]
    labels = torch.from_numpy(raw.target.astype(np.int64))
    shuffled = order(key(0, "digits", "split"), len(labels))
    train, test = shuffled[:1437], shuffled[1437:]
    mean, std = channel_statistics(images[train])
    return Dataset(
        name="digits",
        classes=tuple("0123456789"),
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        mean=mean,
        std=std,
        flip=False,
        pad=1,
    )


def _published() -> Mapping[str, Source]:
    sources = {}
    for name, known in PUBLISHED.items():
        summary = (
            f"{sum(known.sizes):,} images of {len(known.classes)} classes, from disk; get it with "
            f"{known.fetch}"
        )
        sources[name] = Source(partial(load_published, known), summary, is_on_disk=True)
    return sources


#: Those that say by themselves who holds what.
OWN = ("folder", "npz")
DATASETS: Mapping[str, Source] = {
    "digits": Source(_digits, "scikit-learn's 1,797 images of 8 x 8 pixels, built in"),
    **_published(),
    "folder": Source(
        from_folder, "your own: hub/CLASS/*.png, clients/NAME/** or clients/NAME/CLASS/*", True
    ),
    "npz": Source(from_npz, "your own arrays in one .npz file", True),
}

"""Data sets by name: scikit-learn's digits, published sets from disk, a user's own images.

Nothing is downloaded. Whatever is read of a published set is compared with known checksums, in any
layout, so that two people who name the same set train on the same pixels.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedglean.data.arrays import from_npz
from fedglean.data.cache import Tensors, cached
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
    on_disk: bool = False


def load(
    name: str,
    root: Path | None = None,
    allow_partial: bool = False,
    images: int | None = None,
    source: Source | None = None,
) -> Dataset:
    """The data set `name`, read from below `root` (for `npz`: from the file `root`; digits need
    none).

    `allow_partial` accepts a published set of which only some parts are on disk; `images` uses only
    that many training images, the same ones in every run; `source` is what the name stands for, by
    default the package's.
    """
    source = source or source_of(name)
    if root is None and source.on_disk:
        place = "mine.npz" if name == "npz" else "FOLDER"
        raise ConfigError(
            f"the data set '{name}' is read from disk; say where it is with --data-root {place}, "
            "or use 'digits', which is built in"
        )
    if root is not None and name == "digits":
        raise ConfigError(
            f"'digits' is built in and reads nothing from {root}; for your own images use --data "
            "folder"
        )
    options = {"allow_partial": allow_partial} if name in PUBLISHED else {}
    dataset = source.load(None if root is None else Path(root), **options)
    _check(name, dataset)
    return dataset if images is None else _some_of(dataset, images)


def source_of(name: str, known: Mapping[str, Source] | None = None) -> Source:
    """What a name stands for; a path in its place is probably that of the user's own images."""
    known = DATASETS if known is None else known
    if name in known:
        return known[name]
    if (place := Path(name)).exists():
        raise ConfigError(
            f"'{name}' is a path on disk, not the name of a data set; for your own images use "
            f"--data {'folder' if place.is_dir() else 'npz'} --data-root {name}"
        )
    raise unknown("data set", name, known)


def _some_of(dataset: Dataset, images: int) -> Dataset:
    if dataset.given is not None:
        raise ConfigError(
            f"'{dataset.name}' says itself who holds which images; leave out data.images"
        )
    if images > (count := len(dataset.train_images)):
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
    found = _found(known, root)
    decode = partial(_decode, known, found)
    tensors = cached(known.name, found.files.values(), decode) if found.layout.slow else decode()
    _check_complete(known, tensors, root, allow_partial)
    return Dataset(
        name=known.name,
        classes=known.classes,
        train_images=tensors["train_images"],
        train_labels=tensors["train_labels"],
        test_images=tensors["test_images"],
        test_labels=tensors["test_labels"],
        mean=known.mean,
        std=known.std,
        flip=known.flip,
        pad=known.pad,
    )


def _found(known: Published, root: Path) -> Found:
    found = find(known.layouts, root)
    if found is None and find(known.layouts, above := root.absolute().parent):
        raise DataError(
            f"there is no {known.name} in {root}, but there is in the folder above; use "
            f"--data-root {above}"
        )
    if found is None:
        where = places(known.layouts)
        raise DataError(
            f"there is no {known.name} in {root}; get it with {known.fetch}, or name a folder that "
            f"has {where}"
        )
    if found.missing:
        raise DataError(
            f"{known.name} is incomplete: {found.missing[0]} is missing; get it with {known.fetch}"
        )
    return found


def _decode(known: Published, found: Found) -> Tensors:
    parts = list(found.layout.read(found.files))
    for part in parts:
        if digest(part) != known.digests.get(part.name):
            raise DataError(
                f"{part.source} does not hold the published images or labels of {known.name} (the "
                "checksum of part "
                f"'{part.name}' differs); get it again with {known.fetch}"
            )
    tensors: dict[str, Tensor] = {}
    for split in ("train", "test"):
        tensors |= _joined(split, [part for part in parts if part.name.startswith(split)])
    return tensors


def _joined(split: str, parts: Iterable[Part]) -> Tensors:
    """The parts of one split in published order, colour first."""
    ordered = sorted(parts, key=lambda part: part.name)
    if not ordered:
        empty = torch.zeros(0, dtype=torch.int64)
        return {
            f"{split}_images": torch.zeros(0, 0, 0, 0, dtype=torch.uint8),
            f"{split}_labels": empty,
        }
    places = np.argsort(np.concatenate([part.positions for part in ordered]), kind="stable")
    images = np.concatenate([part.images for part in ordered]).transpose(0, 3, 1, 2)[places]
    labels = np.concatenate([part.labels for part in ordered])[places]
    return {
        f"{split}_images": torch.from_numpy(np.ascontiguousarray(images)),
        f"{split}_labels": torch.from_numpy(labels.astype(np.int64)),
    }


def _check_complete(known: Published, tensors: Tensors, root: Path, allow_partial: bool) -> None:
    have = len(tensors["train_labels"]), len(tensors["test_labels"])
    if have == known.sizes:
        return
    count = f"{have[0]} of {known.sizes[0]} training and {have[1]} of {known.sizes[1]} test images"
    if 0 in have:
        raise DataError(
            f"only {count} of {known.name} are in {root}; get the rest with {known.fetch}"
        )
    if not allow_partial:
        raise DataError(
            f"only {count} of {known.name} are in {root}; get the rest with {known.fetch}, or use "
            "these with "
            "--allow-partial"
        )


def _check(name: str, dataset: Dataset) -> None:
    """What the rest relies on; a function of the user's own may have made it."""
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"'{name}' must return a fedglean.data.dataset.Dataset, not a {type(dataset).__name__}"
        )
    channels, classes = len(dataset.mean), len(dataset.classes)
    parts = {
        "training": (dataset.train_images, dataset.train_labels),
        "test": (dataset.test_images, dataset.test_labels),
    }
    for part, (images, labels) in parts.items():
        fits = (
            images.dtype == torch.uint8
            and images.ndim == 4
            and images.shape[1] == channels == len(dataset.std)
        )
        if (
            not fits
            or labels.dtype != torch.int64
            or labels.shape != images.shape[:1]
            or not len(labels)
        ):
            raise DataError(
                f"the {part} images of '{name}' must be uint8 of n x {channels} x height x width "
                "with n > 0 labels of "
                f"int64, not {images.dtype} of {tuple(images.shape)} with {labels.dtype} of "
                f"{tuple(labels.shape)}"
            )
        lowest = -1 if part == "training" else 0
        if not lowest <= int(labels.min()) <= int(labels.max()) < classes:
            raise DataError(f"the {part} labels of '{name}' must be from {lowest} to {classes - 1}")


def _digits(root: Path | None) -> Dataset:
    """scikit-learn's 1797 digits of 8 x 8, the one set that needs no file; 17 grey levels are
    spread over 0..255.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.from_numpy((raw.images.astype(np.int64) * 255 + 8) // 16).to(torch.uint8)[
        :, None
    ]
    labels = torch.from_numpy(raw.target.astype(np.int64))
    shuffled = order(key(0, "digits", "split"), len(labels))
    train, test = shuffled[:1437], shuffled[1437:]
    mean, std = channel_statistics(images[train])
    return Dataset(
        "digits",
        tuple("0123456789"),
        images[train],
        labels[train],
        images[test],
        labels[test],
        mean,
        std,
        False,
        1,
    )


def _line(known: Published) -> str:
    return (
        f"{sum(known.sizes):,} images of {len(known.classes)} classes, from disk; get it with "
        f"{known.fetch}"
    )


#: Those that say by themselves who holds what.
OWN = ("folder", "npz")
DATASETS: Mapping[str, Source] = {
    "digits": Source(_digits, "scikit-learn's 1,797 images of 8 x 8 pixels, built in"),
    **{
        name: Source(partial(load_published, known), _line(known), True)
        for name, known in PUBLISHED.items()
    },
    "folder": Source(
        from_folder, "your own: hub/CLASS/*.png, clients/NAME/** or clients/NAME/CLASS/*", True
    ),
    "npz": Source(from_npz, "your own arrays in one .npz file", True),
}

"""Data sets by name: scikit-learn's digits, published sets from disk, a user's own images.

Nothing is downloaded. Whatever is read of a published set is compared with known checksums, in any
layout, so that two people who name the same set train on the same pixels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedglean.data.arrays import from_npz
from fedglean.data.catalogue import PUBLISHED
from fedglean.data.dataset import Dataset, channel_statistics
from fedglean.data.folders import from_folder
from fedglean.data.photos import AS_THEY_ARE, ImageForm
from fedglean.data.published import load_published
from fedglean.errors import ConfigError, DataError, unknown
from fedglean.randomness import key, order

__all__ = ["DATASETS", "PUBLISHED", "Dataset", "Source", "load"]


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
    form: ImageForm = AS_THEY_ARE,
) -> Dataset:
    """The data set `name`, read from below `root`; `npz` is the file `root`, digits need none.

    `allow_partial` accepts a published set of which only some parts are on disk; `images` uses only
    that many training images, the same ones in every run; `source` is what the name stands for, by
    default the package's; `form` is what images in a user's own folders are brought to.
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
    options: dict[str, Any] = {"allow_partial": allow_partial} if name in PUBLISHED else {}
    if form != AS_THEY_ARE:
        if name != "folder":
            raise ConfigError(
                f"the images of '{name}' have one size already; leave out data.image_size, which "
                "is for images in folders of your own"
            )
        options["form"] = form
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

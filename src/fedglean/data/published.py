"""A published set on disk: where its files may be, and whether they are what was published.

Layouts are tried in their order; the first one that is whole wins.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.formats import Files, Part, digest
from fedglean.errors import DataError


@dataclass(frozen=True)
class Layout:
    """Files with these names in one of these folders, and how they are read."""

    folders: tuple[str, ...]
    names: tuple[str, ...]
    read: Callable[[Files], Iterable[Part]]


@dataclass(frozen=True)
class Found:
    """A layout met on disk; `missing` names what it lacks."""

    layout: Layout
    files: Files
    missing: tuple[Path, ...]


@dataclass(frozen=True)
class Published:
    """A published data set; `sizes` are the numbers of training and test images.

    `fetch` says how to get it, `digests` has the checksums of its parts.
    """

    name: str
    fetch: str
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    layouts: tuple[Layout, ...]
    digests: Mapping[str, str]
    pad: int = 4


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


def find(layouts: Iterable[Layout], root: Path) -> Found | None:
    """The first complete layout below `root`, or the first of which there is anything at all."""
    begun: Found | None = None
    for layout in layouts:
        for folder in layout.folders:
            found = _look(layout, root / folder)
            if not found.missing:
                return found
            if found.files and begun is None:
                begun = found
    return begun


def places(layouts: Iterable[Layout]) -> str:
    """All places that are looked at, for an error message."""
    first: list[str] = []
    for layout in layouts:
        first += [str(Path(folder) / layout.names[0]) for folder in layout.folders]
    return ", ".join(first)


def _look(layout: Layout, folder: Path) -> Found:
    files: dict[str, Path] = {}
    missing: list[Path] = []
    for name in layout.names:
        path = folder / name
        if not path.is_file():
            path = folder / f"{name}.gz"
        if path.is_file():
            files[name] = path
        else:
            missing.append(folder / name)
    return Found(layout, files, tuple(missing))

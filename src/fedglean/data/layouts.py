"""Where the files of a published set may be, in the order in which they are tried.

First torchvision's layout, then what the original sites hand out; the first one that is whole wins.
Files of (Fashion-)MNIST may still be gzipped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedglean.data.formats import (
    CIFAR10_BATCHES,
    Files,
    Part,
    cifar10_parts,
    cifar100_parts,
    idx_parts,
    svhn_parts,
)


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


_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_PICKLES = tuple(CIFAR10_BATCHES)
_RECORDS = tuple(f"{name}.bin" for name in CIFAR10_BATCHES)
_MATS = ("train_32x32.mat", "test_32x32.mat")

LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "mnist": (Layout(("MNIST/raw", "mnist", "."), _IDX, idx_parts),),
    "fashion-mnist": (
        Layout(("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "."), _IDX, idx_parts),
    ),
    "cifar10": (
        Layout(("cifar-10-batches-py",), _PICKLES, cifar10_parts),
        Layout((".", "cifar10"), ("cifar-10-python.tar.gz",), cifar10_parts),
        Layout(("cifar-10-batches-bin",), _RECORDS, cifar10_parts),
        Layout((".", "cifar10"), ("cifar-10-binary.tar.gz",), cifar10_parts),
    ),
    "cifar100": (
        Layout(("cifar-100-python",), ("train", "test"), cifar100_parts),
        Layout((".", "cifar100"), ("cifar-100-python.tar.gz",), cifar100_parts),
        Layout(("cifar-100-binary",), ("train.bin", "test.bin"), cifar100_parts),
        Layout((".", "cifar100"), ("cifar-100-binary.tar.gz",), cifar100_parts),
    ),
    "svhn": (Layout((".", "svhn", "SVHN"), _MATS, svhn_parts),),
}

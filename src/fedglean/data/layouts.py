"""Where the files of a published set may be, in the order in which they are tried.

First torchvision's layout, then what the original sites hand out, then the compact form; the first
layout that is whole wins. idx files may still be gzipped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedglean.data.compact import SVHN_SHEETS, cifar10_sheets, cifar100_sheets, svhn_cuts
from fedglean.data.formats import (
    Files,
    Part,
    cifar10_pickles,
    cifar10_records,
    cifar100_pickles,
    cifar100_records,
    idx_parts,
    svhn_mats,
)


@dataclass(frozen=True)
class Layout:
    """Files with these names in one of these folders, `optional` ones if they are there; `slow` is
    worth a cache.
    """

    folders: tuple[str, ...]
    names: tuple[str, ...]
    read: Callable[[Files], Iterable[Part]]
    slow: bool = False
    optional: tuple[str, ...] = ()
    endings: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Found:
    """A layout met on disk; `missing` names what it lacks."""

    layout: Layout
    files: Files
    missing: tuple[Path, ...]


def find(layouts: Iterable[Layout], root: Path) -> Found | None:
    """The first complete layout below `root`, else the first of which there is anything at all,
    else None.
    """
    seen = [_look(layout, root / folder) for layout in layouts for folder in layout.folders]
    whole = [found for found in seen if not found.missing]
    begun = [found for found in seen if found.files]
    return next(iter(whole or begun), None)


def places(layouts: Iterable[Layout]) -> str:
    """All places that are looked at, for an error message."""
    return ", ".join(
        str(Path(folder) / layout.names[0]) for layout in layouts for folder in layout.folders
    )


def _look(layout: Layout, folder: Path) -> Found:
    files: dict[str, Path] = {}
    for name in (*layout.names, *layout.optional):
        for path in (folder / f"{name}{ending}" for ending in layout.endings):
            if path.is_file():
                files.setdefault(name, path)
    missing = tuple(folder / name for name in layout.names if name not in files)
    return Found(layout, files, missing)


def _idx(*folders: str) -> tuple[Layout, ...]:
    names = [
        f"{stem}-{kind}-ubyte"
        for stem in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    return (Layout((*folders, "."), tuple(names), idx_parts, endings=("", ".gz")),)


_CIFAR10 = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)
_CIFAR10_SHEETS = ("labels.npz", *(f"train_{i}.webp" for i in range(5)), "test_0.webp")
_CIFAR100_SHEETS = (*(f"train_{i}.webp" for i in range(10)), "test_0.webp", "test_1.webp")
_SVHN_CUTS = tuple(
    name
    for part, sheets in SVHN_SHEETS.items()
    for name in (f"{part}.npz", *(f"{part}_{i:02d}.webp" for i in range(sheets)))
)

LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "mnist": _idx("MNIST/raw", "mnist"),
    "fashion-mnist": _idx("FashionMNIST/raw", "fashion-mnist", "fashion_mnist"),
    "cifar10": (
        Layout(("cifar-10-batches-py",), _CIFAR10, cifar10_pickles),
        Layout((".", "cifar10"), ("cifar-10-python.tar.gz",), cifar10_pickles, slow=True),
        Layout(
            ("cifar-10-batches-bin",), tuple(f"{name}.bin" for name in _CIFAR10), cifar10_records
        ),
        Layout((".", "cifar10"), ("cifar-10-binary.tar.gz",), cifar10_records, slow=True),
        Layout(("cifar10",), _CIFAR10_SHEETS, cifar10_sheets, slow=True),
    ),
    "cifar100": (
        Layout(("cifar-100-python",), ("train", "test"), cifar100_pickles),
        Layout((".", "cifar100"), ("cifar-100-python.tar.gz",), cifar100_pickles, slow=True),
        Layout(("cifar-100-binary",), ("train.bin", "test.bin"), cifar100_records),
        Layout((".", "cifar100"), ("cifar-100-binary.tar.gz",), cifar100_records, slow=True),
        Layout(
            ("cifar100",), ("labels.npz",), cifar100_sheets, slow=True, optional=_CIFAR100_SHEETS
        ),
    ),
    "svhn": (
        Layout((".", "svhn", "SVHN"), ("train_32x32.mat", "test_32x32.mat"), svhn_mats, slow=True),
        Layout(("svhn",), _SVHN_CUTS, svhn_cuts, slow=True),
    ),
}

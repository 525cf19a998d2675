"""A user's own images in folders.

    root/hub/CLASS/...               labelled at the hub; the folders' names are the classes
    root/clients/NAME/...            a client's unlabelled images, at any depth
    root/clients/NAME/CLASS/...      a client's labelled images
    root/clients/NAME/unlabelled/... never labelled, whatever the folders below are called
    root/test/CLASS/...              the test set; without it a share of the hub's is held out

Without a hub the folders of test/ are the classes. A client's folder that is not a class is just a
folder, unless it is beside folders that are: then it is taken for a misspelt class and refused.
Links to folders are followed. Names that begin with a dot and files that are not images are
ignored.
"""

import hashlib
import os
import unicodedata
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.own import HUB, UNKNOWN, Collected, dataset_of
from fedglean.data.photos import AS_THEY_ARE, ImageForm, pixels_of
from fedglean.errors import DataError
from fedglean.randomness import key, uniform

_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm"}
)
#: Images too, but not read here: passed over, they would be missing without a word.
_OTHER_IMAGES = frozenset({".heic", ".heif", ".avif", ".jp2", ".dcm", ".dicom", ".dng", ".svg"})
_UNLABELLED = "unlabelled"
#: The share of a hub's images that is its test set, where it has no other.
HELD_OUT = 0.2


@dataclass(frozen=True)
class File:
    path: Path
    label: int
    owner: int = HUB


def from_folder(root: Path, form: ImageForm = AS_THEY_ARE) -> Dataset:
    """The federation that `root` describes, its images brought to one form."""
    if not root.is_dir():
        raise DataError(
            f"{root} is not a folder; name one with hub/CLASS, clients/NAME and optionally "
            "test/CLASS in it"
        )
    _refuse_misspelt(root)
    clients = subfolders(root / "clients")
    classes, train, test = at_the_hub(root)
    for number, client in enumerate(clients):
        train += files_of_client(client, number, classes)
    images = pixels_of(paths_of([*train, *test]), form)
    return dataset_of(
        "folder",
        Collected(
            source=root,
            classes=classes,
            clients=tuple(client.name for client in clients),
            images=images[: len(train)],
            labels=labels_of(train),
            owners=torch.tensor([file.owner for file in train]),
            test_images=images[len(train) :],
            test_labels=labels_of(test),
            mark=mark_of(root, [*train, *test]),
        ),
    )


def _refuse_misspelt(root: Path) -> None:
    """A folder `Test` or `client` would be passed over for its name, with all that is in it."""
    missing = [name for name in ("hub", "clients", "test") if not (root / name).is_dir()]
    for path in sorted(root.iterdir()):
        near = get_close_matches(path.name.casefold(), missing, n=1, cutoff=0.8)
        if near and path.is_dir():
            raise DataError(f"{path} must be called '{near[0]}'; rename it")


def subfolders(folder: Path) -> list[Path]:
    """The folders directly below, by name; an image beside them belongs to nobody."""
    if not folder.is_dir():
        return []
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    _refuse_broken_links(inside)
    for path in inside:
        if path.is_file() and path.suffix.lower() in _SUFFIXES:
            raise DataError(f"{path} lies beside the folders in {folder}; move it into one of them")
    return [path for path in inside if path.is_dir()]


def _refuse_broken_links(paths: list[Path]) -> None:
    """Links to a disk that is not there, say: their images would be missing without a word."""
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise DataError(f"{path} is a link that leads nowhere; repair or remove it")


def _images_below(folder: Path) -> list[Path]:
    """All images below, by path."""
    found: list[Path] = []
    seen = {folder.resolve()}
    for place, folders, names in os.walk(folder, followlinks=True):
        visible = [name for name in sorted(folders) if not name.startswith(".")]
        real = {name: Path(place, name).resolve() for name in visible}
        folders[:] = [name for name in visible if real[name] not in seen]  # a link may lead back
        seen.update(real.values())
        found += [Path(place, name) for name in names if not name.startswith(".")]
    found.sort()
    _refuse_broken_links(found)
    images = []
    for path in found:
        if path.suffix.lower() in _OTHER_IMAGES:
            raise DataError(f"{path} is of a kind that cannot be read; convert it to png or jpg")
        if path.suffix.lower() in _SUFFIXES and path.is_file():
            if not str(path).isprintable():
                raise DataError(f"{str(path)!a} has characters that cannot be shown; rename it")
            images.append(path)
    return images


def at_the_hub(root: Path) -> tuple[tuple[str, ...], list[File], list[File]]:
    """The classes, what the hub holds, perhaps nothing, and the test set."""
    classes = class_names(root)
    hub = labelled_files(root / "hub", classes)
    if subfolders(root / "test"):
        return classes, hub, labelled_files(root / "test", classes)
    return classes, *hold_out(root, hub, classes)


def class_names(root: Path) -> tuple[str, ...]:
    """The folders of hub/ or test/; never those of clients, which may be scans or years."""
    place = root / ("hub" if subfolders(root / "hub") else "test")
    names = tuple(folder.name for folder in subfolders(place))
    if _UNLABELLED in names:
        raise DataError(f"{place / _UNLABELLED} is not a class; move it to a client")
    if not names:
        raise DataError(
            f"{root} has neither hub/CLASS nor test/CLASS, so its classes are unknown; add one of "
            "them"
        )
    return names


def labelled_files(folder: Path, classes: tuple[str, ...]) -> list[File]:
    """The images of hub/ or test/, whose folders are classes and nothing else."""
    found: list[File] = []
    for inside in subfolders(folder):
        if inside.name not in classes:
            raise DataError(f"{inside} is none of the classes {', '.join(classes)}; rename it")
        images = _images_below(inside)
        if not images:
            raise DataError(f"{inside} holds no images; add some of that class, or remove it")
        label = classes.index(inside.name)
        found += [File(path, label) for path in images]
    return found


def files_of_client(client: Path, number: int, classes: tuple[str, ...]) -> list[File]:
    """A client's images: labelled where the folder directly below it is a class."""
    _refuse_strange_folders(client, classes)
    found = []
    for path in _images_below(client):
        first, *rest = path.relative_to(client).parts
        label = classes.index(first) if rest and first in classes else UNKNOWN
        found.append(File(path, label, number))
    return found


def _refuse_strange_folders(client: Path, classes: tuple[str, ...]) -> None:
    folders = {
        path.name for path in client.iterdir() if path.is_dir() and not path.name.startswith(".")
    }
    strange = sorted(folders - {*classes, _UNLABELLED})
    alike = {_fold_case(name): name for name in classes}
    for name in strange:
        meant = alike.get(_fold_case(name))
        if meant is not None:
            raise DataError(f"{client / name} must be spelt like the class '{meant}'; rename it")
    if strange and not folders.isdisjoint(classes):
        raise DataError(
            f"{client / strange[0]} is beside folders of classes but is not a class; rename it to "
            f"one of {', '.join(classes)}, or move its images into '{_UNLABELLED}'"
        )


def _fold_case(name: str) -> str:
    """Without what the eye may not see: capitals, and two ways to write a letter's accent."""
    return unicodedata.normalize("NFC", name).casefold()


def hold_out(
    root: Path, hub: list[File], classes: tuple[str, ...]
) -> tuple[list[File], list[File]]:
    """A fifth of every class, at least one image, to test on; the rest to train on.

    Which ones the hashes of the files' own names say, so that a new file moves few others.
    """
    test: set[File] = set()
    for label, name in enumerate(classes):
        files = [file for file in hub if file.label == label]
        if len(files) < 2:
            raise DataError(
                f"{root / 'hub' / name} has only one image, and one is needed for testing; add "
                "more, or add test/CLASS"
            )
        files.sort(key=lambda file: (_chance(file.path, root / "hub"), file.path))
        test.update(files[: max(1, round(HELD_OUT * len(files)))])
    return [file for file in hub if file not in test], [file for file in hub if file in test]


def _chance(path: Path, folder: Path) -> float:
    return float(uniform(key(0, "held out", path.relative_to(folder).as_posix()), (1,)))


def paths_of(files: list[File]) -> list[Path]:
    return [file.path for file in files]


def labels_of(files: list[File]) -> Tensor:
    return torch.tensor([file.label for file in files], dtype=torch.int64)


def mark_of(root: Path, files: list[File]) -> str:
    """A checksum by name and size: other machines may decode the same JPEG slightly differently."""
    about = []
    for file in files:
        name = file.path.relative_to(root).as_posix()
        about.append((name, file.path.stat().st_size, file.owner))
    return hashlib.sha256(repr(about).encode(errors="surrogateescape")).hexdigest()

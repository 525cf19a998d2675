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
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedglean.data.dataset import Dataset
from fedglean.data.own import HUB, UNKNOWN, Collected, federated
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
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr"})


@dataclass(frozen=True)
class File:
    path: Path
    label: int
    owner: int = HUB


def from_folder(root: Path) -> Dataset:
    """The federation that `root` describes."""
    if not root.is_dir():
        raise DataError(
            f"{root} is not a folder; name one with hub/CLASS, clients/NAME and optionally "
            "test/CLASS in it"
        )
    _refuse_misspelt(root)
    clients = subfolders(root / "clients")
    classes, hub, test = at_the_hub(root)
    train = hub + [
        file
        for number, client in enumerate(clients)
        for file in files_held(client, number, classes)
    ]
    images = pixels_of([*train, *test])
    return federated(
        "folder",
        Collected(
            source=root,
            classes=classes,
            clients=tuple(client.name for client in clients),
            images=images[: len(train)],
            labels=np.array([file.label for file in train], dtype=np.int64),
            owners=np.array([file.owner for file in train], dtype=np.int64),
            test_images=images[len(train) :],
            test_labels=np.array([file.label for file in test], dtype=np.int64),
            mark=mark_of(root, [*train, *test]),
        ),
    )


def _refuse_misspelt(root: Path) -> None:
    """A folder `Test` or `client` would be passed over for its name, with all that is in it."""
    missing = [name for name in ("hub", "clients", "test") if not (root / name).is_dir()]
    for path in sorted(root.iterdir()):
        if path.is_dir() and (
            near := get_close_matches(path.name.casefold(), missing, n=1, cutoff=0.8)
        ):
            raise DataError(f"{path} must be called '{near[0]}'; rename it")


def mark_of(root: Path, files: list[File]) -> str:
    """A checksum of the files by name and size: another machine may decode the same JPEG slightly
    differently.
    """
    named = [
        (file.path.relative_to(root).as_posix(), file.path.stat().st_size, file.owner)
        for file in files
    ]
    return hashlib.sha256(repr(named).encode(errors="surrogateescape")).hexdigest()


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
    """Links to a disk that is not there, say: passed over, their images would be missing without a
    word.
    """
    if broken := next((path for path in paths if path.is_symlink() and not path.exists()), None):
        raise DataError(f"{broken} is a link to something that does not exist; repair or remove it")


def _files(folder: Path) -> list[Path]:
    """All images below, by path."""
    found, seen = list[Path](), {folder.resolve()}
    for place, folders, names in os.walk(folder, followlinks=True):
        visible = {
            name: Path(place, name).resolve()
            for name in sorted(folders)
            if not name.startswith(".")
        }
        folders[:] = [
            name for name, real in visible.items() if real not in seen
        ]  # a link may lead back here
        seen.update(visible.values())
        found += [Path(place, name) for name in names if not name.startswith(".")]
    found.sort()
    _refuse_broken_links(found)
    if other := next((path for path in found if path.suffix.lower() in _OTHER_IMAGES), None):
        raise DataError(
            f"{other} is of a kind that cannot be read; convert it to png or jpg, or remove it"
        )
    images = [path for path in found if path.suffix.lower() in _SUFFIXES and path.is_file()]
    if odd := next((path for path in images if not str(path).isprintable()), None):
        raise DataError(f"{str(odd)!a} has characters in its name that cannot be shown; rename it")
    return images


def at_the_hub(root: Path) -> tuple[tuple[str, ...], list[File], list[File]]:
    """The classes, what the hub holds, perhaps nothing, and the test set."""
    classes = class_names(root)
    hub = list(labelled_files(root / "hub", classes))
    if subfolders(root / "test"):
        return classes, hub, list(labelled_files(root / "test", classes))
    return classes, *hold_out(root, hub, classes)


def class_names(root: Path) -> tuple[str, ...]:
    """The classes, by the folders of hub/ or test/; never by those of clients, which may be scans
    or years.
    """
    place = root / ("hub" if subfolders(root / "hub") else "test")
    named = tuple(folder.name for folder in subfolders(place))
    if _UNLABELLED in named:
        raise DataError(
            f"{place / _UNLABELLED} is not a class; move images without labels to a client"
        )
    if not named:
        raise DataError(
            f"{root} has neither hub/CLASS nor test/CLASS, so its classes are unknown; add one of "
            "them"
        )
    return named


def labelled_files(folder: Path, classes: tuple[str, ...]) -> Iterator[File]:
    """The images of hub/ or test/, whose folders are classes and nothing else."""
    for inside in subfolders(folder):
        if inside.name not in classes:
            raise DataError(
                f"{inside} is not one of the classes {', '.join(classes)}; rename or remove it"
            )
        files = _files(inside)
        if not files:
            raise DataError(f"{inside} holds no images; add some of that class, or remove it")
        yield from (File(path, classes.index(inside.name)) for path in files)


def files_held(client: Path, number: int, classes: tuple[str, ...]) -> Iterator[File]:
    """A client's images: labelled where the folder directly below it is a class."""
    folders = [
        path.name for path in client.iterdir() if path.is_dir() and not path.name.startswith(".")
    ]
    strange = sorted(set(folders) - {*classes, _UNLABELLED})
    written = {_spoken(name): name for name in classes}
    if alike := next((name for name in strange if _spoken(name) in written), None):
        raise DataError(
            f"{client / alike} is spelt differently from the class '{written[_spoken(alike)]}'; "
            "rename one"
        )
    if strange and set(folders) & set(classes):
        raise DataError(
            f"{client / strange[0]} is beside folders of classes but is not a class; rename it to "
            "one of "
            f"{', '.join(classes)}, or move its images into '{_UNLABELLED}'"
        )
    for path in _files(client):
        first, *rest = path.relative_to(client).parts
        yield File(path, classes.index(first) if rest and first in classes else UNKNOWN, number)


def _spoken(name: str) -> str:
    """Without what the eye may not see: capitals, and two ways to write one letter with an
    accent.
    """
    return unicodedata.normalize("NFC", name).casefold()


def hold_out(
    root: Path, hub: list[File], classes: tuple[str, ...]
) -> tuple[list[File], list[File]]:
    """Part of every class by the hash of each file's own name, so that a new file moves no other
    one.

    In a class so small that chance would leave one side empty, the first or last by hash changes
    sides.
    """
    test: set[File] = set()
    for label, name in enumerate(classes):
        chance = {file: _chance(file.path, root / "hub") for file in hub if file.label == label}
        ranked = sorted(chance, key=lambda file: (chance[file], file.path))
        if len(ranked) < 2:
            raise DataError(
                f"{root / 'hub' / name} has only one image, and one is needed for testing; add "
                "more, or add test/CLASS"
            )
        below = sum(value < HELD_OUT for value in chance.values())
        test.update(ranked[: min(max(below, 1), len(ranked) - 1)])
    return [file for file in hub if file not in test], [file for file in hub if file in test]


def _chance(path: Path, folder: Path) -> float:
    return float(uniform(key(0, "held out", path.relative_to(folder).as_posix()), (1,)))


def pixels_of(files: list[File]) -> NDArray[np.uint8]:
    """All images N x C x H x W; the first one sets size and channels for the rest."""
    first = _decode(files[0].path)
    images = np.empty((len(files), *first.shape), np.uint8)
    for number, file in enumerate(files):
        image = _decode(file.path)
        if image.shape != first.shape:
            raise DataError(
                f"{file.path} is {_described(image)}, but {files[0].path} is {_described(first)}; "
                "convert all images "
                "to one size and one kind"
            )
        images[number] = image
    return images


def _described(image: NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{width} x {height} pixels in {'grey' if channels == 1 else 'colour'}"


def _decode(path: Path) -> NDArray[np.uint8]:
    """C x H x W."""
    image = np.asarray(read_image(path))
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)


def read_image(path: Path) -> Image.Image:
    """Grey or colour, upright as its camera meant it; what is transparent is seen on white."""
    try:
        with Image.open(path) as file:
            deep = any(";16" in str(part) for part in file.tile)
            mode = f"{file.mode}, 16 bits" if deep and file.mode in _GREY | _COLOUR else file.mode
            kind = "L" if mode in _GREY else "RGB" if mode in _COLOUR else ""
            image = _on_white(ImageOps.exif_transpose(file)).convert(kind) if kind else None
    except Exception as error:  # Pillow's parsers raise whatever they trip over
        raise DataError(
            f"{path} cannot be read as an image ({error}); replace or remove it"
        ) from error
    if image is None:
        raise DataError(
            f"{path} has pixels of kind '{mode}'; save it in grey or colour with 8 bits per channel"
        )
    return image


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))

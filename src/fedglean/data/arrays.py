"""A user's own images in one `.npz` file.

    hub_images, hub_labels        what the hub holds; may be left out where clients have labels
    client_images, client_ids     all clients' images and whose each is
    client_labels                 optional; -1 is an image without a label
    test_images, test_labels
    classes                       optional names; without them classes are called by their numbers

Images are uint8: N x H x W, N x H x W x C or N x C x H x W with one or three channels (the last
axis is looked at first).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedglean.data.dataset import Dataset
from fedglean.data.own import HUB, UNKNOWN, Collected, federated
from fedglean.errors import DataError

_NEEDED = ("client_images", "client_ids", "test_images", "test_labels")
_KNOWN = (*_NEEDED, "hub_images", "hub_labels", "client_labels", "classes")

Arrays = Mapping[str, NDArray[Any]]


def from_npz(path: Path) -> Dataset:
    """The federation that the arrays of one file describe."""
    arrays = _arrays(path)
    test = _images(path, arrays, "test_images")
    clients = _images(path, arrays, "client_images")
    hub = _images(path, arrays, "hub_images") if "hub_images" in arrays else clients[:0]
    for name, images in (("hub_images", hub), ("client_images", clients)):
        if images.shape[1:] != test.shape[1:]:
            raise DataError(
                f"{path}: {name} are {_sizes(images)}, but test_images are {_sizes(test)}; convert "
                "all to one size"
            )
    ids = _integers(path, arrays, "client_ids", len(clients))
    numbers, owners = np.unique(ids, return_inverse=True)
    labels = np.concatenate(
        [_labels(path, arrays, "hub", len(hub)), _labels(path, arrays, "client", len(clients))]
    )
    test_labels = _labels(path, arrays, "test", len(test))
    return federated(
        "npz",
        Collected(
            source=path,
            classes=_classes(path, arrays, np.concatenate([labels, test_labels])),
            clients=tuple(str(number) for number in numbers),
            images=np.concatenate([hub, clients]),
            labels=labels,
            owners=np.concatenate([np.full(len(hub), HUB), owners]).astype(np.int64),
            test_images=test,
            test_labels=test_labels,
        ),
    )


def _arrays(path: Path) -> Arrays:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; name an .npz file that numpy.savez "
            "wrote"
        ) from error
    except (
        Exception
    ) as error:  # zip, zlib and numpy each raise their own, and numpy's speaks of pickles
        raise DataError(
            f"{path} cannot be read as an .npz file of plain arrays; write it with numpy.savez"
        ) from error
    absent = [name for name in _NEEDED if name not in arrays]
    if absent:
        raise DataError(
            f"{path} has no array '{absent[0]}'; it needs {', '.join(_NEEDED)}, but has "
            f"{', '.join(arrays) or 'none'}"
        )
    if strange := [name for name in arrays if name not in _KNOWN]:
        raise DataError(
            f"{path} has an unknown array '{strange[0]}'; remove it, or rename it: "
            f"{', '.join(_KNOWN)}"
        )
    return arrays


def _images(path: Path, arrays: Arrays, name: str) -> NDArray[np.uint8]:
    """N x C x H x W whatever the axes were."""
    images = arrays[name]
    if images.dtype != np.uint8:
        raise DataError(f"{path}: {name} is {images.dtype}; expected uint8 pixels from 0 to 255")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[1:]:
        raise DataError(
            f"{path}: {name} has shape {arrays[name].shape}; expected N x H x W, or N x H x W x C "
            "with C 1 or 3"
        )
    return np.ascontiguousarray(images)


def _integers(path: Path, arrays: Arrays, name: str, count: int) -> NDArray[np.int64]:
    values = arrays[name]
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer):
        raise DataError(
            f"{path}: {name} is {values.dtype} of shape {values.shape}; expected {count} integers, "
            "one per image"
        )
    return values.astype(np.int64)


def _labels(path: Path, arrays: Arrays, party: str, count: int) -> NDArray[np.int64]:
    """Only a client's labels may be unknown, or left out as a whole."""
    name = f"{party}_labels"
    if name not in arrays:
        if party == "client" or not count:
            return np.full(count, UNKNOWN, dtype=np.int64)
        raise DataError(
            f"{path} has {party}_images but no array '{name}'; add it, with one integer per image"
        )
    labels = _integers(path, arrays, name, count)
    least = UNKNOWN if party == "client" else 0
    if (labels < least).any():
        raise DataError(f"{path}: {name} has the label {labels.min()}; expected {least} or more")
    return labels


def _classes(path: Path, arrays: Arrays, labels: NDArray[np.int64]) -> tuple[str, ...]:
    count = int(labels.max(initial=-1)) + 1
    if "classes" not in arrays:
        if unused := sorted(set(range(min(count, len(labels) + 1))) - set(labels.tolist())):
            raise DataError(
                f"{path}: no image has the label {unused[0]}; number labels from 0 without gaps, "
                "or add 'classes'"
            )
        return tuple(str(number) for number in range(count))
    names = tuple(
        name.decode() if isinstance(name, bytes) else str(name)
        for name in np.atleast_1d(arrays["classes"])
    )
    if len(names) < count:
        raise DataError(
            f"{path}: classes has {len(names)} names, but there is a label {count - 1}; name every "
            "class"
        )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{path}: two classes are called '{twice}'; give each its own name")
    return names


def _sizes(images: NDArray[np.uint8]) -> str:
    return " x ".join(str(size) for size in images.shape[1:])

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
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.own import HUB, UNKNOWN, Collected, dataset_of
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
    numbers, owners = np.unique(ids.numpy(), return_inverse=True)
    hub_labels = _labels(path, arrays, "hub", len(hub))
    client_labels = _labels(path, arrays, "client", len(clients))
    test_labels = _labels(path, arrays, "test", len(test))
    labels = torch.cat([hub_labels, client_labels])
    return dataset_of(
        "npz",
        Collected(
            source=path,
            classes=_classes(path, arrays, torch.cat([labels, test_labels])),
            clients=tuple(str(number) for number in numbers),
            images=torch.cat([hub, clients]),
            labels=labels,
            owners=torch.cat([torch.full([len(hub)], HUB), torch.from_numpy(owners)]),
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
    except Exception as error:  # zip, zlib and numpy raise their own; numpy's speaks of pickles
        raise DataError(f"{path} cannot be read; write plain arrays with numpy.savez") from error
    for name in _NEEDED:
        if name not in arrays:
            raise DataError(
                f"{path} has no array '{name}'; it needs {', '.join(_NEEDED)}, but has "
                f"{', '.join(arrays) or 'none'}"
            )
    for name in arrays:
        if name not in _KNOWN:
            raise DataError(f"{path} has an unknown array '{name}'; known: {', '.join(_KNOWN)}")
    return arrays


def _images(path: Path, arrays: Arrays, name: str) -> Tensor:
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
    return torch.from_numpy(np.ascontiguousarray(images))


def _integers(path: Path, arrays: Arrays, name: str, count: int) -> Tensor:
    values = arrays[name]
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"{path}: {name} is {values.dtype} of {values.shape}, not {count} integers")
    return torch.from_numpy(values.astype(np.int64))


def _labels(path: Path, arrays: Arrays, party: str, count: int) -> Tensor:
    """Only a client's labels may be unknown, or left out as a whole."""
    name = f"{party}_labels"
    if name not in arrays:
        if party == "client" or not count:
            return torch.full([count], UNKNOWN)
        raise DataError(f"{path} has {party}_images but no '{name}'; add one integer per image")
    labels = _integers(path, arrays, name, count)
    least = UNKNOWN if party == "client" else 0
    if (labels < least).any():
        raise DataError(f"{path}: {name} has the label {labels.min()}; expected {least} or more")
    return labels


def _classes(path: Path, arrays: Arrays, labels: Tensor) -> tuple[str, ...]:
    known = set(labels.tolist()) - {UNKNOWN}
    count = max(known, default=-1) + 1
    if "classes" not in arrays:
        if count > len(known):
            unused = next(number for number in range(count) if number not in known)
            raise DataError(
                f"{path}: no image has the label {unused}; number labels from 0 without gaps, or "
                "add 'classes'"
            )
        return tuple(str(number) for number in range(count))
    names: list[str] = []
    for entry in np.atleast_1d(arrays["classes"]):
        name = entry.decode() if isinstance(entry, bytes) else str(entry)
        if name in names:
            raise DataError(f"{path}: two classes are called '{name}'; give each its own name")
        names.append(name)
    if len(names) < count:
        raise DataError(
            f"{path}: classes has {len(names)} names, but there is a label {count - 1}; name every "
            "class"
        )
    return tuple(names)


def _sizes(images: Tensor) -> str:
    return " x ".join(str(size) for size in images.shape[1:])

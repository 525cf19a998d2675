"""Decoders of the published files: idx, CIFAR's pickles and records, SVHN's `.mat`.

A decoder takes the files of one layout by name and yields `Part`s, the units whose checksums are
known. Files that are not there are left out.
"""

import gzip
import hashlib
import math
import pickle
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedglean.data.partition import class_ranks
from fedglean.errors import DataError

Pixels = NDArray[np.uint8]
Integers = NDArray[np.int64]
Files = Mapping[str, Path]

CIFAR10_BATCHES: Mapping[str, str] = {
    "data_batch_1": "train_0",
    "data_batch_2": "train_1",
    "data_batch_3": "train_2",
    "data_batch_4": "train_3",
    "data_batch_5": "train_4",
    "test_batch": "test_0",
}


@dataclass(frozen=True)
class Part:
    """Images N x H x W x C with their positions in the split.

    A given `checksum` stands in for that of the pixels.
    """

    name: str
    images: Pixels
    labels: Integers
    positions: Integers
    source: Path
    checksum: str = ""


def digest(part: Part) -> str:
    """SHA-256 of pixels, labels and positions, the same for every layout."""
    if part.checksum:
        return part.checksum
    total = hashlib.sha256(np.ascontiguousarray(part.images).data)
    total.update(part.labels.astype("<i8").tobytes())
    total.update(part.positions.astype("<i8").tobytes())
    return total.hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a parser trips over in foreign bytes into one sentence that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"cannot read {path} ({reason}); get it again") from error


def read_idx(path: Path) -> Pixels:
    """An idx file of bytes: two zeros, type 8, number of axes, big-endian sizes, values."""
    with reading(path):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if raw[:3] != b"\x00\x00\x08":
            raise ValueError("not an idx file of bytes")
        axes = raw[3]
        shape = [int(size) for size in np.frombuffer(raw, ">i4", axes, 4)]
        if len(raw) != 4 + 4 * axes + math.prod(shape):
            raise ValueError(f"{len(raw)} bytes do not hold an array of {shape}")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def idx_parts(files: Files) -> Iterator[Part]:
    """(Fashion-)MNIST's four files as two parts."""
    for split, stem in (("train", "train"), ("test", "t10k")):
        pair = (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
        if not files.keys() >= set(pair):
            continue
        path = files[pair[0]]
        images, labels = read_idx(path), read_idx(files[pair[1]])
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise DataError(f"{path} holds images {images.shape} for labels {labels.shape}")
        yield Part(split, images[..., None], labels.astype(np.int64), np.arange(len(labels)), path)


def cifar10_parts(files: Files) -> Iterator[Part]:
    """Batches of 10,000 images."""
    for batch, path, images, labels in _cifar(files, CIFAR10_BATCHES, "labels", 1):
        name = CIFAR10_BATCHES[batch]
        positions = 10_000 * int(name[-1]) + np.arange(len(labels))
        yield Part(name, images, labels, positions, path)


def cifar100_parts(files: Files) -> Iterator[Part]:
    """Runs of 50 images a class in train, of 40 and 60 in test; the fine labels count."""
    for split, path, images, labels in _cifar(files, ("train", "test"), "fine_labels", 2):
        ranks = class_ranks(labels)
        runs = ranks // 50 if split == "train" else np.minimum(ranks // 40, 1)
        for run in np.unique(runs):
            at = np.flatnonzero(runs == run)
            yield Part(f"{split}_{run}", images[at], labels[at], at, path)


def svhn_parts(files: Files) -> Iterator[Part]:
    """`train_32x32.mat` and `test_32x32.mat`: images along the last axis, the digit 0 is a 10."""
    from scipy.io import loadmat

    for name, path in files.items():
        with reading(path):
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, "md5").hexdigest()
            content = loadmat(path)
            images = content["X"].transpose(3, 0, 1, 2)
            labels = content["y"].reshape(-1).astype(np.int64) % 10
        yield Part(name, images, labels, np.arange(len(labels)), path, checksum)


def _cifar(
    files: Files, wanted: Collection[str], key: str, label_bytes: int
) -> Iterator[tuple[str, Path, Pixels, Integers]]:
    """Pixels and labels of each wanted file: a pickle, or records if its name ends in `.bin`."""
    for name, path, raw in _members(files):
        stem = name.removesuffix(".bin")
        if stem not in wanted:
            continue
        if stem == name:
            images, labels = read_pickle(raw, path, key)
        else:
            images, labels = read_records(raw, path, label_bytes)
        yield stem, path, images, labels


def _members(files: Files) -> Iterator[tuple[str, Path, bytes]]:
    """Name, file and bytes of each file, or of each one in the archive."""
    for name, path in files.items():
        if not name.endswith(".tar.gz"):
            with reading(path):
                raw = path.read_bytes()
            yield name, path, raw
            continue
        with reading(path), tarfile.open(path) as archive:
            for entry in archive:
                member = archive.extractfile(entry)
                if member is not None:
                    yield Path(entry.name).name, path, member.read()


def read_pickle(raw: bytes, path: Path, key: str) -> tuple[Pixels, Integers]:
    """Pixels and labels of one CIFAR pickle, without running anything the file may name."""
    with reading(path):
        content = _PixelUnpickler(BytesIO(raw), encoding="latin1").load()
        rows = np.asarray(content["data"], dtype=np.uint8)
        return _planes(rows), np.asarray(content[key], dtype=np.int64)


def read_records(raw: bytes, path: Path, label_bytes: int) -> tuple[Pixels, Integers]:
    """Pixels and the last label byte of each fixed-size record."""
    with reading(path):
        rows = np.frombuffer(raw, np.uint8).reshape(-1, label_bytes + 3072)
        return _planes(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64)


def _planes(rows: Pixels) -> Pixels:
    """CIFAR writes the red plane, the green, the blue; here colour comes last."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _dtype(code: str, *flags: int) -> np.dtype[np.uint8]:
    """Bytes and no other type.

    The flags are dropped: numpy of today warns at the integers that numpy of 2009 wrote.
    """
    if code != "u1":
        raise DataError(f"a CIFAR batch holds numbers of type '{code}', not bytes; get it again")
    return np.dtype(np.uint8, copy=True)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in an old pickle; no other codec is let in."""
    if encoding != "latin1":
        raise DataError(f"a CIFAR batch asks for the codec '{encoding}'; get it again")
    return text.encode("latin1")


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _latin1,
}


class _PixelUnpickler(pickle.Unpickler):
    """Builds arrays and plain containers only: a pickle from the net may name any function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(f"a CIFAR batch names {module}.{name}; get a published one")
        return _ALLOWED[module, name]

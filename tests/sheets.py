"""CIFAR and SVHN kept small, as lossless WebP, for machines on which tests and measurements run.

    python tests/sheets.py FROM TO    # writes CIFAR in its published form, for --data-root TO
    fedglean run semifl --use tests/sheets.py --data svhn-sheets --data-root FROM

CIFAR: `labels.npz` has all labels of the set, `train_0.webp` and so on are sheets of 32 x 32 tiles
read row by row. CIFAR-100's sheets may be missing one by one: then it cannot be written. SVHN:
`PART.npz` says for each digit where its cut-out lies (`sheet, x, y, w, h`), what it is (`label`)
and its position in the published split (`index`). It cannot be written either: the digits are
scaled by a recovered rule, which is not proved to give every last grey level of the published ones.
`decoded.json` has the checksums of all parts.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedglean.data.catalogue import PUBLISHED
from fedglean.data.dataset import Dataset
from fedglean.data.formats import CIFAR10_BATCHES, Integers, Part, Pixels, digest
from fedglean.data.partition import class_ranks
from fedglean.data.sources import Source
from fedglean.errors import DataError

SVHN_SHEETS = {"train_a": 4, "train_b": 4, "test": 3}
CIFAR100_SHEETS = {"train": 10, "test": 2}

_SIZE = 32
_BLOCK = 1 << 18
Numbers = NDArray[np.float64]


def load_sheets(name: str, root: Path) -> Dataset:
    """What there is of a set, in published order."""
    checksums = {
        part.replace("fashion_", "fashion-"): entry.get("sha256")
        for part, entry in json.loads((root / "decoded.json").read_text()).items()
        if isinstance(entry, dict)
    }
    parts: dict[str, list[Part]] = {"train": [], "test": []}
    for part in PARTS[name](root / name):
        if digest(part) != checksums[f"{name}/{part.name}"]:
            raise DataError(f"{part.source} is not what it was")
        parts[part.name.partition("_")[0]].append(part)
    tensors = {}
    for split, found in parts.items():
        places = np.argsort(np.concatenate([part.positions for part in found]))
        images = np.concatenate([part.images for part in found])[places].transpose(0, 3, 1, 2)
        labels = np.concatenate([part.labels for part in found])[places]
        tensors[f"{split}_images"] = torch.from_numpy(np.ascontiguousarray(images))
        tensors[f"{split}_labels"] = torch.from_numpy(labels)
    known = PUBLISHED[name]
    return Dataset(
        name=f"{name}-sheets",
        classes=known.classes,
        mean=known.mean,
        std=known.std,
        flip=known.flip,
        pad=known.pad,
        **tensors,
    )


def write_cifar10(root: Path, to: Path) -> None:
    """`cifar-10-batches-bin`: a byte of label, then the pixels, image by image."""
    folder = to / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: batch for batch, name in CIFAR10_BATCHES.items()}
    for part in cifar10_parts(root / "cifar10"):
        columns = [part.labels[:, None], part.images.transpose(0, 3, 1, 2).reshape(-1, 3072)]
        path = folder / f"{files[part.name]}.bin"
        path.write_bytes(np.concatenate(columns, axis=1).astype(np.uint8).tobytes())


def write_cifar100(root: Path, to: Path) -> None:
    """`cifar-100-binary`: coarse label, fine label, pixels."""
    labels = _arrays(root / "cifar100" / "labels.npz")
    dataset = load_sheets("cifar100", root)
    for split, images in (("train", dataset.train_images), ("test", dataset.test_images)):
        fine, coarse = labels[f"{split}_fine"], labels[f"{split}_coarse"]
        if len(images) != len(fine):
            print(f"cifar100: {len(images)} of {len(fine)} {split} images; not written")
            return
        columns = [coarse[:, None], fine[:, None], images.reshape(-1, 3072).numpy()]
        path = to / "cifar-100-binary" / f"{split}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.concatenate(columns, axis=1).astype(np.uint8).tobytes())


def cifar10_parts(folder: Path) -> Iterator[Part]:
    """Five training sheets and one for testing, 10,000 tiles each."""
    labels = _arrays(folder / "labels.npz")
    for name in CIFAR10_BATCHES.values():
        split, number = name.split("_")
        at = 10_000 * int(number) + np.arange(10_000)
        yield _sheet_part(folder / f"{name}.webp", at, labels[split])


def cifar100_parts(folder: Path) -> Iterator[Part]:
    """The sheets that are there; a sheet has a run of every class, sorted by published position."""
    labels = _arrays(folder / "labels.npz")
    for split, sheets in CIFAR100_SHEETS.items():
        fine = labels[f"{split}_fine"]
        ranks = class_ranks(fine)
        runs = ranks // 50 if split == "train" else np.minimum(ranks // 40, 1)
        for number in range(sheets):
            path = folder / f"{split}_{number}.webp"
            if path.exists():
                yield _sheet_part(path, np.flatnonzero(runs == number), fine)


def svhn_parts(folder: Path) -> Iterator[Part]:
    """Digits by part: those of odd-numbered pictures, of even-numbered ones, and the test set."""
    for part in SVHN_SHEETS:
        yield svhn_part(part, folder)


def svhn_part(part: str, folder: Path) -> Part:
    """One part, its digits brought to 32 x 32."""
    path = folder / f"{part}.npz"
    digits = _arrays(path)
    images = np.empty((len(digits["label"]), _SIZE, _SIZE, 3), np.uint8)
    for number in range(SVHN_SHEETS[part]):
        sheet = _webp(folder / f"{part}_{number:02d}.webp")
        _fill(images, sheet, digits, np.flatnonzero(digits["sheet"] == number))
    return Part(part, images, digits["label"], digits["index"], path)


def to_size(cuts: Pixels, size: int = _SIZE) -> Pixels:
    """Cut-outs h x w x n x 3 scaled like MATLAB's imresize: bicubic, longer side first, rounded
    after each side.
    """
    height, width = cuts.shape[:2]
    if height == width == size:
        return cuts
    values = cuts.astype(np.float64)
    for axis in (0, 1) if height >= width else (1, 0):
        values = np.moveaxis(_resize(np.moveaxis(values, axis, 0), size), 0, axis)
    return values.astype(np.uint8)


def _fill(images: Pixels, sheet: Pixels, digits: dict[str, Integers], rows: Integers) -> None:
    """Scale the digits of one sheet, those of equal size together, in blocks that stay in the
    processor's cache.
    """
    heights, widths = digits["h"][rows], digits["w"][rows]
    for height, width in np.unique(np.stack([heights, widths], 1), axis=0).tolist():
        same = rows[(heights == height) & (widths == width)]
        step = max(1, _BLOCK // (max(height, width, _SIZE) * _SIZE * 3))
        for start in range(0, len(same), step):
            block = same[start : start + step]
            down = digits["y"][block] + np.arange(height)[:, None, None]
            right = digits["x"][block] + np.arange(width)[None, :, None]
            images[block] = to_size(sheet[down, right]).transpose(2, 0, 1, 3)


def _resize(values: Numbers, size: int) -> Numbers:
    """The first axis brought to `size`. Taps are added one by one: another order rounds exact
    halves otherwise.
    """
    weights, places = _taps(values.shape[0], size)
    total = np.zeros((size, *values.shape[1:]))
    for weight, place in zip(weights, places, strict=True):
        total += weight.reshape(-1, *[1] * (values.ndim - 1)) * values[place]
    return np.floor(np.clip(total, 0, 255) + 0.5)


@cache
def _taps(length: int, size: int) -> tuple[Numbers, Integers]:
    """For each tap, the weight and the source row of every output row; shrinking widens the kernel,
    edges repeat.
    """
    scale = size / length
    stretch = min(scale, 1.0)
    reach = 4 / stretch
    centre = np.arange(1, size + 1) / scale + 0.5 * (1 - 1 / scale)
    places = np.floor(centre - reach / 2) + np.arange(int(np.ceil(reach)) + 2)[:, None]
    weights = stretch * _cubic(stretch * (centre - places))
    total = np.zeros(size)
    for weight in weights:
        total = total + weight
    weights = weights / total
    used = (weights != 0).any(1)
    return weights[used], np.clip(places[used].astype(np.int64), 1, length) - 1


def _cubic(distance: Numbers) -> Numbers:
    """Keys' cubic convolution kernel, a = -1/2."""
    d = np.abs(distance)
    square = d * d
    cube = square * d
    near = 1.5 * cube - 2.5 * square + 1
    far = -0.5 * cube + 2.5 * square - 4 * d + 2
    return np.where(d <= 1, near, np.where(d <= 2, far, 0.0))


def _sheet_part(path: Path, at: Integers, labels: Integers) -> Part:
    sheet = _webp(path)
    rows, columns = sheet.shape[0] // _SIZE, sheet.shape[1] // _SIZE
    tiles = sheet.reshape(rows, _SIZE, columns, _SIZE, 3).swapaxes(1, 2)
    images = tiles.reshape(-1, _SIZE, _SIZE, 3)[: len(at)]
    return Part(path.stem, images, labels[at], at, path)


def _webp(path: Path) -> Pixels:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def _arrays(path: Path) -> dict[str, Integers]:
    with np.load(path) as arrays:
        return {name: arrays[name].astype(np.int64) for name in arrays.files}


PARTS = {"cifar10": cifar10_parts, "cifar100": cifar100_parts, "svhn": svhn_parts}
DATASETS: Mapping[str, Source] = {
    f"{name}-sheets": Source(partial(load_sheets, name), f"what there is of {name}", True)
    for name in PARTS
}

if __name__ == "__main__":
    write_cifar10(Path(sys.argv[1]), Path(sys.argv[2]))
    write_cifar100(Path(sys.argv[1]), Path(sys.argv[2]))

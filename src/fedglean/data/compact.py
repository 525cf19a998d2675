"""The compact form: CIFAR as sheets of tiles, SVHN as digits cut out at their own size, both
lossless WebP.

CIFAR: `labels.npz` has all labels of the set, `train_0.webp` and so on are sheets of 32 x 32 tiles
read row by row. CIFAR-100's sheets may be missing one by one. SVHN: `PART.npz` says for each digit
where its cut-out lies (`sheet, x, y, w, h`), what it is (`label`) and its position in the published
split (`index`).
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedglean.data.formats import Files, Integers, Part, Pixels, cifar100_numbers, reading

SVHN_SHEETS = {"train_a": 4, "train_b": 4, "test": 3}

_SIZE = 32
_BLOCK = 1 << 18
Numbers = NDArray[np.float64]


def cifar10_sheets(files: Files) -> Iterator[Part]:
    """Five training sheets and one for testing, 10,000 tiles each."""
    labels = _arrays(files["labels.npz"])
    for name, path in files.items():
        if path.suffix == ".webp":
            split, number = Path(name).stem.split("_")
            at = 10_000 * int(number) + np.arange(10_000)
            yield _sheet_part(path, at, labels[split].astype(np.int64))


def cifar100_sheets(files: Files) -> Iterator[Part]:
    """The sheets that are there; a sheet has a run of every class, sorted by published position."""
    labels = _arrays(files["labels.npz"])
    for name, path in files.items():
        if path.suffix == ".webp":
            split, number = Path(name).stem.split("_")
            fine = labels[f"{split}_fine"].astype(np.int64)
            yield _sheet_part(
                path, np.flatnonzero(cifar100_numbers(split, fine) == int(number)), fine
            )


def svhn_cuts(files: Files) -> Iterator[Part]:
    """Digits by part: those of odd-numbered pictures, of even-numbered ones, and the test set."""
    for part, sheets in SVHN_SHEETS.items():
        yield svhn_part(part, files, sheets)


def svhn_part(part: str, files: Files, sheets: int) -> Part:
    """One part, its digits brought to 32 x 32."""
    path = files[f"{part}.npz"]
    digits = _arrays(path)
    images = np.empty((len(digits["label"]), _SIZE, _SIZE, 3), np.uint8)
    for number in range(sheets):
        source = files[f"{part}_{number:02d}.webp"]
        with reading(source):
            _fill(images, _webp(source), digits, np.flatnonzero(digits["sheet"] == number))
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
    with reading(path):
        sheet = _webp(path)
        rows, columns = sheet.shape[0] // _SIZE, sheet.shape[1] // _SIZE
        tiles = (
            sheet.reshape(rows, _SIZE, columns, _SIZE, 3)
            .swapaxes(1, 2)
            .reshape(-1, _SIZE, _SIZE, 3)
        )
        return Part(path.stem, tiles[: len(at)], labels[at], at, path)


def _webp(path: Path) -> Pixels:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def _arrays(path: Path) -> dict[str, Integers]:
    with reading(path), path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
        return {name: arrays[name].astype(np.int64) for name in arrays.files}

"""Image files of any size and kind as pixels of one form, read by several threads."""

import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedglean.errors import DataError

log = logging.getLogger(__name__)

FITS = ("crop", "pad", "squash")
#: Pixels of a file; beyond, Pillow suspects an attack.
MOST_PIXELS = 89_478_485
#: Seconds after which it is said how far reading is, and until it is said again.
PATIENCE = 5.0
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr"})
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class ImageForm:
    """What images are brought to: squares of `size` pixels, in one of the `FITS`, with `channels`.

    Without a size they must have one already; without channels, one colour image makes all colour.
    """

    size: int | None = None
    fit: str = "crop"
    channels: int | None = None

    def fitted(self, image: Image.Image) -> Image.Image:
        """In that size, scaled bilinearly and without aliasing."""
        if self.size is None:
            return image
        square, scaling = (self.size, self.size), Image.Resampling.BILINEAR
        if self.fit == "squash":
            return image.resize(square, scaling)
        if self.fit == "crop":
            side = min(image.size)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            return image.resize(square, scaling, box=(left, top, left + side, top + side))
        scale = self.size / max(image.size)
        inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        place = (self.size - inner[0]) // 2, (self.size - inner[1]) // 2
        whole = Image.new(image.mode, square)
        whole.paste(image.resize(inner, scaling), place)
        return whole


AS_THEY_ARE = ImageForm()


@dataclass(frozen=True)
class Photo:
    """An image as it was read, in grey or colour; `changes` says what had to be done for that."""

    image: Image.Image
    changes: tuple[str, ...]


def pixels_of(paths: Sequence[Path], form: ImageForm = AS_THEY_ARE) -> Tensor:
    """All images N x C x H x W. Without a size in the form, the first one sets it for the rest."""
    images = torch.empty(0)
    changes: Counter[str] = Counter()
    greys, start = 0, time.monotonic()
    told = start
    threads = min(8, os.cpu_count() or 1)
    with _large_images_allowed(), ThreadPoolExecutor(threads) as pool:
        for number, (image, done) in enumerate(pool.map(partial(_pixels, form=form), paths)):
            if number == 0:
                channels = form.channels or len(image)
                images = torch.empty((len(paths), channels, *image.shape[1:]), dtype=torch.uint8)
            if image.shape[1:] != images.shape[2:]:
                raise DataError(
                    f"{paths[number]} is {_size(image)} pixels, but {paths[0]} is "
                    f"{_size(images[0])}; add --image-size 64 (in a federation at the hub), which "
                    "brings all images to one size"
                )
            if len(image) > images.shape[1]:
                images = images.repeat(1, 3, 1, 1)
            images[number] = image  # a grey one fills all three channels
            changes.update(done)
            greys += len(image) == 1
            now = time.monotonic()
            if now - told > PATIENCE:
                told, share = now, (number + 1) / len(paths)
                left = (now - start) * (1 / share - 1)
                log.warning("%d of %d images read, %.0f s to go", number + 1, len(paths), left)
    if greys and images.shape[1] == 3:
        changes["made colour from grey"] += greys
    if changes:
        parts = [f"{count} {what}" for what, count in sorted(changes.items())]
        log.warning("of %d images, %s", len(paths), ", ".join(parts))
    return images


def read_image(path: Path) -> Image.Image:
    """Grey or colour, upright as its camera meant it; what is transparent is seen on white."""
    return _read(path).image


def _pixels(path: Path, form: ImageForm) -> tuple[Tensor, tuple[str, ...]]:
    """C x H x W, and what was changed."""
    photo = _read(path)
    image, changes = photo.image, photo.changes
    if form.channels == 1 and image.mode == "RGB":
        image, changes = image.convert("L"), (*changes, "made grey from colour")
    pixels = torch.from_numpy(np.array(form.fitted(image)))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1), changes


def _read(path: Path) -> Photo:
    try:
        with Image.open(path) as file:
            is_deep = any(";16" in str(part) for part in file.tile)
            mode = file.mode
            if file.width * file.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            if mode in _GREY | _COLOUR and not is_deep:
                return _in_grey_or_colour(file)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{path} has more than {MOST_PIXELS // 10**6} million pixels; make it smaller"
        ) from error
    except Exception as error:  # Pillow's parsers raise whatever they trip over
        raise DataError(f"{path} cannot be read as an image ({error}); replace it") from error
    depth = ", 16 bits" if is_deep and mode in _GREY | _COLOUR else ""
    raise DataError(
        f"{path} has pixels of kind '{mode}{depth}'; save it in grey or colour with 8 bits per "
        "channel"
    )


def _in_grey_or_colour(file: Image.Image) -> Photo:
    changes = []
    if file.getexif().get(_ORIENTATION, 1) != 1:
        changes.append("turned upright")
    image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        changes.append("put on white")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    elif file.mode in ("P", "CMYK", "YCbCr"):
        changes.append(f"made colour from {'a palette' if file.mode == 'P' else file.mode}")
    return Photo(image.convert("L" if file.mode in _GREY else "RGB"), tuple(changes))


def _size(image: Tensor) -> str:
    return f"{image.shape[2]} x {image.shape[1]}"


@contextmanager
def _large_images_allowed() -> Iterator[None]:
    """Without Pillow's warning of large ones, which are refused in a sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield

"""Views of images: what a method sees in place of the stored picture.

All randomness of an image is a function of its own key, so a view does not depend on the rest of
the batch. RandAugment draws for each image a row of a small table (which operation, how strong);
the work is one batched call per operation.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor

from fedglean.errors import ConfigError, DataError, unknown
from fedglean.inputs import image_ops
from fedglean.randomness import fold, normal, uniform

Row = tuple[str | float, ...]


@dataclass(frozen=True)
class Recipe:
    """How one data set is normalised and augmented; `mean` and `std` are of values in [0, 1], one
    per channel.

    `views` and `augmentations` are what may be named in it, by default the package's own.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    pad: int
    strong: str = "semifl-ra"
    views: Mapping[str, "View"] = field(default_factory=lambda: VIEWS, repr=False, compare=False)
    augmentations: Mapping[str, "Strong"] = field(
        default_factory=lambda: STRONG, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.strong not in self.augmentations:
            raise unknown("strong augmentation", self.strong, self.augmentations)
        if len(self.mean) != len(self.std) or min(self.std, default=0) <= 0:
            raise ConfigError(
                f"mean {self.mean} and std {self.std} must have one entry per channel, std above 0"
            )
        if self.pad < 0:
            raise ConfigError(f"pad must be a number of pixels, 0 for no crop, not {self.pad}")


def view(
    name: str, images: Tensor, keys: Tensor, recipe: Recipe, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The named view of uint8 images n x C x H x W, normalised; keys hold one int64 per image.

    The name of the view is part of every draw: a weak and a strong view from the same keys are
    cropped differently.
    """
    if name not in recipe.views:
        raise unknown("view", name, recipe.views)
    _check(images, keys, recipe)
    kind = recipe.views[name]
    made = _checked(f"view '{name}'", kind.make(images, keys, recipe), images)
    # Values up to 255 need more than a half-precision mantissa until the mean is taken off.
    normalised = _normalised(made, recipe, torch.promote_types(dtype, torch.float32))
    return (normalised.add_(_noise(made, keys, kind.noise)) if kind.noise else normalised).to(dtype)


def channels_last(images: Tensor) -> Tensor:
    """The images in the order in memory in which CPUs and GPUs convolve and pool fastest.

    Those of one channel are in both orders at once. torch takes them for the slower one, unless
    their strides say so.
    """
    height, width = images.shape[2:]
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))


def _check(images: Tensor, keys: Tensor, recipe: Recipe) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise DataError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; expected uint8 n x C x H x "
            "W"
        )
    if images.shape[1] != len(recipe.mean):
        raise DataError(
            f"images have {images.shape[1]} channels, the recipe's mean has {len(recipe.mean)}"
        )
    if keys.shape != images.shape[:1]:
        raise DataError(
            f"{len(images)} images need one key each; the keys have shape {tuple(keys.shape)}"
        )
    if recipe.pad >= min(images.shape[2:]):
        side = min(images.shape[2:])
        raise ConfigError(
            f"pad is {recipe.pad}, but must be below {side}, the shorter side of the images"
        )


def _checked(what: str, made: Tensor, images: Tensor) -> Tensor:
    """What a view made, if it is like the images that it was given."""
    if not isinstance(made, Tensor) or (made.dtype, made.shape) != (images.dtype, images.shape):
        got = (
            f"{made.dtype} {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        )
        raise DataError(
            f"the {what} made {got} of {images.dtype} {tuple(images.shape)}; expected the same"
        )
    return made


def _normalised(images: Tensor, recipe: Recipe, dtype: torch.dtype) -> Tensor:
    mean, std = _moments(recipe, dtype, images.device)
    return images.to(dtype).sub_(mean).div_(std)


@lru_cache
def _moments(recipe: Recipe, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Mean and deviation of values in 0..255, 2 x C x 1 x 1; kept because a copy to a GPU makes the
    host wait.
    """
    moments = torch.tensor([recipe.mean, recipe.std], dtype=torch.float64) * 255
    return moments.to(device, dtype)[:, :, None, None]


def _plain(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    return images


def _weak(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    return _flipped_and_cropped(images, fold(keys, "weak"), recipe)


def _flipped_and_cropped(images: Tensor, key: Tensor | int, recipe: Recipe) -> Tensor:
    flip, top, left = uniform(key, (3,)).unbind(1)
    places = 2 * recipe.pad + 1
    mirrored = (flip < 0.5) & recipe.flip
    return image_ops.flip_and_crop(
        images, mirrored, (top * places).long(), (left * places).long(), recipe.pad
    )


def _shifted(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    down, right = uniform(fold(keys, "shift"), (2,)).unbind(1)
    tall, wide = (max(1, round(2 * size / 28)) for size in images.shape[2:])
    return image_ops.translate(
        images, (down * (2 * tall + 1)).long() - tall, (right * (2 * wide + 1)).long() - wide
    )


def _noise(images: Tensor, keys: Tensor, deviation: float) -> Tensor:
    return deviation * normal(fold(keys, "noise"), tuple(images.shape[1:]))


def _strong(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    weak = _flipped_and_cropped(images, fold(keys, "strong"), recipe)
    made = recipe.augmentations[recipe.strong].make(weak, keys)
    return _checked(f"strong augmentation '{recipe.strong}'", made, images)


def _randaugment(strong: str, images: Tensor, keys: Tensor) -> Tensor:
    """`images` is overwritten."""
    codes, strengths = _draw(keys, strong, images.shape[2], images.shape[3])
    for step in range(codes.shape[1]):
        for code, operation in enumerate(image_ops.OPERATIONS.values()):
            images = _where(
                codes[:, step] == code, operation, images, strengths[:, step], images.is_cuda
            )
    return images


def _where(
    chosen: Tensor, work: image_ops.Operation, images: Tensor, strengths: Tensor, everywhere: bool
) -> Tensor:
    """The operation on the chosen images.

    Asking which those are would stall a GPU, so there all are worked on and most thrown away; a CPU
    works on the few.
    """
    if everywhere:
        return torch.where(chosen[:, None, None, None], work(images, strengths), images)
    rows = chosen.nonzero().squeeze(1)
    return images.index_copy_(0, rows, work(images[rows], strengths[rows])) if len(rows) else images


def _draw(keys: Tensor, strong: str, height: int, width: int) -> tuple[Tensor, Tensor]:
    """What to do to each image: codes n x steps (-1: nothing) and strengths n x steps x 8.

    SemiFL applies an operation with a probability that is itself uniform in (0.2, 0.8), which is
    one half.
    """
    pool, finish = _tables(strong, height, width, keys.device)
    draws = uniform(fold(keys, "randaugment"), (2 + len(finish), 6))
    which, applied, level, sign = draws[:, :2, :4].unbind(2)
    levels, signs, operations = pool.shape[:3]
    drawn = pool[(level * levels).long(), (sign * signs).long(), (which * operations).long()]
    rows = torch.cat([drawn, finish.expand(len(keys), -1, -1)], 1)
    codes = rows[..., 0].long()
    codes[:, :2].masked_fill_(applied >= 0.5, -1)
    return codes, torch.cat([rows[..., 1:], draws[..., 4:]], 2)


@lru_cache
def _tables(strong: str, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The pool, levels x signs x operations x 7 (code, strength), and what follows it always, steps
    x 7.
    """
    rows, levels, finish = _POOLS[strong]
    pool = [[rows(level, sign, height, width) for sign in (1, -1)] for level in levels]
    coded = torch.tensor(
        [[[_coded(row) for row in side] for side in strength] for strength in pool],
        dtype=torch.float64,
    )
    after = [_coded(("cutout", _scaled(edge, height, width))) for edge in finish]
    return coded.to(device), torch.tensor(after, dtype=torch.float64).reshape(-1, 7).to(device)


def _coded(row: Row) -> list[float]:
    name, *strength = row
    code = list(image_ops.OPERATIONS).index(str(name)) if name != "identity" else -1
    return [float(number) for number in (code, *strength, *[0] * (6 - len(strength)))]


def _scaled(edge: int, height: int, width: int) -> int:
    """Published edges are for 32 x 32. Pillow draws a box's last row and column too: 16 pixels are
    17.
    """
    return round((edge + 1) * min(height, width) / 32)


def _semifl(level: int, sign: int, height: int, width: int) -> list[Row]:
    """Made for ImageNet's sizes: at 32 pixels the translation moves all out of sight and the box
    covers nearly all.
    """
    return [
        *(("autocontrast",), ("equalize",), ("posterize", 4)),
        # Invert, and Solarize from 0 on, which is the same.
        *(("solarize", 0), ("solarize", 0)),
        *(("brightness", 1.9), ("colour", 1.9), ("contrast", 1.9), ("sharpness", 1.9)),
        ("nearest", *_rotation(30 * sign, height, width)),
        *(("bilinear", 1, 0.3 * sign, 0, 0, 1, 0), ("bilinear", 1, 0, 0, 0.3 * sign, 1, 0)),
        ("nearest", 1, 0, sign * round(100 * width / 32), 0, 1, 0),
        ("nearest", 1, 0, 0, 0, 1, sign * round(100 * height / 32)),
        ("cutout", _scaled(40, height, width)),
    ]


def _fixmatch(level: int, sign: int, height: int, width: int) -> list[Row]:
    """Strengths follow FixMatch's code with its roundings; `level` is 1..9 of 10."""
    factor, shear, move = 0.05 + 0.9 * level / 10, sign * 0.3 * level / 10, sign * 0.3 * level / 10
    return [
        *(("identity",), ("autocontrast",), ("equalize",), ("posterize", 4 + int(0.4 * level))),
        ("solarize", 256 - int(25.6 * level)),
        *(("brightness", factor), ("colour", factor), ("contrast", factor), ("sharpness", factor)),
        ("nearest", *_rotation(3 * level * sign, height, width)),
        *(("nearest", 1, shear, 0, 0, 1, 0), ("nearest", 1, 0, 0, shear, 1, 0)),
        ("nearest", 1, 0, int(move * width), 0, 1, 0),
        ("nearest", 1, 0, 0, 0, 1, int(move * height)),
    ]


def _rotation(degrees: float, height: int, width: int) -> tuple[float, ...]:
    """Counter-clockwise about the centre, as the inverse map; rounded to 15 digits because Pillow
    does.
    """
    angle = -math.radians(degrees % 360.0)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)


_Rows = Callable[[int, int, int, int], list[Row]]

# Name: the operations at a level and sign, the levels, and the edges of the boxes that always
# follow.
_POOLS: dict[str, tuple[_Rows, range, tuple[int, ...]]] = {
    "semifl-ra": (_semifl, range(10, 11), ()),
    "fixmatch-ra": (_fixmatch, range(1, 10), (16,)),
}


@dataclass(frozen=True)
class View:
    """A view under a name: `make` gets uint8 images, a key for each and the recipe, and gives other
    uint8 images.

    `noise` is the deviation of what is added once they are normalised.
    """

    make: Callable[[Tensor, Tensor, Recipe], Tensor]
    summary: str
    noise: float = 0.0


@dataclass(frozen=True)
class Strong:
    """What makes a strong view of a weak one: `make` gets its uint8 images, which it may overwrite,
    and their keys.
    """

    make: Callable[[Tensor, Tensor], Tensor]
    summary: str


VIEWS: Mapping[str, View] = {
    "plain": View(_plain, "the image, normalised"),
    "weak": View(
        _weak,
        "mirrored half the time (if the recipe flips), cropped at random from its "
        "reflection-padded self",
    ),
    "strong": View(_strong, "a weak view, then the recipe's RandAugment"),
    "shift": View(_shifted, "moved by up to 2 pixels of 28 in both directions, black coming in"),
    "noise": View(_plain, "normalised, plus Gaussian noise of standard deviation 0.5", noise=0.5),
}

STRONG: Mapping[str, Strong] = {
    "semifl-ra": Strong(
        partial(_randaugment, "semifl-ra"),
        "SemiFL's code: 2 of 15 operations, each half the time, at full strength; one view in "
        "eight is black",
    ),
    "fixmatch-ra": Strong(
        partial(_randaugment, "fixmatch-ra"),
        "FixMatch: 2 of 14 operations, each half the time, at random strength, then always a grey "
        "box",
    ),
}

"""Views of images: what a method sees in place of the stored picture.

All randomness of an image is a function of its own key, so a view does not depend on the rest of
the batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from fedglean.errors import ConfigError, DataError, unknown
from fedglean.inputs import image_ops
from fedglean.inputs.randaugment import STRONG, Strong
from fedglean.randomness import fold, normal, uniform


@dataclass(frozen=True)
class Recipe:
    """How one data set is normalised and augmented.

    `mean` and `std` are of values in [0, 1], one per channel. `views` and `augmentations` are what
    may be named in it, by default the package's own.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    pad: int
    strong: str = "semifl-ra"
    views: Mapping[str, "View"] = field(default_factory=lambda: VIEWS, repr=False, compare=False)
    augmentations: Mapping[str, Strong] = field(
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
    made = _check_made(f"view '{name}'", kind.make(images, keys, recipe), images)
    # Values up to 255 need more than a half-precision mantissa until the mean is taken off.
    wide = torch.promote_types(dtype, torch.float32)
    mean, std = _moments(recipe, wide, images.device)
    normalised = made.to(wide).sub_(mean).div_(std)
    if kind.noise:
        noise = normal(fold(keys, "noise"), tuple(images.shape[1:]))
        normalised.add_(kind.noise * noise)
    return normalised.to(dtype)


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
        raise DataError(f"the images have {images.shape[1]} channels, the mean {len(recipe.mean)}")
    if keys.shape != images.shape[:1]:
        raise DataError(f"{len(images)} images need a key each, not keys of {tuple(keys.shape)}")
    if recipe.pad >= min(images.shape[2:]):
        side = min(images.shape[2:])
        raise ConfigError(f"pad is {recipe.pad}; it must be below the shorter side, {side}")


def _check_made(what: str, made: Tensor, images: Tensor) -> Tensor:
    """What a view made, if it is like the images that it was given."""
    if not isinstance(made, Tensor):
        got = type(made).__name__
    elif (made.dtype, made.shape) != (images.dtype, images.shape):
        got = f"{made.dtype} {tuple(made.shape)}"
    else:
        return made
    raise DataError(
        f"the {what} made {got} of {images.dtype} {tuple(images.shape)}; expected the same"
    )


@lru_cache
def _moments(recipe: Recipe, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Mean and deviation of values in 0..255, 2 x C x 1 x 1, kept: a copy to a GPU waits."""
    moments = torch.tensor([recipe.mean, recipe.std], dtype=torch.float64) * 255
    return moments.to(device, dtype)[:, :, None, None]


def _plain(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    return images


def _weak(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    return _flip_and_crop(images, fold(keys, "weak"), recipe)


def _flip_and_crop(images: Tensor, key: Tensor | int, recipe: Recipe) -> Tensor:
    flip, top, left = uniform(key, (3,)).unbind(1)
    places = 2 * recipe.pad + 1
    is_mirrored = (flip < 0.5) & recipe.flip
    down, right = (top * places).long(), (left * places).long()
    return image_ops.flip_and_crop(images, is_mirrored, down, right, recipe.pad)


def _shift(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    height, width = images.shape[2:]
    tall, wide = max(1, round(2 * height / 28)), max(1, round(2 * width / 28))
    down, right = uniform(fold(keys, "shift"), (2,)).unbind(1)
    down, right = (down * (2 * tall + 1)).long() - tall, (right * (2 * wide + 1)).long() - wide
    return image_ops.translate(images, down, right)


def _strong(images: Tensor, keys: Tensor, recipe: Recipe) -> Tensor:
    weak = _flip_and_crop(images, fold(keys, "strong"), recipe)
    made = recipe.augmentations[recipe.strong].make(weak, keys)
    return _check_made(f"strong augmentation '{recipe.strong}'", made, images)


@dataclass(frozen=True)
class View:
    """`make` gets uint8 images, a key for each and the recipe, and gives other uint8 images.

    `noise` is the deviation of what is added once they are normalised.
    """

    make: Callable[[Tensor, Tensor, Recipe], Tensor]
    summary: str
    noise: float = 0.0


VIEWS: Mapping[str, View] = {
    "plain": View(_plain, "the image, normalised"),
    "weak": View(
        _weak,
        "mirrored half the time (if the recipe flips), cropped at random from its "
        "reflection-padded self",
    ),
    "strong": View(_strong, "a weak view, then the recipe's RandAugment"),
    "shift": View(_shift, "moved by up to 2 pixels of 28 in both directions, black coming in"),
    "noise": View(_plain, "normalised, plus Gaussian noise of standard deviation 0.5", noise=0.5),
}

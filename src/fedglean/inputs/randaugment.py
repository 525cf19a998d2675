"""What makes a strong view of a weak one: RandAugment, as SemiFL's and FixMatch's codes have it.

For each image rows of a small table are drawn (which operation, how strong); the work is one
batched call per operation.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from fedglean.inputs.image_ops import OPERATIONS, Operation
from fedglean.randomness import fold, uniform

#: An operation's name and its strength.
Row = tuple[str | float, ...]


@dataclass(frozen=True)
class Strong:
    """`make` gets uint8 images, which it may overwrite, and a key for each."""

    make: Callable[[Tensor, Tensor], Tensor]
    summary: str


def augment(strong: str, images: Tensor, keys: Tensor) -> Tensor:
    """`images` is overwritten."""
    codes, strengths = draw(keys, strong, images.shape[2], images.shape[3])
    for step in range(codes.shape[1]):
        for code, operation in enumerate(OPERATIONS.values()):
            chosen = codes[:, step] == code
            images = work_on(chosen, operation, images, strengths[:, step], images.is_cuda)
    return images


def work_on(
    chosen: Tensor, operation: Operation, images: Tensor, strengths: Tensor, everywhere: bool
) -> Tensor:
    """The operation on the chosen images.

    Asking which those are would stall a GPU, so there all are worked on and most thrown away; a CPU
    works on the few.
    """
    if everywhere:
        return torch.where(chosen[:, None, None, None], operation(images, strengths), images)
    rows = chosen.nonzero().squeeze(1)
    if not len(rows):
        return images
    return images.index_copy_(0, rows, operation(images[rows], strengths[rows]))


def draw(keys: Tensor, strong: str, height: int, width: int) -> tuple[Tensor, Tensor]:
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
    """The pool, levels x signs x operations x 7 (code, strength), and what always follows it."""
    rows, levels, edges = _POOLS[strong]
    pool: list[list[float]] = []
    for level in levels:
        for sign in (1, -1):
            pool += [_code(row) for row in rows(level, sign, height, width)]
    coded = torch.tensor(pool, dtype=torch.float64).view(len(levels), 2, -1, 7)
    boxes = [_code(("cutout", _edge(edge, height, width))) for edge in edges]
    finish = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 7)
    return coded.to(device), finish.to(device)


def _code(row: Row) -> list[float]:
    name, *strength = row
    code = -1 if name == "identity" else list(OPERATIONS).index(str(name))
    padding = [0] * (6 - len(strength))
    return [float(number) for number in (code, *strength, *padding)]


def _edge(edge: int, height: int, width: int) -> int:
    """Published edges are for 32 x 32; Pillow draws a box's last row too: 16 pixels are 17."""
    return round((edge + 1) * min(height, width) / 32)


def _semifl(level: int, sign: int, height: int, width: int) -> list[Row]:
    """Made for ImageNet's sizes.

    At 32 pixels the translation moves all out of sight and the box covers nearly all.
    """
    return [
        *(("autocontrast",), ("equalize",), ("posterize", 4)),
        # Invert, and Solarize from 0 on, which is the same.
        *(("solarize", 0), ("solarize", 0)),
        *(("brightness", 1.9), ("colour", 1.9), ("contrast", 1.9), ("sharpness", 1.9)),
        ("nearest", *rotation(30 * sign, height, width)),
        *(("bilinear", 1, 0.3 * sign, 0, 0, 1, 0), ("bilinear", 1, 0, 0, 0.3 * sign, 1, 0)),
        ("nearest", 1, 0, sign * round(100 * width / 32), 0, 1, 0),
        ("nearest", 1, 0, 0, 0, 1, sign * round(100 * height / 32)),
        ("cutout", _edge(40, height, width)),
    ]


def _fixmatch(level: int, sign: int, height: int, width: int) -> list[Row]:
    """Strengths follow FixMatch's code with its roundings; `level` is 1..9 of 10."""
    factor, shear, move = 0.05 + 0.9 * level / 10, sign * 0.3 * level / 10, sign * 0.3 * level / 10
    return [
        *(("identity",), ("autocontrast",), ("equalize",), ("posterize", 4 + int(0.4 * level))),
        ("solarize", 256 - int(25.6 * level)),
        *(("brightness", factor), ("colour", factor), ("contrast", factor), ("sharpness", factor)),
        ("nearest", *rotation(3 * level * sign, height, width)),
        *(("nearest", 1, shear, 0, 0, 1, 0), ("nearest", 1, 0, 0, shear, 1, 0)),
        ("nearest", 1, 0, int(move * width), 0, 1, 0),
        ("nearest", 1, 0, 0, 0, 1, int(move * height)),
    ]


def rotation(degrees: float, height: int, width: int) -> tuple[float, ...]:
    """Counter-clockwise about the centre, as the inverse map, rounded to 15 digits as by Pillow."""
    angle = -math.radians(degrees % 360.0)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)


#: By name: the operations at a level and sign, the levels, and edges of the boxes that follow.
_POOLS: dict[str, tuple[Callable[..., list[Row]], range, tuple[int, ...]]] = {
    "semifl-ra": (_semifl, range(10, 11), ()),
    "fixmatch-ra": (_fixmatch, range(1, 10), (16,)),
}
STRONG: Mapping[str, Strong] = {
    "semifl-ra": Strong(
        partial(augment, "semifl-ra"),
        "SemiFL's code: 2 of 15 operations, each half the time, at full strength; one view in "
        "eight is black",
    ),
    "fixmatch-ra": Strong(
        partial(augment, "fixmatch-ra"),
        "FixMatch: 2 of 14 operations, each half the time, at random strength, then always a grey "
        "box",
    ),
}

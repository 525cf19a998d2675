"""Image operations on whole batches, pixel for pixel what Pillow does to one image.

Images are uint8, n x C x H x W. The operations of RandAugment also take a `strength`: eight float64
an image, of which each reads what it needs from the left (a factor, a threshold, an affine matrix);
the last two are a place in [0, 1)^2, read by `cutout` alone. So all have one signature, and what
differs from image to image is data, never a branch.

Geometry is a gather in Pillow's own fixed-point arithmetic, not `grid_sample`, whose float32 grid
moves pixels at ties. Nothing here mixes images or depends on where in the batch an image lies.
"""

from collections.abc import Callable

import torch
from torch import Tensor

GREY = 127


def flip_and_crop(images: Tensor, flip: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """Mirrors where `flip`, pads by reflection, and cuts the old size out at (top, left).

    The reflection does not repeat the border.
    """
    count, channels, height, width = images.shape
    rows = _reflect(_range(images, height) + (top - pad)[:, None], height)
    columns = _reflect(_range(images, width) + (left - pad)[:, None], width)
    columns = torch.where(flip[:, None], width - 1 - columns, columns)
    # Whole rows first, then columns by an expanded index: no index as large as the images is ever
    # written.
    channel = _range(images, count * channels).view(count, channels, 1)
    chosen = (channel * height + rows[:, None]).flatten()
    taken = images.reshape(-1, width).index_select(0, chosen).view(images.shape)
    return taken.gather(3, columns[:, None, None].expand(images.shape))


def translate(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Moves by whole pixels; what comes in is black."""
    rows = _range(images, images.shape[2]) - down[:, None]
    columns = _range(images, images.shape[3]) - right[:, None]
    return _pick_or_black(images, rows[:, :, None], columns[:, None, :])


def nearest(images: Tensor, strength: Tensor) -> Tensor:
    """Affine map by the nearest pixel; strength is Pillow's (a ... f), from target to source."""
    a, b, c, d, e, f = strength[:, :6, None, None].unbind(1)
    x, y = _range(images, images.shape[3]), _range(images, images.shape[2])[:, None]
    columns = (_fix(a) * x + _fix(b) * y + _fix(c + a * 0.5 + b * 0.5)) >> 16
    rows = (_fix(d) * x + _fix(e) * y + _fix(f + d * 0.5 + e * 0.5)) >> 16
    return _pick_or_black(images, rows, columns)


def bilinear(images: Tensor, strength: Tensor) -> Tensor:
    """The same map between four pixels.

    Black where the source is outside; its border is repeated where a neighbour is.
    """
    height, width = images.shape[2:]
    a, b, c, d, e, f = strength[:, :6, None, None].unbind(1)
    x, y = _range(images, width) + 0.5, _range(images, height)[:, None] + 0.5
    column, row = a * x + b * y + c, d * x + e * y + f
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    left, top = (column - 0.5).floor(), (row - 0.5).floor()
    upper = _between_columns(images, top, left, column - 0.5 - left)
    lower = _between_columns(images, top + 1, left, column - 0.5 - left)
    mixed = upper + (lower - upper) * (row - 0.5 - top)[:, None]
    return torch.where(inside[:, None], mixed, 0.0).to(torch.uint8)


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(torch.zeros_like(images), images, strength)


def colour(images: Tensor, strength: Tensor) -> Tensor:
    """Away from grey; a grey image stays as it is."""
    return _blend(_luminance(images), images, strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    """Away from the image's mean luminance, rounded to a grey level first."""
    light = _luminance(images)
    pixels = light.shape[2] * light.shape[3]
    total = light.sum((2, 3), keepdim=True, dtype=torch.int64)
    return _blend((2 * total + pixels) // (2 * pixels), images, strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Away from the smoothed image; the outermost pixels, unsmoothed in Pillow, never change."""
    wide = images.to(torch.int32)
    three = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    nine = three[..., :-2] + three[..., 1:-1] + three[..., 2:]
    smooth = images.clone()
    smooth[..., 1:-1, 1:-1] = (nine + 4 * wide[..., 1:-1, 1:-1] + 6) // 13
    return _blend(smooth, images, strength)


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    """Stretches each channel to 0..255; one of a single value stays."""
    values = images.flatten(2)
    low, high = torch.aminmax(values, dim=2, keepdim=True)
    low, high = low.double(), high.double()  # since many products fall on integers
    # Not 255.0 / tensor: torch turns that into a reciprocal and a product, which round twice.
    scale = torch.full_like(high, 255.0) / (high - low).clamp(min=1)
    stretched = (values * scale + -low * scale).clamp(0, 255).to(torch.uint8)
    return torch.where(high > low, stretched, values).view_as(images)


def equalize(images: Tensor, strength: Tensor) -> Tensor:
    """Spreads each channel's values evenly, by Pillow's recipe; what it calls too uniform stays."""
    values = images.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    brightest = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(2, values), values).to(torch.uint8).view_as(images)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Keeps the highest `strength` bits."""
    lowest = 2 ** (8 - _per_image(strength).to(torch.int32))
    return (images & (256 - lowest)).to(torch.uint8)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Inverts values from a threshold on; threshold 0 inverts them all."""
    return torch.where(images < _per_image(strength), images, 255 - images)


def cutout(images: Tensor, strength: Tensor) -> Tensor:
    """A grey box, `strength` pixels wide, about a uniform place.

    At the left and the top it is pushed inside whole, at the right and the bottom cut off: the
    published codes do so.
    """
    height, width = images.shape[2:]
    edge, place = strength[:, :1], strength[:, 6:]
    top = (place[:, :1] * height - (edge - 1) / 2).clamp(min=0).floor()
    left = (place[:, 1:] * width - (edge - 1) / 2).clamp(min=0).floor()
    rows, columns = _range(images, height), _range(images, width)
    tall, wide = (rows >= top) & (rows < top + edge), (columns >= left) & (columns < left + edge)
    return images.masked_fill((tall[:, :, None] & wide[:, None, :])[:, None], GREY)


Operation = Callable[[Tensor, Tensor], Tensor]

OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (
        *(nearest, bilinear, brightness, colour, contrast, sharpness),
        *(autocontrast, equalize, posterize, solarize, cutout),
    )
}


def _range(images: Tensor, count: int) -> Tensor:
    return torch.arange(count, device=images.device)


def _per_image(strength: Tensor) -> Tensor:
    return strength[:, 0, None, None, None]


def _reflect(position: Tensor, size: int) -> Tensor:
    return size - 1 - (size - 1 - position.abs()).abs()


def _fix(value: Tensor) -> Tensor:
    """16.16 fixed point, rounded as Pillow does."""
    return (value * 65536.0 + 0.5).floor().long()


def _pick(images: Tensor, index: Tensor) -> Tensor:
    pixels = index.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, pixels).view_as(images)


def _pick_or_black(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    height, width = images.shape[2:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    picked = _pick(images, rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1))
    return picked.masked_fill_(~inside[:, None], 0)


def _between_columns(images: Tensor, row: Tensor, column: Tensor, share: Tensor) -> Tensor:
    height, width = images.shape[2:]
    start = row.long().clamp(0, height - 1) * width
    left = _pick(images, start + column.long().clamp(0, width - 1)).double()
    right = _pick(images, start + (column.long() + 1).clamp(0, width - 1))
    return left + (right - left) * share[:, None]


def _luminance(images: Tensor) -> Tensor:
    """Pillow's L of a colour image; with any other number of channels each is its own."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.to(torch.int32)[:, :, None].unbind(1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def _blend(start: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """From `start` to `images` and beyond, cut to whole grey levels in float32 as Pillow does."""
    begin = start.float()
    mixed = begin + _per_image(strength).float() * (images.float() - begin)
    return mixed.clamp_(0, 255).to(torch.uint8)

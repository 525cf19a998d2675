"""Convolutions, in a form that is fast when they are lifted over clients on a GPU.

Lifted, a convolution has a group of channels for each client. cuDNN computes the groups together
where they have as many channels in as out, or many of both, and their gradients where there is no
stride; else it cuts the images apart and goes from client to client.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn import functional as F

#: Groups of so many channels, in and out, need no others.
WIDE = 128

_in_groups = False


@contextmanager
def in_groups() -> Iterator[None]:
    """In here convolutions take the form for groups."""
    global _in_groups
    _in_groups = True
    try:
        yield
    finally:
        _in_groups = False


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    """As `torch.nn.functional.conv2d`."""
    if not _in_groups:
        return F.conv2d(x, weight, bias, stride, padding)
    if weight.shape[-1] == 1 and not padding:
        x = x[:, :, ::stride, ::stride]
    elif stride > 1:
        x, weight, padding = *_without_stride(x, weight, stride, padding), 0
    return _evenly(x, weight, bias, padding)


def _without_stride(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Images and weights, the pixels of a stride as channels: for groups, a strided convolution's
    gradient is slow.
    """
    kernel = weight.shape[-1]
    fill = -kernel % stride

    def after(size: int) -> int:
        """Pixels to add at the end, or to cut off, so that as many whole strides are left as the
        kernel takes.
        """
        return padding - (size + 2 * padding - kernel) % stride + fill

    x = F.pad(x, (padding, after(x.shape[-1]), padding, after(x.shape[-2])))
    return F.pixel_unshuffle(x, stride), F.pixel_unshuffle(F.pad(weight, (0, fill) * 2), stride)


def _evenly(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    """With zeros for channels where there are few, in or out."""
    out, into = weight.shape[:2]
    if min(out, into) >= WIDE:
        return F.conv2d(x, weight, bias, 1, padding)
    wide = max(out, into)
    x, weight = (
        F.pad(x, (0, 0, 0, 0, 0, wide - into)),
        F.pad(weight, (0, 0, 0, 0, 0, wide - into, 0, wide - out)),
    )
    result = F.conv2d(x, weight, None, 1, padding)[:, :out]
    return result if bias is None else result + bias[:, None, None]

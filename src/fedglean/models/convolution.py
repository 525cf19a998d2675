"""Convolutions, in a form that is fast when they are lifted over clients on a GPU.

Lifted, a convolution has a group of channels for each client. cuDNN computes the groups together where they have as
many channels in as out; else it cuts the images apart and goes from client to client.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn import functional as F

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


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """As `torch.nn.functional.conv2d`."""
    if not _in_groups:
        return F.conv2d(x, weight, bias, stride, padding)
    if weight.shape[-1] == 1 and not padding:
        return _product(x[:, :, ::stride, ::stride], weight[:, :, 0, 0], bias)
    return _evenly(x, weight, bias, stride, padding)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of single pixels is a product over channels, which is batched over clients."""
    return F.linear(x.movedim(1, -1), weight, bias).movedim(-1, 1).contiguous()


def _evenly(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """With zeros for channels where there are fewer, in or out."""
    out, into = weight.shape[:2]
    wide = max(out, into)
    x, weight = F.pad(x, (0, 0, 0, 0, 0, wide - into)), F.pad(weight, (0, 0, 0, 0, 0, wide - into, 0, wide - out))
    result = F.conv2d(x, weight, None, stride, padding)[:, :out]
    return result if bias is None else result + bias[:, None, None]

"""The 13-layer net of the mean-teacher lineage, Fed-SHVR's net for CIFAR-10."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers

DROPOUT = 0.5


def _unit(
    layers: Layers,
    number: int,
    x: Tensor,
    channels: int,
    kernel: int = 3,
    padding: int | None = None,
) -> Tensor:
    x = layers.conv(f"conv{number}", x, layers.channels(channels), kernel, padding=padding)
    return F.leaky_relu(layers.norm(f"norm{number}", x), 0.1)


def cnn13(layers: Layers, images: Tensor) -> Tensor:
    """Nine convolutions, two poolings with dropout, a global average.

    The original's weight norm is left out: its two factors, averaged apart, are not the average of
    the weights.
    """
    x, number = images, 0
    for stage, channels in enumerate((128, 256), start=1):
        for _ in range(3):
            number += 1
            x = _unit(layers, number, x, channels)
        x = layers.dropout(f"dropout{stage}", F.max_pool2d(x, 2), DROPOUT)
    x = _unit(layers, 7, x, 512, padding=0)
    x = _unit(layers, 9, _unit(layers, 8, x, 256, kernel=1), 128, kernel=1)
    return layers.linear("output", x.mean((2, 3)), layers.classes)

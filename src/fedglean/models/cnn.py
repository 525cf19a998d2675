"""A small convolutional net for a laptop."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers


def cnn(layers: Layers, images: Tensor) -> Tensor:
    """Two convolutions of 16 and 32 channels, each normalised and halved, and a linear layer. From
    4 x 4 pixels on.
    """
    x = images
    for number, channels in enumerate((16, 32), start=1):
        x = layers.conv(f"conv{number}", x, layers.channels(channels))
        x = F.max_pool2d(F.relu(layers.norm(f"norm{number}", x)), 2)
    return layers.linear("output", x.flatten(1), layers.classes)

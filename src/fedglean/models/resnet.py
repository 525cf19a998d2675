"""ResNet-8, HASSLE's net for CIFAR."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers, by_fan_out


def _block(layers: Layers, name: str, x: Tensor, channels: int, stride: int) -> Tensor:
    """Post-activation: the sum is what ReLU is applied to. A 1 x 1 convolution with norm where the
    shape changes.
    """
    y = layers.conv(f"{name}.conv1", x, channels, stride=stride, init=by_fan_out)
    y = F.relu(layers.norm(f"{name}.norm1", y))
    y = layers.norm(f"{name}.norm2", layers.conv(f"{name}.conv2", y, channels, init=by_fan_out))
    if stride != 1 or x.shape[1] != channels:
        x = layers.conv(f"{name}.shortcut", x, channels, 1, stride=stride, init=by_fan_out)
        x = layers.norm(f"{name}.shortcut_norm", x)
    return F.relu(x + y)


def resnet8(layers: Layers, images: Tensor) -> Tensor:
    """A CIFAR ResNet with one block a stage, 64, 128 and 256 channels wide (four times the original
    16, 32 and 64).
    """
    x = layers.conv("stem", images, layers.channels(64), init=by_fan_out)
    x = F.relu(layers.norm("stem_norm", x))
    for stage, (channels, stride) in enumerate(((64, 1), (128, 2), (256, 2)), start=1):
        x = _block(layers, f"stage{stage}", x, layers.channels(channels), stride)
    return layers.linear("output", x.mean((2, 3)), layers.classes)

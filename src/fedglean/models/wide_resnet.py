"""Wide residual nets of depth 28, SemiFL's nets."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers, by_fan_out, zeros

BLOCKS = 4


def _block(layers: Layers, name: str, x: Tensor, channels: int, stride: int) -> Tensor:
    """Pre-activation. Where the shape changes, norm and ReLU come before branch and shortcut alike,
    in every group.
    """
    active = F.relu(layers.norm(f"{name}.norm1", x))
    y = layers.conv(f"{name}.conv1", active, channels, stride=stride, init=by_fan_out)
    y = F.relu(layers.norm(f"{name}.norm2", y))
    y = layers.conv(f"{name}.conv2", y, channels, init=by_fan_out)
    if stride != 1 or x.shape[1] != channels:
        x = layers.conv(f"{name}.shortcut", active, channels, 1, stride=stride, init=by_fan_out)
    return x + y


def wide_resnet(layers: Layers, images: Tensor, *, widen: int) -> Tensor:
    """Three groups of four blocks, 16, 32 and 64 channels times `widen`. ReLU, not the leaky one of
    FixMatch's code.
    """
    x = layers.conv("stem", images, layers.channels(16), init=by_fan_out)
    for group, (channels, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        for block in range(BLOCKS):
            name = f"group{group}.block{block + 1}"
            x = _block(
                layers, name, x, layers.channels(channels * widen), stride if block == 0 else 1
            )
    x = F.relu(layers.norm("last_norm", x)).mean((2, 3))
    return layers.linear("output", x, layers.classes, bias=zeros)

"""A net of your own: `fedglean run semifl --use own_model.py --model residual`."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers
from fedglean.models.nets import NetKind


def residual(layers: Layers, images: Tensor) -> Tensor:
    """One residual block of 16 channels between a convolution and a global average."""
    x = F.relu(layers.norm("norm0", layers.conv("conv0", images, layers.channels(16))))
    inner = F.relu(layers.norm("norm1", layers.conv("conv1", x, layers.channels(16))))
    x = F.max_pool2d(
        F.relu(x + layers.norm("norm2", layers.conv("conv2", inner, layers.channels(16)))), 2
    )
    return layers.linear("output", x.flatten(1), layers.classes)


# Each layer needs only a name: its weights are created when the net is first looked at, and `norm` is whatever the run
# asks for. `NetKind` adds a summary and the smallest image side; just `residual` would do as well.
MODELS = {"residual": NetKind(residual, "one residual block, for digits", smallest=2)}

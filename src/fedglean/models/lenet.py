"""LeNet-5, HASSLE's net for Fashion-MNIST."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers


def lenet(layers: Layers, images: Tensor) -> Tensor:
    """Two 5 x 5 convolutions of 6 and 16 channels, then 120 and 84 units; ReLU, max pooling, no
    normalisation.
    """
    x = F.max_pool2d(F.relu(layers.conv("conv1", images, layers.channels(6), 5, bias=True)), 2)
    x = F.max_pool2d(
        F.relu(layers.conv("conv2", x, layers.channels(16), 5, padding=0, bias=True)), 2
    )
    x = F.relu(layers.linear("hidden1", x.flatten(1), layers.channels(120)))
    x = F.relu(layers.linear("hidden2", x, layers.channels(84)))
    return layers.linear("output", x, layers.classes)

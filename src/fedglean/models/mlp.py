"""Fed-SHVR's perceptron for MNIST."""

from torch import Tensor
from torch.nn import functional as F

from fedglean.models.layers import Layers


def mlp(layers: Layers, images: Tensor) -> Tensor:
    """One hidden layer of 5000 ReLU units. No normalisation layer."""
    hidden = F.relu(layers.linear("hidden", images.flatten(1), layers.channels(5000)))
    return layers.linear("output", layers.dropout("hidden", hidden, layers.share), layers.classes)

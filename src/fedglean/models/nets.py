"""The nets by name."""

import re
from functools import partial

from fedglean.errors import unknown
from fedglean.models.cnn import cnn
from fedglean.models.cnn13 import cnn13
from fedglean.models.layers import Net
from fedglean.models.lenet import lenet
from fedglean.models.mlp import mlp
from fedglean.models.resnet import resnet8
from fedglean.models.wide_resnet import wide_resnet

MODELS: dict[str, str] = {
    "cnn": "two small convolutions, for digits and laptops",
    "mlp": "one hidden layer of 5000 units (Fed-SHVR, MNIST)",
    "lenet": "LeNet-5 (HASSLE, Fashion-MNIST)",
    "resnet8": "ResNet-8, 64 to 256 channels (HASSLE, CIFAR)",
    "cnn13": "13 layers with dropout (Fed-SHVR, CIFAR-10)",
    "wrn-28-2": "WideResNet-28-2 (SemiFL, CIFAR-10 and SVHN); wrn-28-K for any other K",
    "wrn-28-8": "WideResNet-28-8 (SemiFL, CIFAR-100)",
}
WITH_DROPOUT = ("mlp", "cnn13")

_PLAIN: dict[str, tuple[Net, int]] = {
    "cnn": (cnn, 4),
    "mlp": (mlp, 1),
    "lenet": (lenet, 12),
    "resnet8": (resnet8, 4),
    "cnn13": (cnn13, 12),
}


def net_of(name: str) -> tuple[Net, int]:
    """The net's function and the smallest image side that leaves it a pixel after its poolings."""
    if name in _PLAIN:
        return _PLAIN[name]
    wide = re.fullmatch(r"wrn-28-([1-9]\d?)", name)
    if wide is None:
        raise unknown("model", name, MODELS)
    return partial(wide_resnet, widen=int(wide[1])), 4

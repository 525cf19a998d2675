"""The nets by name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from fedglean.errors import unknown
from fedglean.models.cnn import cnn
from fedglean.models.cnn13 import cnn13
from fedglean.models.layers import Net
from fedglean.models.lenet import lenet
from fedglean.models.mlp import mlp
from fedglean.models.module import ModuleNet
from fedglean.models.resnet import resnet8
from fedglean.models.wide_resnet import wide_resnet


@dataclass(frozen=True)
class NetKind:
    """A net under a name.

    `smallest` is the image side that still leaves it a pixel after its poolings; `dropout` says
    that it has a layer which drops the share that a run says.
    """

    net: Net
    summary: str
    smallest: int = 1
    dropout: bool = False

    @property
    def module(self) -> ModuleNet | None:
        """The net, if it is a torch module."""
        return self.net if isinstance(self.net, ModuleNet) else None


MODELS: Mapping[str, NetKind] = {
    "cnn": NetKind(cnn, "two small convolutions, for digits and laptops", 4),
    "mlp": NetKind(mlp, "one hidden layer of 5000 units (Fed-SHVR, MNIST)", dropout=True),
    "lenet": NetKind(lenet, "LeNet-5 (HASSLE, Fashion-MNIST)", 12),
    "resnet8": NetKind(resnet8, "ResNet-8, 64 to 256 channels (HASSLE, CIFAR)", 4),
    "cnn13": NetKind(
        cnn13,
        "13 layers (Fed-SHVR, CIFAR-10); drops units only with perturb = dropout",
        12,
        dropout=True,
    ),
    "wrn-28-2": NetKind(
        partial(wide_resnet, widen=2),
        "WideResNet-28-2 (SemiFL, CIFAR-10 and SVHN); wrn-28-K for any other K",
        4,
    ),
    "wrn-28-8": NetKind(partial(wide_resnet, widen=8), "WideResNet-28-8 (SemiFL, CIFAR-100)", 4),
}
WIDE = re.compile(r"wrn-28-([1-9]\d?)")


def net_of(name: str, known: Mapping[str, NetKind] = MODELS) -> NetKind:
    if name in known:
        return known[name]
    wide = WIDE.fullmatch(name)
    if wide is None:
        raise unknown("model", name, known)
    return NetKind(partial(wide_resnet, widen=int(wide[1])), f"WideResNet-28-{wide[1]}", 4)

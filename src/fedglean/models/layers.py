"""The words that the nets are written in.

A net is one function of a `Layers` and the images. The same function is run first on no image at
all, to learn which parameters it asks for and how each is drawn (`NetPlan`), and then for every
forward on the parameters of one model. So a net states its shapes once, and a forward is a few
torch calls with no module to walk, swap or switch between modes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglean.errors import ConfigError
from fedglean.models.convolution import convolution
from fedglean.models.norm import EPSILON, Normaliser
from fedglean.randomness import Key, fold, normal, uniform

Init = Callable[[int, Sequence[int], int], Tensor]
Parameter = Callable[[str, tuple[int, ...], Init, int], Tensor]


def by_fan_in(key: int, shape: Sequence[int], fan_in: int) -> Tensor:
    """PyTorch's default for weights and biases: uniform within 1 / sqrt(fan_in)."""
    return (2 * uniform(key, shape) - 1) / math.sqrt(fan_in)


def by_fan_out(key: int, shape: Sequence[int], fan_in: int) -> Tensor:
    """He's normal draw for ReLU that keeps the size of gradients: deviation sqrt(2 / (kernel area x
    channels out)).
    """
    return normal(key, shape) * math.sqrt(2 / (shape[0] * math.prod(shape[2:])))


def ones(key: int, shape: Sequence[int], fan_in: int) -> Tensor:
    """The weight of a normalisation layer."""
    return torch.ones(*shape)


def zeros(key: int, shape: Sequence[int], fan_in: int) -> Tensor:
    """The bias of a normalisation layer."""
    return torch.zeros(*shape)


@dataclass(frozen=True)
class Layers:
    """One run of a net: where its parameters come from, how it normalises, and the key of its
    dropout, if any.
    """

    classes: int
    width: float
    share: float
    parameter: Parameter
    normalise: Normaliser
    key: Key | None = None

    def channels(self, full: int) -> int:
        """The layer's channels at this width, rounded up: LeNet's 6 become 2 at a quarter."""
        return math.ceil(full * self.width - 1e-9)

    def conv(
        self,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = False,
        init: Init = by_fan_in,
    ) -> Tensor:
        """A square convolution that keeps the image's size by default; without bias, because a norm
        mostly follows.
        """
        shape = (channels, x.shape[1], kernel, kernel)
        fan_in = shape[1] * kernel * kernel
        weight = self.parameter(f"{name}.weight", shape, init, fan_in)
        shift = self.parameter(f"{name}.bias", (channels,), init, fan_in) if bias else None
        return convolution(x, weight, shift, stride, kernel // 2 if padding is None else padding)

    def linear(self, name: str, x: Tensor, units: int, bias: Init = by_fan_in) -> Tensor:
        """A dense layer."""
        fan_in = x.shape[1]
        weight = self.parameter(f"{name}.weight", (units, fan_in), by_fan_in, fan_in)
        return F.linear(x, weight, self.parameter(f"{name}.bias", (units,), bias, fan_in))

    def norm(self, name: str, x: Tensor) -> Tensor:
        """The architecture's normalisation, with a weight and a bias per channel."""
        shape = (x.shape[1],)
        weight, bias = (
            self.parameter(f"{name}.weight", shape, ones, 1),
            self.parameter(f"{name}.bias", shape, zeros, 1),
        )
        return self.normalise(name, x, weight, bias)

    def dropout(self, name: str, x: Tensor, share: float) -> Tensor:
        """Drops by a mask that is a function of the key and the layer's name."""
        if self.key is None or share == 0:
            return x
        kept = uniform(fold(self.key, name), x.shape, x.device) >= share
        return x * (kept.to(x.dtype) / (1 - share))


Net = Callable[[Layers, Tensor], Tensor]


@dataclass(frozen=True)
class NetPlan:
    """What a net asked for: shape, draw and fan of each parameter, channels and positions of each
    norm layer.

    `output` is the shape of what it returned for so many `images`; `head` the name of its last
    layer, if that is linear; `drops` whether it drops of itself where a forward has a key.
    """

    parameters: dict[str, tuple[tuple[int, ...], Init, int]] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    output: tuple[int, ...] = ()
    images: int = 0
    head: str = "output"
    drops: bool = False

    def declare(self, name: str, shape: tuple[int, ...], init: Init, fan_in: int) -> Tensor:
        """Stands in for a model's parameter; two layers of one name share it."""
        if name in self.parameters and (known := self.parameters[name][0]) != shape:
            layer = name.rpartition(".")[0]
            raise ConfigError(
                f"two layers of other shapes, {known} and {shape}, are called '{layer}'; rename one"
            )
        self.parameters[name] = (shape, init, fan_in)
        return torch.zeros(shape, device="cpu")

    def see(
        self, name: str, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float = EPSILON, /
    ) -> Tensor:
        """Stands in for a normalisation."""
        self.channels[name] = x.shape[1]
        self.positions[name] = math.prod(x.shape[2:])
        return x


def plan_of(net: Net, shape: Sequence[int], classes: int, width: float) -> NetPlan:
    """Runs the net on a batch of no image, which costs nothing; on two images if it cannot do so.

    The meta device would do as well, but loads for a second.
    """
    try:
        return _planned(net, shape, classes, width, images=0)
    except RuntimeError:  # such as a reshape that cannot tell the size of nothing
        return _planned(net, shape, classes, width, images=2)


def _planned(net: Net, shape: Sequence[int], classes: int, width: float, images: int) -> NetPlan:
    plan = NetPlan()
    layers = Layers(classes, width, 0.0, plan.declare, plan.see)
    with torch.no_grad():
        logits: object = net(layers, torch.zeros(images, *shape, device="cpu"))
    made = tuple(logits.shape) if isinstance(logits, Tensor) else ()
    return replace(plan, output=made, images=images)

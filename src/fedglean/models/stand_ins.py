"""What stands in a torch module for its batch norms and dropouts: a run says how it normalises, and
a forward's key what is dropped.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedglean.errors import ConfigError
from fedglean.models.layers import Layers
from fedglean.models.norm import fixed
from fedglean.randomness import fold, uniform

#: Those that drop whole channels.
BY_CHANNEL = nn.Dropout1d | nn.Dropout2d | nn.Dropout3d
_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


@dataclass
class CurrentRun:
    """The run of the net that is going on, which all stand-ins of a module ask."""

    layers: Layers | None = None

    @property
    def now(self) -> Layers:
        if self.layers is None:
            raise RuntimeError("the module is called outside of a run of its net")
        return self.layers


class ModuleNorm(nn.Module):
    """Stands in for a batch norm. If it is frozen, it normalises by the statistics that the module
    came with.
    """

    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, name: str, old: _BatchNorm, current: CurrentRun) -> None:
        super().__init__()
        self.name, self.current, self.epsilon = name, current, old.eps
        self.channels, self.is_frozen = old.num_features, False
        self.weight, self.bias = old.weight, old.bias
        self.register_buffer("running_mean", old.running_mean)
        self.register_buffer("running_var", old.running_var)

    def forward(self, x: Tensor) -> Tensor:
        weight = x.new_ones(self.channels) if self.weight is None else self.weight
        bias = x.new_zeros(self.channels) if self.bias is None else self.bias
        if not self.is_frozen:
            return self.current.now.normalise(self.name, x, weight, bias, self.epsilon)
        return fixed(self.statistics(), self.name, x, weight, bias, self.epsilon)

    def statistics(self) -> dict[str, Tensor]:
        """Those that it came with, under the names that a model gives them."""
        if self.running_mean is None or self.running_var is None:
            raise ConfigError(
                f"the batch norm {self.name} has no statistics of its own, so it cannot be frozen"
            )
        mean, variance = f"{self.name}.mean", f"{self.name}.variance"
        return {mean: self.running_mean, variance: self.running_var}


class ModuleDropout(nn.Module):
    """Stands in for a dropout: drops by the key of a forward, and nothing without one."""

    def __init__(self, name: str, old: _DropoutNd, current: CurrentRun) -> None:
        super().__init__()
        self.name, self.current, self.share = name, current, old.p
        self.by_channel = isinstance(old, BY_CHANNEL)

    def forward(self, x: Tensor) -> Tensor:
        layers = self.current.now
        if not self.by_channel:
            return layers.dropout(self.name, x, self.share)
        if layers.key is None:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2))
        kept = uniform(fold(layers.key, self.name), shape, x.device) >= self.share
        return x * (kept.to(x.dtype) / (1 - self.share))


def put_stand_ins(module: nn.Module, current: CurrentRun) -> None:
    """Put stand-ins in the place of a module's batch norms and dropouts. Attention of torch's own
    is kept off its fast path, which cannot be lifted, and has no dropout.
    """
    new: dict[nn.Module, nn.Module] = {}
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            if type(part).forward not in _FORWARDS:
                raise ConfigError(
                    f"{name} is a {type(part).__name__}, a batch norm with a forward of its own; "
                    "use torch's own there"
                )
            new[part] = ModuleNorm(name, part, current)
        elif isinstance(part, nn.Dropout | BY_CHANNEL) and part.p:
            new[part] = ModuleDropout(name, part, current)
        if isinstance(part, nn.MultiheadAttention | nn.TransformerEncoderLayer):
            part.training = True
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    for part in list(module.modules()):
        for name, child in part.named_children():
            if child in new:
                setattr(part, name, new[child])

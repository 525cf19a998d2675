"""Pi-model (Laine and Aila, ICLR 2017): two weak views of an image should get one answer."""

from dataclasses import dataclass

from torch import Tensor

from fedglean.losses import consistency, lanes, ramp
from fedglean.method import Batch
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.common import supervised
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class PiModel(Central):
    """Algorithm 1, but the second view has no gradient, as TorchSSL's weight assumes."""

    views = ("weak", "weak")

    weight: float = setting(10.0, "weight of the consistency of two views", low=0)
    ramp: float = settings.share(0.4, "share of the run over which the weight grows")

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        first, second = lanes(model, *batch.unlabelled.views)
        weight = self.weight * ramp(frozen["progress"], self.ramp, "sigmoid")
        return supervised(model, batch, frozen) + weight * consistency(first, second)

"""MixMatch (Berthelot et al., NeurIPS 2019): guessed labels, and images mixed with one another."""

from dataclasses import dataclass

from torch import Tensor

from fedglean.losses import mixmatch_losses, ramp
from fedglean.method import Batch
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class MixMatch(Central):
    """Algorithm 1 and eqs. (2)-(5)."""

    views = ("weak", "weak")

    weight: float = setting(100.0, "weight of the guessed labels", low=0)
    ramp: float = settings.share(0.4, "share of the run over which the weight grows, linearly")
    temperature: float = settings.temperature(0.5)
    concentration: float = settings.concentration(0.5)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        known, views = (batch.labelled.images, batch.labelled.label), batch.unlabelled.views
        labelled, guessed = mixmatch_losses(
            model, known, views, 1 / self.temperature, self.concentration, batch.key
        )
        return labelled + self.weight * ramp(frozen["progress"], self.ramp) * guessed

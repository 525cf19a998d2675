"""MixMatch (Berthelot et al., NeurIPS 2019): labels guessed from two views, and all images mixed
with one another.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedglean.losses import mixmatch_losses, ramp
from fedglean.method import Batch, setting
from fedglean.methods.central import Central
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class MixMatch(Central):
    """Algorithm 1 and eqs. (2)-(5). The mixed batch is normalised as a whole, which is what
    interleaving is after.
    """

    views: ClassVar[tuple[str, ...]] = ("weak", "weak")

    weight: float = setting(100.0, "weight of the guessed labels", low=0)
    ramp: float = setting(
        0.4, "share of the run over which the weight grows, linearly", low=0, high=1
    )
    temperature: float = setting(0.5, "sharpening of a guess; 1 leaves it as it is", low=1e-3)
    concentration: float = setting(
        0.5, "both parameters of the Beta distribution of the ratio", low=0.01, high=1
    )

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        known = batch.labelled.images, batch.labelled.label
        labelled, guessed = mixmatch_losses(
            model,
            known,
            batch.unlabelled.views,
            1 / self.temperature,
            self.concentration,
            batch.key,
        )
        return labelled + self.weight * ramp(frozen["progress"], self.ramp) * guessed

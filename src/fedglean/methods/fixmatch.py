"""FixMatch (Sohn et al., NeurIPS 2020): strong views learn the confident answer to weak ones."""

from dataclasses import dataclass

from torch import Tensor

from fedglean.losses import cross_entropy, jointly, pseudo_label_loss
from fedglean.method import Batch
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class FixMatch(Central):
    """Eqs. (3)-(4)."""

    views = ("weak", "strong")

    ratio: int = setting(7, "unlabelled images per labelled one", low=1)
    weight: float = setting(1.0, "weight of the pseudo-labels", low=0)
    threshold: float = settings.share(0.95, "confidence from which a pseudo-label is used")

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        labelled, weak, strong = jointly(model, batch.labelled.images, *batch.unlabelled.views)
        guessed, mask = pseudo_label_loss(weak, strong, self.threshold)
        loss = cross_entropy(labelled, batch.labelled.label) + self.weight * guessed
        return loss, {"confident": mask.mean()}

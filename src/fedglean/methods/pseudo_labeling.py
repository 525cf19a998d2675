"""Pseudo-Labeling (Lee 2013): the model's likeliest class is a label where the model is sure."""

from dataclasses import dataclass

from torch import Tensor

from fedglean.losses import pseudo_label_loss, ramp
from fedglean.method import Batch
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.common import supervised
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class PseudoLabeling(Central):
    """Eq. (15). Lee trusts every label; the threshold is TorchSSL's."""

    views = ("weak",)

    weight: float = setting(1.0, "weight of the pseudo-labels", low=0)
    ramp: float = settings.share(0.4, "share of the run over which the weight grows, linearly")
    threshold: float = settings.share(0.95, "confidence from which a label is used; 0 uses all")

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        logits = model(batch.unlabelled.images)
        guessed, mask = pseudo_label_loss(logits, logits, self.threshold)
        weight = self.weight * ramp(frozen["progress"], self.ramp)
        return supervised(model, batch, frozen) + weight * guessed, {"confident": mask.mean()}

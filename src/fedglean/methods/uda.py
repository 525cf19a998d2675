"""UDA (Xie et al., NeurIPS 2020): strong views learn the sharpened answer to weak ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean.losses import jointly, masked_cross_entropy
from fedglean.method import Batch
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class UDA(Central):
    """Eq. (1), with confidence mask, sharpened targets and, if asked for, signal annealing."""

    views = ("weak", "strong")

    ratio: int = setting(7, "unlabelled images per labelled one", low=1)
    weight: float = setting(1.0, "weight of the unlabelled images", low=0)
    temperature: float = setting(0.4, "sharpening of a target; 1 leaves it as it is", low=1e-3)
    threshold: float = settings.share(0.8, "confidence from which a target is used")
    signal: str = setting(
        "none", "how fast known labels are let in", choices=("none", "linear", "log", "exp")
    )

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        labelled, weak, strong = jointly(model, batch.labelled.images, *batch.unlabelled.views)
        label, weak = batch.labelled.label, weak.detach()
        mask = (weak.softmax(-1).amax(-1) >= self.threshold).to(weak.dtype)
        guessed = masked_cross_entropy(strong, (weak / self.temperature).softmax(-1), mask)
        known = labelled.detach().softmax(-1).gather(-1, label[:, None])[:, 0]
        useful = (known <= self.ceiling(frozen["progress"], labelled.shape[-1])).to(weak.dtype)
        fit = masked_cross_entropy(labelled, label, useful, over="masked")
        return fit + self.weight * guessed, {"confident": mask.mean(), "useful": useful.mean()}

    def ceiling(self, progress: Tensor, classes: int) -> Tensor:
        """eta_t, from chance to 1 over the run: labels that are likelier teach nothing yet."""
        shares = {
            "none": torch.ones_like(progress),
            "linear": progress,
            "log": 1 - torch.exp(-5 * progress),
            "exp": torch.exp(5 * (progress - 1)),
        }
        return 1 - (1 - shares[self.signal]) * (1 - 1 / classes)

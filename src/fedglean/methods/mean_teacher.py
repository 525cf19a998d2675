"""Mean Teacher (Tarvainen and Valpola, NeurIPS 2017): the average of past weights teaches."""

from dataclasses import dataclass

from torch import Tensor

from fedglean.losses import consistency, ramp
from fedglean.method import Batch
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.common import supervised
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.tree import Tree


@dataclass(frozen=True)
class MeanTeacher(Central):
    """Eqs. (1)-(2). In USB's code the teacher is compared with itself, without a gradient."""

    views = ("weak", "weak")

    weight: float = setting(50.0, "weight of the consistency with the teacher", low=0)
    ramp: float = settings.share(0.4, "share of the run over which the weight grows")

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        own, others = batch.unlabelled.views
        # The teacher normalises by its batch like the student; its statistics stay as they are.
        teacher = frozen["average"].for_training()
        weight = self.weight * ramp(frozen["progress"], self.ramp, "sigmoid")
        return supervised(model, batch, frozen) + weight * consistency(model(own), teacher(others))

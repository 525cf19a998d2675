"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are pulled to the model they were sent.

Only clients with labels train, on their labelled images, and weigh by the number of those; other
images and clients count for nothing but the test statistics of static batch norm.

The pull also makes unfinished work safe to average. `stragglers` is the paper's experiment on that:
some visits end after a random number of epochs, and count all the same.
"""

from dataclasses import dataclass

from torch import Tensor

from fedglean.losses import squared_distance
from fedglean.method import Batch, Hub, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import epochs_in_time, fedavg_round, supervised
from fedglean.methods.settings import SKEWED, WithSGD, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import cosine
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedProx(WithSGD, Method):
    """Algorithm 2 with epochs of SGD as its local solver; without proximity it is FedAvg."""

    defaults = on_a_laptop(
        20, SKEWED, active=0.4, epochs=2, batch=32, rate=0.1, view="plain", proximity_weight=0.1
    )
    check = needs_labels_at_clients("FedProx")

    active: float = settings.active(0.4)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = settings.rate(0.05)
    annealed: bool = settings.annealed()
    momentum: float = settings.momentum(0.0)
    decay: float = settings.decay(0.0)
    proximity_weight: float = setting(0.01, "mu of eq. (2): pull towards the model sent", low=0)
    stragglers: float = settings.stragglers()
    view: str = settings.view("weak")

    async def round(self, hub: Hub, state: Record) -> Record:
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        return await fedavg_round(self.client, hub.sample(self.active), hub, state, rate=rate)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        model, rate = message.model, message.rate
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        epochs = epochs_in_time(me, self.epochs, self.stragglers)
        frozen = {"sent": model.parameters}
        trained = await Train(
            model, streams, self.loss, self.sgd, epochs=epochs, frozen=frozen, rate=rate
        )
        return Upload(model=trained.model, weight=len(me.labelled), report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eq. (2)."""
        distance = squared_distance(model.parameters, frozen["sent"])
        return supervised(model, batch, frozen) + self.proximity_weight / 2 * distance

"""FedProx (Li et al., MLSys 2020): FedAvg whose clients are held back towards the model that they
were sent.

Only clients with labels train, on their labelled images, and weigh by the number of those; a
partially labelled client's other images and an unlabelled client count for nothing but the test
statistics of static batch norm.

The pull also makes unfinished work safe to average. `stragglers` is the paper's experiment on that:
some visits end after a random number of epochs, and count all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedglean.losses import squared_distance
from fedglean.method import Batch, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import averaged, epochs_managed, need_labels_at_clients, supervised
from fedglean.models import Model
from fedglean.optimiser import cosine
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedProx(Method):
    """Algorithm 2, its local problem solved by so many epochs of SGD; without proximity it is
    FedAvg.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20,
        "split": {"partition": "dirichlet:0.1", "labels": "all", "clients": 10},
        "settings": {
            "active": 0.4,
            "epochs": 2,
            "batch": 32,
            "rate": 0.1,
            "view": "plain",
            "proximity_weight": 0.1,
        },
    }

    active: float = setting(0.4, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(0.05, "learning rate", low=0)
    annealed: bool = setting(False, "anneal the rate by a cosine over the rounds")
    momentum: float = setting(0.0, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(0.0, "weight decay", low=0)
    proximity_weight: float = setting(
        0.01, "mu of eq. (2): pull towards the model that was sent", low=0
    )
    stragglers: float = setting(
        0.0, "share of the visits that end after a random number of the epochs", low=0, high=1
    )
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedProx", clients)

    async def round(self, hub: Hub, state: Record) -> Record:
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        return await averaged(self.client, hub.sample(self.active), hub, state, rate=rate)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        sgd, epochs = (
            self.optimiser(self.rate, self.momentum, decay=self.decay),
            epochs_managed(me, self.epochs, self.stragglers),
        )
        frozen = {"sent": message.model.parameters}
        trained = await Train(
            message.model, streams, self.loss, sgd, epochs=epochs, frozen=frozen, rate=message.rate
        )
        return Upload(model=trained.model, weight=len(me.labelled), report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eq. (2)."""
        distance = squared_distance(model.parameters, frozen["sent"])
        return supervised(model, batch, frozen) + self.proximity_weight / 2 * distance

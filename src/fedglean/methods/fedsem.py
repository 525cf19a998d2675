"""FedSem (Albaseer, Ciftler, Abdallah, Al-Fuqaha 2020): first the labels alone, then pseudo-labels
beside them.

FedAvg in two phases. In the first one clients train on their labels; in the second each one that
takes part labels the rest of its images with the global model it received, and trains on both as
one set. Every pseudo-label counts.

A fully labelled client does FedAvg throughout, a partially labelled one both phases, an unlabelled
one joins in the second. Clients weigh by the images that they trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedglean.method import Declared, Hub, Me, Method, Predict, Stream, Train, Upload, setting
from fedglean.methods.common import averaged, need_labels_at_clients, supervised
from fedglean.tree import Record


@dataclass(frozen=True)
class FedSem(Method):
    """The paper leaves open how long the first phase is; labels are guessed afresh at every
    visit.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 25,
        "split": {"partition": "iid", "labels": "mismatch-digits:6", "clients": 10},
        "model": {"name": "mlp"},
    }

    active: float = setting(1.0, "share of the clients that take part in a round", low=0, high=1)
    labels_only: float = setting(
        0.5, "share of the rounds that train on labels only", low=0, high=1
    )
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(32, "batch size", low=1)
    rate: float = setting(0.01, "learning rate", low=0)
    momentum: float = setting(0.0, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(0.0, "weight decay", low=0)
    view: str = setting("plain", "how images are seen in training", names="VIEWS")

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedSem", clients)

    async def round(self, hub: Hub, state: Record) -> Record:
        guessing = hub.progress >= self.labels_only
        return await averaged(self.client, hub.sample(self.active), hub, state, guessing=guessing)

    async def client(self, me: Me, message: Record) -> Upload | None:
        images = me.labelled
        if message.guessing and len(me.unlabelled):
            guess = await Predict(message.model, me.unlabelled, threshold=0.0)
            images = images + guess.hard
        if not len(images):
            return None
        streams = {"labelled": Stream(images, view=self.view, batch=self.batch)}
        sgd = self.optimiser(self.rate, self.momentum, decay=self.decay)
        trained = await Train(message.model, streams, supervised, sgd, epochs=self.epochs)
        return Upload(model=trained.model, weight=len(images), report=trained.metrics)

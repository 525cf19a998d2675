"""FedSem (Albaseer et al. 2020): first the labels alone, then pseudo-labels beside them.

FedAvg in two phases. In the first one clients train on their labels; in the second each one that
takes part labels the rest of its images with the global model it received, and trains on both as
one set. Every pseudo-label counts.

A fully labelled client does FedAvg throughout, a partially labelled one both phases, an unlabelled
one joins in the second. Clients weigh by the images that they trained on.
"""

from dataclasses import dataclass

from fedglean.method import Hub, Me, Method, Predict, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import fedavg_round, supervised
from fedglean.methods.settings import (
    MISMATCH,
    MLP,
    WithSGD,
    needs_labels_at_clients,
    on_a_laptop,
    setting,
)
from fedglean.tree import Record


@dataclass(frozen=True)
class FedSem(WithSGD, Method):
    """Guesses anew at every visit; the paper leaves open how long the first phase is."""

    defaults = on_a_laptop(25, MISMATCH, MLP)
    check = needs_labels_at_clients("FedSem")

    active: float = settings.active(1.0)
    labels_only: float = settings.share(0.5, "share of the rounds that train on labels only")
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(32, "batch size", low=1)
    rate: float = settings.rate(0.01)
    momentum: float = settings.momentum(0.0)
    decay: float = settings.decay(0.0)
    view: str = settings.view("plain")

    async def round(self, hub: Hub, state: Record) -> Record:
        to, guessing = hub.sample(self.active), hub.progress >= self.labels_only
        return await fedavg_round(self.client, to, hub, state, guessing=guessing)

    async def client(self, me: Me, message: Record) -> Upload | None:
        images = me.labelled
        if message.guessing and me.unlabelled:
            guess = await Predict(message.model, me.unlabelled, threshold=0.0)
            images = images + guess.hard
        if not images:
            return None
        streams = {"labelled": Stream(images, view=self.view, batch=self.batch)}
        trained = await Train(message.model, streams, supervised, self.sgd, epochs=self.epochs)
        return Upload(model=trained.model, weight=len(images), report=trained.metrics)

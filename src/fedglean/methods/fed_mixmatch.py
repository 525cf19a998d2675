"""FedAvg+MixMatch: MixMatch (Berthelot et al. 2019) at clients, a baseline of HASSLE (2023).

A fully labelled client does FedAvg and a partially labelled one MixMatch, as in HASSLE's baseline;
an unlabelled one, which has nothing to mix its guesses with, stays away. Clients weigh by their
number of images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean.losses import mixmatch_losses
from fedglean.method import Batch, Hub, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import fedavg_round, supervised
from fedglean.methods.settings import WithSGD, iid, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedMixMatch(WithSGD, Method):
    """The weight of the unlabelled loss grows by rounds, from nothing in the first one."""

    defaults = on_a_laptop(
        30, iid("each:6"), active=1.0, epochs=1, batch=10, rate=0.03, unlabelled_weight=5.0
    )
    check = needs_labels_at_clients("FedAvg+MixMatch")

    active: float = settings.active(0.4)
    epochs: int = setting(10, "local epochs over unlabelled images; labelled ones cycle", low=1)
    batch: int = setting(128, "batch size, of labelled and of unlabelled images alike", low=1)
    temperature: float = settings.temperature(0.5)
    mix_concentration: float = settings.concentration(0.75, of="Mixup ratio")
    unlabelled_weight: float = setting(75.0, "weight of the unlabelled loss, fully grown", low=0)
    ramp: float = settings.share(0.4, "share of the rounds over which that weight grows, linearly")
    rate: float = settings.rate(0.1)
    momentum: float = settings.momentum(0.9)
    decay: float = settings.decay(0.0)

    async def round(self, hub: Hub, state: Record) -> Record:
        share = min(1.0, hub.progress / self.ramp) if self.ramp else 1.0
        to, weight = hub.sample(self.active), share * self.unlabelled_weight
        return await fedavg_round(self.client, to, hub, state, weight=weight)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        streams = {"labelled": Stream(me.labelled, batch=self.batch)}
        loss, frozen = supervised, {}
        if me.unlabelled:
            views = Stream(me.unlabelled, view=("weak", "weak"), batch=self.batch)
            streams = {"unlabelled": views, **streams}
            loss, frozen = self.loss, {"weight": torch.tensor(message.weight, dtype=torch.float64)}
        trained = await Train(
            message.model, streams, loss, self.sgd, epochs=self.epochs, frozen=frozen
        )
        total = len(me.labelled) + len(me.unlabelled)
        return Upload(model=trained.model, weight=total, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eqs. (2)-(5) of MixMatch."""
        known, views = (batch.labelled.images, batch.labelled.label), batch.unlabelled.views
        labelled, guessed = mixmatch_losses(
            model, known, views, 1 / self.temperature, self.mix_concentration, batch.key
        )
        weight: Tensor = frozen["weight"].to(guessed.dtype)
        return labelled + weight * guessed

"""FedAvg+MixMatch: MixMatch (Berthelot et al. 2019) at clients with labels, a baseline of HASSLE
(2023).

A fully labelled client does FedAvg and a partially labelled one MixMatch, as in HASSLE's baseline;
an unlabelled one, which has nothing to mix its guesses with, stays away. Clients weigh by their
number of images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean.losses import mixmatch_losses
from fedglean.method import Batch, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import averaged, need_labels_at_clients, supervised
from fedglean.models import Model
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedMixMatch(Method):
    """The weight of the unlabelled loss grows by rounds, from nothing in the first one."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 30,
        "split": {"partition": "iid", "labels": "each:6", "clients": 10},
        "settings": {
            "active": 1.0,
            "epochs": 1,
            "batch": 10,
            "rate": 0.03,
            "unlabelled_weight": 5.0,
        },
    }

    active: float = setting(0.4, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(
        10, "local epochs over the unlabelled images; the labelled ones are cycled", low=1
    )
    batch: int = setting(128, "batch size, of labelled and of unlabelled images alike", low=1)
    temperature: float = setting(0.5, "sharpening of a guess; 1 leaves it as it is", low=1e-3)
    mix_concentration: float = setting(
        0.75, "both parameters of the Beta distribution of the Mixup ratio", low=0.01, high=1
    )
    unlabelled_weight: float = setting(
        75.0, "weight of the unlabelled loss once it has grown", low=0
    )
    ramp: float = setting(
        0.4, "share of the rounds over which that weight grows, linearly", low=0, high=1
    )
    rate: float = setting(0.1, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(0.0, "weight decay", low=0)

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedAvg+MixMatch", clients)

    async def round(self, hub: Hub, state: Record) -> Record:
        share = min(1.0, hub.progress / self.ramp) if self.ramp else 1.0
        weight = share * self.unlabelled_weight
        return await averaged(self.client, hub.sample(self.active), hub, state, weight=weight)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, batch=self.batch)}
        loss, frozen = supervised, {}
        if len(me.unlabelled):
            streams = {
                "unlabelled": Stream(me.unlabelled, view=("weak", "weak"), batch=self.batch),
                **streams,
            }
            loss, frozen = self.loss, {"weight": torch.tensor(message.weight, dtype=torch.float64)}
        sgd = self.optimiser(self.rate, self.momentum, decay=self.decay)
        trained = await Train(message.model, streams, loss, sgd, epochs=self.epochs, frozen=frozen)
        return Upload(
            model=trained.model,
            weight=len(me.labelled) + len(me.unlabelled),
            report=trained.metrics,
        )

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eqs. (2)-(5) of MixMatch."""
        known = batch.labelled.images, batch.labelled.label
        labelled, guessed = mixmatch_losses(
            model,
            known,
            batch.unlabelled.views,
            1 / self.temperature,
            self.mix_concentration,
            batch.key,
        )
        weight: Tensor = frozen["weight"].to(guessed.dtype)
        return labelled + weight * guessed

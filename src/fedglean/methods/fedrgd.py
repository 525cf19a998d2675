"""FedRGD (Zhang et al. 2020): labels at the hub, FixMatch at clients that are averaged in groups.

Clients that all go on from one mean drift as one. So the hub has a copy of its model for each of a
few groups of clients; a group's mean includes its copy, the group's clients go on from this mean,
and only the copies meet: the hub's model is the mean of the group means. Group norm replaces batch
norm, whose statistics differ between clients.

Defaults follow the released code. There the groups are fixed because every client takes part; with
fewer, those of a round are cut into groups by number. What SemiFL's Table 1 calls FedRGD is
`fedrgd-semifl`.

A client trains on its unlabelled images; labels at clients are not used, and a client with nothing
else stays away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedglean import tree
from fedglean.losses import lanes, pseudo_label_loss
from fedglean.method import (
    Ask,
    Batch,
    Hub,
    Loss,
    MakeModel,
    Me,
    Method,
    Stream,
    Train,
    Upload,
    together,
)
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.settings import WithSGD, needs_labels_at_hub, on_a_laptop, setting
from fedglean.models import Model
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class FedRGDState(State):
    """The model, the mean of every group, and what the hub's copies remember."""

    model: Model
    means: list[Model]
    memories: list[Tree]


@dataclass(frozen=True)
class FedRGD(WithSGD, Method):
    """Grouping-based averaging; with one group it is FedAvg with the hub as one more client."""

    defaults = on_a_laptop(
        40, {"labels": "hub:100"}, {"norm": "group"}, active=0.2, steps=10, batch=10, warm_up=0.2
    )
    nesterov = True
    check = needs_labels_at_hub("FedRGD", instead="hassle")

    active: float = settings.active(1.0)
    groups: int = setting(2, "S: groups of clients", low=1)
    steps: int = setting(16, "T: local steps, at the hub and at clients", low=1)
    batch: int = setting(64, "batch size", low=1)
    threshold: float = settings.threshold(0.95)
    rate: float = settings.rate(0.09, "largest rate: 0.03 x parties of a group x batch / 128")
    warm_up: float = settings.share(1 / 60, "share of the rounds over which the rate grows")
    momentum: float = settings.momentum(0.9, "Nesterov momentum, kept from visit to visit")
    decay: float = settings.decay(1e-4)

    def start(self, make: MakeModel) -> FedRGDState:
        model = make("model")
        memories = [self.sgd.init(model)] * self.groups
        return FedRGDState(model, means=[model] * self.groups, memories=memories)

    def rate_of(self, hub: Hub) -> float:
        """Grows linearly, then falls along 7/16 of a cosine's half wave, as FixMatch's does."""
        grown = min(1.0, hub.round / (self.warm_up * hub.rounds)) if self.warm_up else 1.0
        return self.rate * grown * math.cos(math.pi * 7 / 16 * hub.progress)

    async def round(self, hub: Hub, state: FedRGDState) -> FedRGDState:
        rate, active = self.rate_of(hub), hub.sample(self.active)
        streams = {"labelled": Stream(hub.labelled, batch=self.batch)}
        trainings = [
            self.training(state.model, streams, supervised, memory, rate)
            for memory in state.memories
        ]
        copies = await together(*trainings)
        means = []
        for number, copy in enumerate(copies):
            to = group(active, number, self.groups)
            message = {"model": state.means[number], "rate": rate}
            reply = await Ask(self.client, to, message, once=["model"])
            means.append(mean_with(copy.model, reply.sum("model"), reply.count("model")))
        mean = tree.map(lambda *models: sum(models) / self.groups, *means)
        model = await with_statistics(mean, hub)
        return FedRGDState(model, means, memories=[copy.memory for copy in copies])

    def training(
        self, model: Model, streams: dict[str, Stream], loss: Loss, memory: Tree, rate: float
    ) -> Train:
        return Train(model, streams, loss, self.sgd, steps=self.steps, memory=memory, rate=rate)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.unlabelled:
            return None
        streams = {"images": Stream(me.unlabelled, view=("weak", "strong"), batch=self.batch)}
        trained = await self.training(message.model, streams, self.loss, me.state, message.rate)
        return Upload(model=trained.model, keep=trained.memory, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """FixMatch with labels that the model in training gives, batch by batch."""
        weak, strong = lanes(model, *batch.images.views)
        loss, mask = pseudo_label_loss(weak, strong, self.threshold)
        return loss, {"confident": mask.mean()}


def group(active: Sequence[int], number: int, groups: int) -> list[int]:
    """The clients of one group: neighbours by number, as many in each or one more or less."""
    places = [place * groups // len(active) for place in range(len(active))]
    return [client for place, client in zip(places, active, strict=True) if place == number]


def mean_with(copy: Model, total: Model, count: int) -> Model:
    """The mean of a group's clients and the hub's copy, each with weight 1 / (|G| + 1)."""
    mean: Model = tree.map(lambda own, summed: (own + summed) / (count + 1), copy, total)
    return mean

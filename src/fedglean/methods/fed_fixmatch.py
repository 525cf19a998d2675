"""FixMatch (Sohn et al. 2020) in a federation, the plain way: a baseline of HASSLE (2023) and of
SemiFL (2022).

Labels at clients: FedAvg with FixMatch's loss at each of them. Labels at the hub: `semifl` with
parallel training and labels by batch is FedAvg+FixMatch (`fedavg-fixmatch-hub`); here is
FedSGD+FixMatch, which exchanges gradients after every batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean import tree
from fedglean.losses import lanes, pseudo_label_loss
from fedglean.method import Ask, Batch, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import (
    averaged,
    need_labels_at_clients,
    need_labels_at_hub,
    pooled,
    supervised,
    with_statistics,
)
from fedglean.models import Model
from fedglean.optimiser import SGD, Optimiser, cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class FedFixMatch(Method):
    """Labels at clients. HASSLE's code for it is not public; defaults are those of SAGE's benchmark
    (2025).

    A fully labelled client does FedAvg and a partially labelled one FixMatch, as in HASSLE's
    baseline; an unlabelled one, which FixMatch alone would teach nothing, stays away.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 30,
        "split": {"partition": "iid", "labels": "each:6", "clients": 10},
        "settings": {
            "active": 1.0,
            "epochs": 1,
            "labelled_batch": 10,
            "unlabelled_batch": 20,
            "rate": 0.03,
            "threshold": 0.9,
        },
    }

    active: float = setting(0.4, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(
        5, "local epochs; each is as many steps as labelled batches fit into all images", low=1
    )
    labelled_batch: int = setting(128, "batch size of labelled images", low=1)
    unlabelled_batch: int = setting(256, "batch size of all images, seen without labels", low=1)
    threshold: float = setting(
        0.95, "confidence from which a pseudo-label is trusted", low=0, high=1
    )
    unlabelled_weight: float = setting(1.0, "weight of the unlabelled loss", low=0)
    labels_from: str = setting(
        "local",
        "the model in training labels, or the global one that was received",
        choices=("local", "global"),
    )
    rate: float = setting(0.1, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(1e-4, "weight decay", low=0)

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedAvg+FixMatch", clients)

    async def round(self, hub: Hub, state: Record) -> Record:
        return await averaged(self.client, hub.sample(self.active), hub, state)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        trained = await self.training(me, message.model)
        return Upload(
            model=trained.model,
            weight=len(me.labelled) + len(me.unlabelled),
            report=trained.metrics,
        )

    def training(self, me: Me, model: Model) -> Train:
        sgd = self.optimiser(self.rate, self.momentum, decay=self.decay)
        streams, steps = pooled(me, self.labelled_batch, self.unlabelled_batch)
        if not len(me.unlabelled):
            return Train(
                model, {"labelled": streams["labelled"]}, supervised, sgd, steps=self.epochs * steps
            )
        frozen = {"labeller": model} if self.labels_from == "global" else {}
        return Train(model, streams, self.loss, sgd, steps=self.epochs * steps, frozen=frozen)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """Eqs. (3)-(4) of FixMatch.

        Labelled and strong views are normalised apart: together, the global model's answers to weak
        views go astray.
        """
        weak, strong = batch.unlabelled.views
        if "labeller" in frozen:
            guess, logits = frozen["labeller"].evaluate(weak), model(strong)
        else:
            guess, logits = lanes(model, weak, strong)
        guessed, mask = pseudo_label_loss(guess, logits, self.threshold)
        return supervised(model, batch, frozen) + self.unlabelled_weight * guessed, {
            "confident": mask.mean()
        }


#: A step of length 1 that starts at the model ends at the model minus the gradient.
GRADIENT = SGD(rate=1.0)


@dataclass(frozen=True)
class FedSGDState(State):
    """The model and the memory of the hub's optimiser."""

    model: Model
    memory: Tree


@dataclass(frozen=True)
class FedSGDFixMatch(Method):
    """Labels at the hub: Fig. 2 of SemiFL, where FixMatch works because all gradients of a batch
    are taken together.

    Every step is an exchange: the hub's gradient on a batch of labels and the mean of the clients'
    on a batch of their unlabelled images each, all at the same model, make one step of momentum at
    the hub. Labels at clients are not used.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 40,
        "settings": {"active": 0.25, "threshold": 0.9, "steps": 10},
    }

    active: float = setting(0.1, "share of the clients that take part in a round", low=0, high=1)
    steps: int = setting(250, "steps per round, each an exchange with all of them", low=1)
    threshold: float = setting(
        0.95, "confidence from which a pseudo-label is trusted", low=0, high=1
    )
    unlabelled_weight: float = setting(1.0, "weight of the clients' gradient", low=0)
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    client_batch: int = setting(10, "batch size at each client", low=1)
    rate: float = setting(
        0.03, "learning rate of round 1, annealed by a cosine over the rounds", low=0
    )
    momentum: float = setting(0.9, "Nesterov momentum", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(1.0, "largest norm of the common gradient", low=1e-6)

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay, clip=self.clip
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_hub("FedSGD+FixMatch", hub_labels, instead="fedavg-fixmatch")

    def start(self, make: Callable[..., Model]) -> FedSGDState:
        model = make("model")
        return FedSGDState(model=model, memory=self.sgd.init(model))

    async def round(self, hub: Hub, state: FedSGDState) -> FedSGDState:
        model, memory = state.model, state.memory
        rate = torch.tensor(cosine(self.rate, hub.progress), dtype=torch.float64)
        streams = {"labelled": Stream(hub.labelled, batch=self.hub_batch)}
        clients = hub.sample(self.active)
        for _ in range(self.steps):
            own = await Train(model, streams, supervised, GRADIENT, steps=1)
            reply = await Ask(self.client, clients, {"model": model}, once=["model"])
            gradient = tree.map(
                lambda at, hubs, clients: (at - hubs) + self.unlabelled_weight * (at - clients),
                *(dict(each.parameters) for each in (model, own.model, reply.mean("model"))),
            )
            weights, memory = self.sgd.update(dict(model.parameters), memory, gradient, rate)
            model = own.model.with_parameters(weights)
        models = await with_statistics({"model": model}, hub, "everyone")
        return FedSGDState(model=models["model"], memory=memory)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.unlabelled):
            return None
        streams = {
            "unlabelled": Stream(me.unlabelled, view=("weak", "strong"), batch=self.client_batch)
        }
        trained = await Train(message.model, streams, self.loss, GRADIENT, steps=1)
        return Upload(model=trained.model, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        weak, strong = lanes(model, *batch.unlabelled.views)
        guessed, mask = pseudo_label_loss(weak, strong, self.threshold)
        return guessed, {"confident": mask.mean()}

"""Supervised baselines: what the labels alone are worth, and what all labels would be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedglean.method import Ask, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import (
    need_labels_at_clients,
    need_labels_at_hub,
    supervised,
    with_statistics,
)
from fedglean.models import Model
from fedglean.optimiser import Optimiser, cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class HubTrainingState(State):
    """The model and the memory of its optimiser."""

    model: Model
    memory: Tree


@dataclass(frozen=True)
class HubTraining(Method):
    """Training at the hub alone: a round is so many epochs, and nothing is sent."""

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 40}

    epochs: int = setting(5, "epochs per round", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(
        0.03, "learning rate of round 1, annealed by a cosine over the rounds", low=0
    )
    momentum: float = setting(0.9, "Nesterov momentum", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(1.0, "largest norm of a gradient", low=1e-6)

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay, clip=self.clip
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_hub("training at the hub", hub_labels, instead="fedavg")

    def start(self, make: Callable[..., Model]) -> HubTrainingState:
        model = make("model")
        return HubTrainingState(model=model, memory=self.sgd.init(model))

    async def round(self, hub: Hub, state: HubTrainingState) -> HubTrainingState:
        streams = {"labelled": Stream(hub.labelled, view="weak", batch=self.batch)}
        rate = cosine(self.rate, hub.progress)
        trained = await Train(
            state.model,
            streams,
            supervised,
            self.sgd,
            epochs=self.epochs,
            memory=state.memory,
            rate=rate,
        )
        models = await with_statistics({"model": trained.model}, hub, "hub")
        return HubTrainingState(model=models["model"], memory=trained.memory)

    async def finish(self, hub: Hub, state: HubTrainingState) -> HubTrainingState | None:
        """SemiFL ends on one more training at the hub: what it is measured against does too."""
        return await self.round(hub, state)


@dataclass(frozen=True)
class FedAvg(Method):
    """FedAvg (McMahan et al. 2017) on the labels that clients have, weighted by their number."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 25,
        "split": {"partition": "iid", "labels": "mismatch-digits:6", "clients": 10},
        "model": {"name": "mlp"},
        "settings": {"active": 1.0, "epochs": 2, "batch": 32, "rate": 0.1, "view": "plain"},
    }

    active: float = setting(0.4, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(0.05, "learning rate", low=0)
    annealed: bool = setting(False, "anneal the rate by a cosine over the rounds")
    momentum: float = setting(0.0, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(0.0, "weight decay", low=0)
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(self.rate, self.momentum, decay=self.decay)

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedAvg", clients)

    async def round(self, hub: Hub, state: Record) -> Record:
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        message = {"model": state.model.for_training(), "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message)
        models = await with_statistics({"model": reply.mean("model")}, hub, "everyone")
        return Record(model=models["model"])

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        trained = await Train(
            message.model, streams, supervised, self.sgd, epochs=self.epochs, rate=message.rate
        )
        return Upload(model=trained.model, weight=len(me.labelled), report=trained.metrics)

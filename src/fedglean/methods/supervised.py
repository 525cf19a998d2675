"""Supervised baselines: what the labels alone are worth, and what all labels would be."""

from dataclasses import dataclass

from fedglean.method import Ask, Hub, MakeModel, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import ModelAndMemory, supervised, with_statistics
from fedglean.methods.settings import (
    MISMATCH,
    MLP,
    WithSGD,
    needs_labels_at_clients,
    needs_labels_at_hub,
    on_a_laptop,
    setting,
)
from fedglean.optimiser import cosine
from fedglean.tree import Record


@dataclass(frozen=True)
class HubTraining(WithSGD, Method):
    """Training at the hub alone: a round is so many epochs, and nothing is sent."""

    defaults = on_a_laptop(rounds=40)
    nesterov = True
    check = needs_labels_at_hub("training at the hub", instead="fedavg")

    epochs: int = setting(5, "epochs per round", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = settings.annealed_rate(0.03)
    momentum: float = settings.momentum(0.9, "Nesterov momentum")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(1.0)

    def start(self, make: MakeModel) -> ModelAndMemory:
        model = make("model")
        return ModelAndMemory(model, self.sgd.init(model))

    async def round(self, hub: Hub, state: ModelAndMemory) -> ModelAndMemory:
        model, memory = state.model, state.memory
        streams = {"labelled": Stream(hub.labelled, view="weak", batch=self.batch)}
        rate = cosine(self.rate, hub.progress)
        trained = await Train(
            model, streams, supervised, self.sgd, epochs=self.epochs, memory=memory, rate=rate
        )
        return ModelAndMemory(await with_statistics(trained.model, hub, "hub"), trained.memory)

    async def finish(self, hub: Hub, state: ModelAndMemory) -> ModelAndMemory:
        """SemiFL ends on one more training at the hub: what it is measured against does too."""
        return await self.round(hub, state)


@dataclass(frozen=True)
class FedAvg(WithSGD, Method):
    """FedAvg (McMahan et al. 2017) on the labels that clients have, weighted by their number."""

    defaults = on_a_laptop(
        25, MISMATCH, MLP, active=1.0, epochs=2, batch=32, rate=0.1, view="plain"
    )
    check = needs_labels_at_clients("FedAvg")

    active: float = settings.active(0.4)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = settings.rate(0.05)
    annealed: bool = settings.annealed()
    momentum: float = settings.momentum(0.0)
    decay: float = settings.decay(0.0)
    view: str = settings.view("weak")

    async def round(self, hub: Hub, state: Record) -> Record:
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        message = {"model": state.model.for_training(), "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message)
        return Record(model=await with_statistics(reply.mean("model"), hub))

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        trained = await Train(
            message.model, streams, supervised, self.sgd, epochs=self.epochs, rate=message.rate
        )
        return Upload(model=trained.model, weight=len(me.labelled), report=trained.metrics)

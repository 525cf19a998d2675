"""FedNova (Wang et al., NeurIPS 2020): one objective, however many steps each client takes.

FedAvg weighs a client by its steps as well as by its images, and so ends somewhere else. FedNova
divides the way that each client went by how many gradients are in it, averages by images alone, and
goes that way as far as the clients did in the mean.

Only clients with labels train, on their labelled images; other images and clients count for nothing
but the test statistics of static batch norm.

A client sends its model as it is: the division is in its weight. With momentum and proximity
together the released code adds up both counts of gradients; here it is the exact count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.method import Ask, Batch, Expect, Hub, MakeModel, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import (
    ModelAndVelocity,
    epochs_in_time,
    supervised,
    with_momentum,
    with_statistics,
)
from fedglean.methods.settings import SKEWED, WithSGD, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import cosine, standard_step
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedNova(WithSGD, Method):
    """Normalised averaging for SGD, with momentum, proximity or both, and momentum at the hub."""

    needs_sgd = True
    defaults = on_a_laptop(20, SKEWED, active=0.4, epochs=2, batch=32, rate=0.1, view="plain")
    check = needs_labels_at_clients("FedNova")

    active: float = settings.active(0.4)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = settings.rate(0.05)
    annealed: bool = settings.annealed()
    momentum: float = settings.momentum(0.0)
    decay: float = settings.decay(0.0)
    proximity_weight: float = setting(0.0, "pull towards the model sent, after momentum", low=0)
    global_momentum: float = setting(0.0, "momentum of the hub's step", low=0, high=0.99)
    stragglers: float = settings.stragglers()
    view: str = settings.view("weak")

    def __post_init__(self) -> None:
        pull = self.rate * self.proximity_weight
        if pull >= 1:
            raise ConfigError(
                "FedNova's rate x proximity_weight must be below 1, or its pull overshoots the "
                f"model that was sent, not {pull:g}"
            )

    def start(self, make: MakeModel) -> ModelAndVelocity:
        model = make("model")
        return ModelAndVelocity(model, tree.zeros(model.parameters))

    async def round(self, hub: Hub, state: ModelAndVelocity) -> ModelAndVelocity:
        model = state.model
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        # An image gives at most a step an epoch, and its gradient is used 1 / (1 - momentum) times.
        count = torch.zeros((), dtype=torch.float64)
        steps = Expect(count, bound=self.epochs / (1 - self.momentum), low=0)
        message = {"model": model, "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message, expect={"steps": steps})
        if not (reply.weight("model") and reply.weight("steps")):
            return state
        # tau_eff sum_k p_k d_k: models come weighted by n_k / a_k, steps by n_k.
        stretch = float(reply.mean("steps")) * reply.weight("model") / reply.weight("steps")
        mean = reply.mean("model")
        weights = tree.map(lambda w, m: w + stretch * (m - w), model.parameters, mean.parameters)
        mean = mean.with_parameters(weights)
        model, velocity = with_momentum(model, mean, state.velocity, self.global_momentum)
        return ModelAndVelocity(await with_statistics(model, hub), velocity)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        model, rate = message.model, message.rate
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        epochs = epochs_in_time(me, self.epochs, self.stragglers)
        frozen = {"sent": model.parameters}
        trained = await Train(
            model, streams, None, self.sgd, self.step, epochs=epochs, frozen=frozen, rate=rate
        )
        gradients = gradients_in(trained.steps, self.momentum, rate * self.proximity_weight)
        steps = float(trained.steps) if self.proximity_weight else gradients
        return Upload(
            model=trained.model,
            steps=torch.tensor(steps, dtype=torch.float64),
            weight={"model": len(me.labelled) / gradients, "steps": len(me.labelled)},
            report=trained.metrics,
        )

    def step(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The standard step, and outside of its momentum the pull back to where the visit began."""
        new, memory, metrics = standard_step(supervised, self.sgd)(model, memory, batch, frozen)
        if not self.proximity_weight:
            return new, memory, metrics
        pull = batch.rate * self.proximity_weight
        weights = tree.map(
            lambda n, w, s: n - pull.to(w.dtype) * (w - s),
            new.parameters,
            model.parameters,
            frozen["sent"],
        )
        return new.with_parameters(weights), memory, metrics


def gradients_in(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """a_k: how often a visit's gradients are in the way it went; for plain SGD its steps."""
    total = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        total = (1 - pull) * total + velocity
    return total

"""FedNova (Wang et al., NeurIPS 2020): clients that take different numbers of steps still minimise
the one objective.

FedAvg weighs a client by its steps as well as by its images, and so ends somewhere else. FedNova
divides the way that each client went by how many gradients are in it, averages by images alone, and
goes that way as far as the clients did in the mean.

Only clients with labels train, on their labelled images; a partially labelled client's other images
and an unlabelled client count for nothing but the test statistics of static batch norm.

A client sends its model as it is: the division is in its weight. With momentum and proximity
together the released code adds up both counts of gradients; here it is the exact count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.method import (
    Ask,
    Batch,
    Declared,
    Expect,
    Hub,
    Me,
    Method,
    Stream,
    Train,
    Upload,
    setting,
)
from fedglean.methods.common import (
    epochs_managed,
    need_labels_at_clients,
    supervised,
    with_momentum,
    with_statistics,
)
from fedglean.models import Model
from fedglean.optimiser import SGD, cosine, standard_step
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class FedNovaState(State):
    """The model and the velocity of the hub's steps."""

    model: Model
    velocity: Tree


@dataclass(frozen=True)
class FedNova(Method):
    """Normalised averaging for SGD, with momentum, proximity or both at the clients, and momentum
    at the hub.
    """

    needs_sgd: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20,
        "split": {"partition": "dirichlet:0.1", "labels": "all", "clients": 10},
        "settings": {"active": 0.4, "epochs": 2, "batch": 32, "rate": 0.1, "view": "plain"},
    }

    active: float = setting(0.4, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(0.05, "learning rate", low=0)
    annealed: bool = setting(False, "anneal the rate by a cosine over the rounds")
    momentum: float = setting(0.0, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(0.0, "weight decay", low=0)
    proximity_weight: float = setting(
        0.0, "pull towards the model that was sent, after the momentum", low=0
    )
    global_momentum: float = setting(0.0, "momentum of the hub's step", low=0, high=0.99)
    stragglers: float = setting(
        0.0, "share of the visits that end after a random number of the epochs", low=0, high=1
    )
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

    def __post_init__(self) -> None:
        if self.rate * self.proximity_weight >= 1:
            raise ConfigError(
                "FedNova's rate x proximity_weight must be below 1, or its pull overshoots the "
                "model that was sent, "
                f"not {self.rate * self.proximity_weight:g}"
            )

    @property
    def sgd(self) -> SGD:
        return SGD(self.rate, self.momentum, decay=self.decay)

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedNova", clients)

    def start(self, make: Callable[..., Model]) -> FedNovaState:
        model = make("model")
        return FedNovaState(model=model, velocity=tree.zeros(dict(model.parameters)))

    async def round(self, hub: Hub, state: FedNovaState) -> FedNovaState:
        model, rate = state.model, cosine(self.rate, hub.progress) if self.annealed else self.rate
        # A client's epochs have at most a step an image, and a gradient is used up to 1 / (1 -
        # momentum) times.
        steps = Expect(
            torch.zeros((), dtype=torch.float64), bound=self.epochs / (1 - self.momentum), low=0
        )
        message = {"model": model, "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message, expect={"steps": steps})
        if not (reply.weight("model") and reply.weight("steps")):
            return state
        # tau_eff sum_k p_k d_k: models come weighted by n_k / a_k, steps by n_k.
        stretch = float(reply.mean("steps")) * reply.weight("model") / reply.weight("steps")
        mean = reply.mean("model")
        weights = tree.map(
            lambda w, m: w + stretch * (m - w), dict(model.parameters), dict(mean.parameters)
        )
        mean = mean.with_parameters(weights)
        model, velocity = with_momentum(model, mean, state.velocity, self.global_momentum)
        models = await with_statistics({"model": model}, hub, "everyone")
        return FedNovaState(model=models["model"], velocity=velocity)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        epochs, frozen = (
            epochs_managed(me, self.epochs, self.stragglers),
            {"sent": message.model.parameters},
        )
        trained = await Train(
            message.model,
            streams,
            optimiser=self.sgd,
            step=self.step,
            epochs=epochs,
            frozen=frozen,
            rate=message.rate,
        )
        images = len(me.labelled)
        gradients = gradients_in(trained.steps, self.momentum, message.rate * self.proximity_weight)
        steps = torch.tensor(
            float(trained.steps) if self.proximity_weight else gradients, dtype=torch.float64
        )
        weight = {"model": images / gradients, "steps": images}
        return Upload(model=trained.model, steps=steps, weight=weight, report=trained.metrics)

    def step(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The standard step and, outside of its momentum, the pull back to where the visit
        began.
        """
        new, memory, metrics = standard_step(supervised, self.sgd)(model, memory, batch, frozen)
        if not self.proximity_weight:
            return new, memory, metrics
        pull = batch.rate * self.proximity_weight
        weights = tree.map(
            lambda n, w, s: n - pull.to(w.dtype) * (w - s),
            # Fmt: skip.
            dict(new.parameters),
            dict(model.parameters),
            dict(frozen["sent"]),
        )
        return new.with_parameters(weights), memory, metrics


def gradients_in(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """a_k: how often the visit's gradients are, all together, in the way it went; for plain SGD its
    steps.
    """
    total = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        total = (1 - pull) * total + velocity
    return total

"""FedAvgM (Hsu et al. 2019): FedAvg whose hub moves by momentum, so that one skewed cohort does not
undo another.

Only clients with labels train, on their labelled images; a partially labelled client's other images
and an unlabelled client count for nothing but the test statistics of static batch norm.

The row "HeteroFL" of SemiFL's table is this with equal weights, clipped gradients, Nesterov
momentum that clients keep from visit to visit and all labels at the clients (`heterofl-semifl`);
its models all have the full width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedglean import tree
from fedglean.method import Ask, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import (
    need_labels_at_clients,
    supervised,
    with_momentum,
    with_statistics,
)
from fedglean.models import Model
from fedglean.optimiser import Optimiser, cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class FedAvgMState(State):
    """The model and the velocity of the hub's steps."""

    model: Model
    velocity: Tree


@dataclass(frozen=True)
class FedAvgM(Method):
    """V <- m V + (W - mean), W <- W - V at the hub; without momentum it is FedAvg."""

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
    global_momentum: float = setting(
        0.9, "momentum of the hub's step towards the clients' mean", low=0, high=0.999
    )
    momentum: float = setting(0.0, "momentum at clients", low=0, high=0.999)
    nesterov: bool = setting(False, "Nesterov's momentum at clients")
    keep_momentum: bool = setting(False, "a client continues with the momentum of its last visit")
    decay: float = setting(0.0, "weight decay", low=0)
    clip: float | None = setting(None, "largest norm of a gradient", low=1e-6)
    weigh_by: str = setting("images", "what a client is weighted by", choices=("images", "nothing"))
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, self.nesterov and self.momentum > 0, self.decay, self.clip
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("FedAvgM", clients)

    def start(self, make: Callable[..., Model]) -> FedAvgMState:
        model = make("model")
        return FedAvgMState(model=model, velocity=tree.zeros(dict(model.parameters)))

    async def round(self, hub: Hub, state: FedAvgMState) -> FedAvgMState:
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        once = ["model"] if self.weigh_by == "nothing" else []
        message = {"model": state.model, "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message, once=once)
        if not reply.has("model"):
            return state
        model, velocity = with_momentum(
            state.model, reply.mean("model"), state.velocity, self.global_momentum
        )
        models = await with_statistics({"model": model}, hub, "everyone")
        return FedAvgMState(model=models["model"], velocity=velocity)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        trained = await Train(
            message.model,
            streams,
            supervised,
            self.sgd,
            epochs=self.epochs,
            memory=me.state,
            rate=message.rate,
        )
        keep = trained.memory if self.keep_momentum else None
        weight = len(me.labelled) if self.weigh_by == "images" else 1
        return Upload(model=trained.model, weight=weight, keep=keep, report=trained.metrics)

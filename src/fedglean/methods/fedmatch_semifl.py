"""What SemiFL's Table 1 (Diao, Ding, Tarokh 2022) calls FedMatch: FixMatch by batch with two added
kernels, no more.

The hub's labels train the one kernel of every convolution, sigma, and the clients' own
pseudo-labels the other, psi, in SemiFL's rounds. Helpers, agreement, regularisers and sparse
messages are missing, and the released code has three surprises that its numbers depend on, so they
are here too: biases, normalisation and the linear head are never trained; the hub trains only the
first half of a kernel's output channels; and both kernels are drawn at full size. For the method of
FedMatch's authors take `fedmatch`.

Clients train on their unlabelled images; labels at clients are not used. Who is sure of none of its
images with the model that was sent stays away, as in SemiFL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import lanes, pseudo_label_loss
from fedglean.method import (
    Ask,
    Batch,
    Declared,
    Hub,
    Me,
    Method,
    Predict,
    Stream,
    Train,
    Upload,
    setting,
)
from fedglean.methods.common import need_labels_at_hub, supervised, with_momentum, with_statistics
from fedglean.methods.fedmatch import refuse_running_averages, total
from fedglean.models import Model
from fedglean.optimiser import Optimiser, clipped, cosine, standard_step
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class TwoPartState(State):
    """The two parts, what the optimisers of both remember, and their sum as it is tested."""

    sigma: Model
    psi: Model
    memory: Tree
    velocity: Tree
    tested: Model


@dataclass(frozen=True)
class FedMatchSemiFL(Method):
    """Clients first, then the hub, as the code has it: what is tested is what the next round's
    clients get.
    """

    #: Its two parts step one after the other, and without a memory.
    needs_sgd: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 40,
        "settings": {"active": 0.25, "threshold": 0.9},
    }

    active: float = setting(0.1, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)
    threshold: float = setting(
        0.95, "confidence from which a pseudo-label is trusted", low=0, high=1
    )
    global_momentum: float = setting(
        0.5, "momentum of the hub's step towards the clients' mean", low=0, high=0.99
    )
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    batch: int = setting(10, "batch size at clients", low=1)
    rate: float = setting(
        0.03, "learning rate of round 1, annealed by a cosine over the rounds", low=0
    )
    momentum: float = setting(0.9, "Nesterov momentum, kept from visit to visit", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(1.0, "largest norm of a gradient", low=1e-6)

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay, clip=self.clip
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_hub("SemiFL's FedMatch", hub_labels, instead="fedmatch")

    def start(self, make: Callable[..., Model]) -> TwoPartState:
        sigma, psi = make("sigma"), make("psi")
        refuse_running_averages(sigma)
        if not any(map(is_kernel, sigma.parameters.values())):
            raise ConfigError(
                "SemiFL's FedMatch trains convolutions only; use a model that has some, such as "
                "'cnn'"
            )
        psi = with_kernels_of(psi, tree.zeros(psi))
        memory, velocity = self.sgd.init(sigma), tree.zeros(dict(psi.parameters))
        return TwoPartState(
            sigma=sigma, psi=psi, memory=memory, velocity=velocity, tested=total(sigma, psi)
        )

    def predictors(self, state: TwoPartState) -> dict[str, Model]:
        return {"model": state.tested}

    async def round(self, hub: Hub, state: TwoPartState) -> TwoPartState:
        rate, psi, velocity = cosine(self.rate, hub.progress), state.psi, state.velocity
        message = {
            "sigma": state.sigma,
            "psi": psi,
            "statistics": state.tested.statistics,
            "rate": rate,
        }
        reply = await Ask(self.client, hub.sample(self.active), message, once=["psi"])
        if reply.has("psi"):
            psi, velocity = with_momentum(psi, reply.mean("psi"), velocity, self.global_momentum)
        streams, frozen = {"labelled": Stream(hub.labelled, batch=self.hub_batch)}, {"psi": psi}
        tuned = await Train(
            state.sigma,
            streams,
            step=self.hub_step,
            epochs=self.epochs,
            memory=state.memory,
            frozen=frozen,
            rate=rate,
        )
        models = await with_statistics({"model": total(tuned.model, psi)}, hub, "everyone")
        return TwoPartState(
            sigma=tuned.model,
            psi=psi,
            memory=tuned.memory,
            velocity=velocity,
            tested=models["model"],
        )

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.unlabelled):
            return None
        sent = total(message.sigma, message.psi)
        sent = Model(sent.architecture, sent.parameters, message.statistics)
        guess = await Predict(sent, me.unlabelled, view="weak", threshold=self.threshold)
        if not guess.confident:
            return None
        streams = {"images": Stream(me.unlabelled, view=("weak", "strong"), batch=self.batch)}
        psi, frozen = message.psi.for_training(), {"sigma": message.sigma.for_training()}
        memory = self.sgd.init(psi) if me.state is None else me.state
        trained = await Train(
            psi,
            streams,
            step=self.step,
            epochs=self.epochs,
            memory=memory,
            frozen=frozen,
            rate=message.rate,
        )
        return Upload(psi=trained.model, keep=trained.memory, report=trained.metrics)

    def hub_step(
        self, sigma: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """The standard step, but that half of the gradient is dropped between its clipping and the
        rest.
        """

        def objective(weights: Tree) -> Tensor:
            return supervised(total(sigma.with_parameters(weights), frozen["psi"]), batch, frozen)

        weights = dict(sigma.parameters)
        gradient, loss = grad_and_value(objective)(weights)
        gradient = tree.map(first_half, clipped(gradient, self.clip))
        unclipped = replace(self.sgd, clip=None)  # type: ignore[type-var]
        weights, memory = unclipped.update(weights, memory, gradient, batch.rate)
        return (
            with_kernels_of(sigma.with_parameters(weights), sigma),
            memory,
            {"loss": loss.detach()},
        )

    def step(
        self, psi: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """A step without a confident image changes nothing, momentum and decay included."""
        new, new_memory, metrics = standard_step(self.loss, self.sgd)(psi, memory, batch, frozen)
        some = metrics["confident"] > 0
        return (
            tree.select(some, with_kernels_of(new, psi), psi),
            tree.select(some, new_memory, memory),
            metrics,
        )

    def loss(self, psi: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        weak, strong = lanes(total(frozen["sigma"], psi), *batch.images.views)
        loss, mask = pseudo_label_loss(weak, strong, self.threshold, over="masked")
        return loss, {"confident": mask.mean()}


def is_kernel(weight: Tensor) -> bool:
    return weight.dim() == 4


def with_kernels_of(new: Model, old: Model) -> Model:
    """The old model with the new one's convolutions."""
    return old.with_parameters(
        {
            name: weight if is_kernel(weight) else old.parameters[name]
            for name, weight in new.parameters.items()
        }
    )


def first_half(gradient: Tensor) -> Tensor:
    """The gradient without that of the second half of the output channels."""
    half = len(gradient) // 2
    return torch.cat([gradient[:half], torch.zeros_like(gradient[half:])])

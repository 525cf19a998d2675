"""What SemiFL's Table 1 (Diao, Ding, Tarokh 2022) calls FedMatch: FixMatch with two added kernels.

The hub's labels train the one kernel of every convolution, sigma, and the clients' own
pseudo-labels the other, psi, in SemiFL's rounds. Helpers, agreement, regularisers and sparse
messages are missing, and the released code has three surprises that its numbers depend on, so they
are here too: biases, normalisation and the linear head are never trained; the hub trains only the
first half of a kernel's output channels; and both kernels are drawn at full size. For the method of
FedMatch's authors take `fedmatch`.

Clients train on their unlabelled images; labels at clients are not used. Who is sure of none of its
images with the model that was sent stays away, as in SemiFL.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import lanes, pseudo_label_loss
from fedglean.method import Ask, Batch, Hub, MakeModel, Me, Method, Predict, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_momentum, with_statistics
from fedglean.methods.fedmatch import refuse_running_averages, total
from fedglean.methods.settings import WithSGD, needs_labels_at_hub, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import clip_to_norm, cosine, standard_step
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
class FedMatchSemiFL(WithSGD, Method):
    """Clients first, then the hub, as in the code: what is tested is what clients get next."""

    #: Its two parts step one after the other, and without a memory.
    needs_sgd = True
    defaults = on_a_laptop(40, active=0.25, threshold=0.9)
    nesterov = True
    check = needs_labels_at_hub("SemiFL's FedMatch", instead="fedmatch")

    active: float = settings.active(0.1)
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)
    threshold: float = settings.threshold(0.95)
    global_momentum: float = settings.global_momentum(0.5)
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    batch: int = setting(10, "batch size at clients", low=1)
    rate: float = settings.annealed_rate(0.03)
    momentum: float = settings.momentum(0.9, "Nesterov momentum, kept from visit to visit")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(1.0)

    def start(self, make: MakeModel) -> TwoPartState:
        sigma, psi = make("sigma"), make("psi")
        refuse_running_averages(sigma)
        if not any(map(is_kernel, sigma.parameters.values())):
            raise ConfigError(
                "SemiFL's FedMatch trains convolutions only; use a model that has some, such as "
                "'cnn'"
            )
        psi = with_kernels_of(psi, tree.zeros(psi))
        memory, velocity = self.sgd.init(sigma), tree.zeros(psi.parameters)
        return TwoPartState(sigma, psi, memory, velocity, tested=total(sigma, psi))

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
        tuned = await Train(
            state.sigma,
            {"labelled": Stream(hub.labelled, batch=self.hub_batch)},
            step=self.hub_step,
            epochs=self.epochs,
            memory=state.memory,
            frozen={"psi": psi},
            rate=rate,
        )
        tested = await with_statistics(total(tuned.model, psi), hub)
        return TwoPartState(tuned.model, psi, tuned.memory, velocity, tested)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.unlabelled:
            return None
        sent = total(message.sigma, message.psi)
        sent = Model(sent.architecture, sent.parameters, message.statistics)
        guess = await Predict(sent, me.unlabelled, view="weak", threshold=self.threshold)
        if not guess.confident:
            return None
        psi = message.psi.for_training()
        trained = await Train(
            psi,
            {"images": Stream(me.unlabelled, view=("weak", "strong"), batch=self.batch)},
            step=self.step,
            epochs=self.epochs,
            memory=self.sgd.init(psi) if me.state is None else me.state,
            frozen={"sigma": message.sigma.for_training()},
            rate=message.rate,
        )
        return Upload(psi=trained.model, keep=trained.memory, report=trained.metrics)

    def hub_step(
        self, sigma: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """The standard step, but half of the gradient is dropped once it is clipped."""

        def objective(weights: Tree) -> Tensor:
            return supervised(total(sigma.with_parameters(weights), frozen["psi"]), batch, frozen)

        gradient, loss = grad_and_value(objective)(sigma.parameters)
        gradient = tree.map(first_half, clip_to_norm(gradient, self.clip))
        unclipped = replace(self.sgd, clip=None)  # type: ignore[type-var]
        weights, memory = unclipped.update(sigma.parameters, memory, gradient, batch.rate)
        new = with_kernels_of(sigma.with_parameters(weights), sigma)
        return new, memory, {"loss": loss.detach()}

    def step(
        self, psi: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """A step without a confident image changes nothing, momentum and decay included."""
        new, new_memory, metrics = standard_step(self.loss, self.sgd)(psi, memory, batch, frozen)
        is_any = metrics["confident"] > 0
        psi = tree.select(is_any, with_kernels_of(new, psi), psi)
        return psi, tree.select(is_any, new_memory, memory), metrics

    def loss(self, psi: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        weak, strong = lanes(total(frozen["sigma"], psi), *batch.images.views)
        loss, mask = pseudo_label_loss(weak, strong, self.threshold, over="masked")
        return loss, {"confident": mask.mean()}


def is_kernel(weight: Tensor) -> bool:
    return weight.dim() == 4


def with_kernels_of(new: Model, old: Model) -> Model:
    """The old model with the new one's convolutions."""
    kernels = {name: weight for name, weight in new.parameters.items() if is_kernel(weight)}
    return old.with_parameters({**old.parameters, **kernels})


def first_half(gradient: Tensor) -> Tensor:
    """The gradient without that of the second half of the output channels."""
    half = len(gradient) // 2
    return torch.cat([gradient[:half], torch.zeros_like(gradient[half:])])

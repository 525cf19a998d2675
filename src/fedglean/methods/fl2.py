"""(FL)^2 (Lee, Le, Shin, Lee, NeurIPS 2024): few labels at the hub, clients with none.

SemiFL's exchange, with three changes against a client's belief in its own mistakes:

1. Client-specific adaptive threshold: how sure the global model is of this client's images on
  average, times how often it predicts the class relative to the most frequent one.
2. Sharpness-aware consistency: the prediction must stay the same where the loss of the very
  confident images climbs fastest (ASAM's step). Only those images are held to it: wrong labels
  would be made flat, too.
3. Learning-status-aware aggregation: a client weighs 1 - its mean confidence, so those that still
  learn count more.

The rules and numbers follow the released code; that it makes a cosine schedule but never steps it
is kept (`annealed`). Pre-training at the hub comes first, in round 1; then each round is clients,
mean, hub, test. Labels that clients have themselves stay unused, as in SemiFL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedglean import tree
from fedglean.losses import cross_entropy, masked_cross_entropy
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
from fedglean.models import Model
from fedglean.optimiser import Optimiser, cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class FL2State(State):
    """The model, the velocity of the hub's steps, and the memory of its optimiser."""

    model: Model
    velocity: Tree
    memory: Tree


@dataclass(frozen=True)
class FL2(Method):
    """SemiFL without Mixup, with an adaptive threshold, flatness and weights by learning status."""

    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 40, "settings": {"active": 0.25}}

    active: float = setting(0.1, "share of the clients that take part in a round", low=0, high=1)
    pretraining: int = setting(50, "epochs at the hub before the first clients are asked", low=0)
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)
    confident: float = setting(
        0.95, "confidence from which an image is held to flatness", low=0, high=1
    )
    radius: float = setting(0.1, "rho: how far the perturbation goes; 0 switches it off", low=0)
    weigh_by_status: bool = setting(True, "weigh clients by 1 - mean confidence, not equally")
    global_momentum: float = setting(
        0.5, "momentum of the hub's step towards the clients' mean", low=0, high=0.99
    )
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    client_batch: int = setting(32, "batch size at clients", low=1)
    rate: float = setting(0.03, "learning rate", low=0)
    annealed: bool = setting(False, "anneal the rate by a cosine over the rounds")
    momentum: float = setting(
        0.9, "Nesterov momentum; a client continues with that of its last visit", low=0, high=0.999
    )
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(1.0, "largest norm of a gradient", low=1e-6)

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay, clip=self.clip
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_hub("(FL)^2", hub_labels, instead="sage")

    def start(self, make: Callable[..., Model]) -> FL2State:
        model = make("model")
        velocity = tree.zeros(dict(model.parameters))
        return FL2State(model=model, velocity=velocity, memory=self.sgd.init(model))

    async def round(self, hub: Hub, state: FL2State) -> FL2State:
        if hub.round == 1 and self.pretraining:
            state = await self.at_hub(hub, state, self.pretraining)
        rate = self.rate_in(hub)
        message = {"model": state.model, "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message, once=["model"])
        if reply.has("model"):
            moved = with_momentum(
                state.model, reply.mean("model"), state.velocity, self.global_momentum
            )
            state = replace(state, model=moved[0], velocity=moved[1])
        return await self.at_hub(hub, state, self.epochs)

    async def at_hub(self, hub: Hub, state: FL2State, epochs: int) -> FL2State:
        """Training on the hub's labels, then test statistics over everybody's images."""
        streams = {"labelled": Stream(hub.labelled, view="weak", batch=self.hub_batch)}
        rate = self.rate_in(hub)
        tuned = await Train(
            state.model,
            streams,
            supervised,
            self.sgd,
            epochs=epochs,
            memory=state.memory,
            rate=rate,
        )
        models = await with_statistics({"model": tuned.model}, hub, "everyone")
        return replace(state, model=models["model"], memory=tuned.memory)

    def rate_in(self, hub: Hub) -> float:
        return cosine(self.rate, hub.progress) if self.annealed else self.rate

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.unlabelled):
            return None
        guess = await Predict(message.model, me.unlabelled, view="weak", threshold=self.confident)
        threshold, status = adaptive_threshold(guess.probabilities)
        confidence, label = guess.probabilities.max(-1)
        marked = me.unlabelled.labelled(torch.stack([label, guess.trusted.long()], -1))
        chosen = marked.subset(confidence >= threshold)
        if not len(chosen):
            return None
        streams = {"fix": Stream(chosen, view="strong", batch=self.client_batch)}
        trained = await Train(
            message.model,
            streams,
            self.loss,
            self.sgd,
            epochs=self.epochs,
            memory=me.state,
            rate=message.rate,
        )
        weight = max(1e-6, 1 - status) if self.weigh_by_status else 1.0
        report = trained.metrics | {"status": status, "chosen": len(chosen) / len(me.unlabelled)}
        return Upload(model=trained.model, weight=weight, keep=trained.memory, report=report)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Pseudo-labels, and KL(prediction || prediction at the perturbed weights) for the very
        confident images.
        """
        strong = batch.fix.images
        label, confident = batch.fix.label.unbind(-1)
        mask = confident.to(strong.dtype)
        logits = model(strong)
        pseudo = cross_entropy(logits, label)
        if not self.radius:
            return pseudo
        weights = {name: value.detach() for name, value in model.parameters.items()}
        slope = grad(
            lambda w: masked_cross_entropy(model.with_parameters(w)(strong), label, mask, "masked")
        )(weights)
        step = adaptive_ascent(weights, slope, self.radius)
        perturbed = model.with_parameters(tree.add(dict(model.parameters), step))(strong)
        divergence = F.kl_div(
            perturbed.log_softmax(-1), logits.detach().softmax(-1), reduction="none"
        ).sum(-1)
        return pseudo + (divergence * mask).mean()


def adaptive_threshold(probabilities: Tensor) -> tuple[Tensor, float]:
    """Each image's threshold, by the class it seems to be; and the mean confidence, the client's
    learning status.
    """
    confidence, label = probabilities.max(-1)
    status, frequency = confidence.mean(), probabilities.mean(0)
    return status * (frequency / frequency.max())[label], float(status)


def adaptive_ascent(
    weights: dict[str, Tensor], slope: dict[str, Tensor], radius: float
) -> dict[str, Tensor]:
    """ASAM's perturbation (Kwon et al. 2021): steepest ascent where weights are measured by |w| +
    0.01, biases by 1.
    """
    scale = {
        name: w.abs() + 0.01 if name.endswith("weight") else torch.ones_like(w)
        for name, w in weights.items()
    }
    scaled = tree.map(torch.mul, scale, slope)
    length = radius / (tree.norm(scaled) + 1e-16)
    return {name: scale[name] * scaled[name] * length for name in weights}

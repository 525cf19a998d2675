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

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedglean import tree
from fedglean.losses import cross_entropy, masked_cross_entropy
from fedglean.method import Ask, Batch, Hub, MakeModel, Me, Method, Predict, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_momentum, with_statistics
from fedglean.methods.settings import WithSGD, needs_labels_at_hub, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class FL2State(State):
    """The model, the velocity of the hub's steps, and the memory of its optimiser."""

    model: Model
    velocity: Tree
    memory: Tree


@dataclass(frozen=True)
class FL2(WithSGD, Method):
    """SemiFL without Mixup, with an adaptive threshold, flatness and weights by learning status."""

    defaults = on_a_laptop(40, active=0.25)
    nesterov = True
    check = needs_labels_at_hub("(FL)^2", instead="sage")

    active: float = settings.active(0.1)
    pretraining: int = setting(50, "epochs at the hub before the first clients are asked", low=0)
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)
    confident: float = settings.share(0.95, "confidence from which an image is held to flatness")
    radius: float = setting(0.1, "rho: how far the perturbation goes; 0 switches it off", low=0)
    weigh_by_status: bool = setting(True, "weigh clients by 1 - mean confidence, not equally")
    global_momentum: float = settings.global_momentum(0.5)
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    client_batch: int = setting(32, "batch size at clients", low=1)
    rate: float = settings.rate(0.03)
    annealed: bool = settings.annealed()
    momentum: float = settings.momentum(0.9, "Nesterov momentum, kept from visit to visit")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(1.0)

    def start(self, make: MakeModel) -> FL2State:
        model = make("model")
        return FL2State(model, tree.zeros(model.parameters), self.sgd.init(model))

    async def round(self, hub: Hub, state: FL2State) -> FL2State:
        if hub.round == 1 and self.pretraining:
            state = await self.train_at_hub(hub, state, self.pretraining)
        message = {"model": state.model, "rate": self.rate_of(hub)}
        reply = await Ask(self.client, hub.sample(self.active), message, once=["model"])
        if reply.has("model"):
            mean, momentum = reply.mean("model"), self.global_momentum
            model, velocity = with_momentum(state.model, mean, state.velocity, momentum)
            state = replace(state, model=model, velocity=velocity)
        return await self.train_at_hub(hub, state, self.epochs)

    async def train_at_hub(self, hub: Hub, state: FL2State, epochs: int) -> FL2State:
        """Training on the hub's labels, then test statistics over everybody's images."""
        streams = {"labelled": Stream(hub.labelled, view="weak", batch=self.hub_batch)}
        memory, rate = state.memory, self.rate_of(hub)
        tuned = await Train(
            state.model, streams, supervised, self.sgd, epochs=epochs, memory=memory, rate=rate
        )
        return replace(state, model=await with_statistics(tuned.model, hub), memory=tuned.memory)

    def rate_of(self, hub: Hub) -> float:
        return cosine(self.rate, hub.progress) if self.annealed else self.rate

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.unlabelled:
            return None
        model, rate = message.model, message.rate
        guess = await Predict(model, me.unlabelled, view="weak", threshold=self.confident)
        threshold, status = adaptive_threshold(guess.probabilities)
        confidence, label = guess.probabilities.max(-1)
        marked = me.unlabelled.labelled(torch.stack([label, guess.trusted.long()], -1))
        chosen = marked.subset(confidence >= threshold)
        if not chosen:
            return None
        streams = {"fix": Stream(chosen, view="strong", batch=self.client_batch)}
        trained = await Train(
            model, streams, self.loss, self.sgd, epochs=self.epochs, memory=me.state, rate=rate
        )
        weight = max(1e-6, 1 - status) if self.weigh_by_status else 1.0
        report = trained.metrics | {"status": status, "chosen": len(chosen) / len(me.unlabelled)}
        return Upload(model=trained.model, weight=weight, keep=trained.memory, report=report)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Pseudo-labels, and for very confident images KL(prediction || perturbed prediction)."""
        strong = batch.fix.images
        label, confident = batch.fix.label.unbind(-1)
        mask = confident.to(strong.dtype)
        logits = model(strong)
        pseudo = cross_entropy(logits, label)
        if not self.radius:
            return pseudo
        weights = {name: value.detach() for name, value in model.parameters.items()}

        def confident_loss(weights: Tree) -> Tensor:
            logits = model.with_parameters(weights)(strong)
            return masked_cross_entropy(logits, label, mask, over="masked")

        ascent = adaptive_ascent(weights, grad(confident_loss)(weights), self.radius)
        perturbed = model.with_parameters(tree.add(model.parameters, ascent))(strong)
        target = logits.detach().softmax(-1)
        divergence = F.kl_div(perturbed.log_softmax(-1), target, reduction="none").sum(-1)
        return pseudo + (divergence * mask).mean()


def adaptive_threshold(probabilities: Tensor) -> tuple[Tensor, float]:
    """Each image's threshold by its likeliest class, and the mean confidence: learning status."""
    confidence, label = probabilities.max(-1)
    status, frequency = confidence.mean(), probabilities.mean(0)
    return status * (frequency / frequency.max())[label], float(status)


def adaptive_ascent(
    weights: dict[str, Tensor], slope: dict[str, Tensor], radius: float
) -> dict[str, Tensor]:
    """ASAM's steepest ascent (Kwon et al. 2021): weights by |w| + 0.01, biases by 1."""
    scale = {
        name: w.abs() + 0.01 if name.endswith("weight") else torch.ones_like(w)
        for name, w in weights.items()
    }
    scaled = tree.map(torch.mul, scale, slope)
    length = radius / (tree.norm(scaled) + 1e-16)
    return {name: scale[name] * scaled[name] * length for name in weights}

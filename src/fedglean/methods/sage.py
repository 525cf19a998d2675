"""SAGE (Liu et al., CVPR 2025): labels at clients, and two models that label the rest.

Where classes are skewed, the model in training is sure of its client's classes and the global model
of everybody's. SAGE lets both guess. Where the local model is sure, the target is a mixture of both
one-hot guesses that leans to the global one the further the two confidences are apart; elsewhere it
is the global guess.

The rule and all numbers follow the released code; the paper's tables use it on ResNet-8. What is
different here: momentum starts afresh at every visit (the release hands one optimiser from client
to client), and a client weighs as many images as it has (there it weighs as long a list as it
trains on, in which its labelled images stand 2000 times).

A fully labelled client does all of this with its own images, as SAGE puts them among the unlabelled
ones; a client without labels trains on the targets alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean.losses import cross_entropy, jointly, masked_cross_entropy, one_hot
from fedglean.method import Batch, Hub, Me, Method, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import fedavg_round, streams_and_steps
from fedglean.methods.settings import WithSGD, iid, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class Sage(WithSGD, Method):
    """FedAvg with FixMatch at clients, its pseudo-labels corrected by the global model."""

    # With fewer labels than four each, some seeds leave a class without any.
    defaults = on_a_laptop(
        30, iid("each:4", clients=20), epochs=3, labelled_batch=20, unlabelled_batch=40
    )
    check = needs_labels_at_clients("SAGE")

    active: float = settings.active(0.4)
    epochs: int = settings.epochs_of_all(5)
    labelled_batch: int = settings.labelled_batch(128)
    unlabelled_batch: int = settings.unlabelled_batch(256)
    threshold: float = settings.share(0.95, "confidence from which a guess is trusted")
    half_gap: float = setting(
        0.05, "gap of confidences at which the local guess has half the say", low=1e-6, high=1
    )
    unlabelled_weight: float = setting(1.0, "weight of the unlabelled loss", low=0)
    rate: float = settings.rate(0.1)
    momentum: float = settings.momentum(0.9)
    decay: float = settings.decay(1e-4)

    async def round(self, hub: Hub, state: Record) -> Record:
        return await fedavg_round(self.client, hub.sample(self.active), hub, state)

    async def client(self, me: Me, message: Record) -> Upload | None:
        total = len(me.labelled) + len(me.unlabelled)
        if not total:
            return None
        model, frozen = message.model, {"global": message.model}
        streams, steps = streams_and_steps(me, self.labelled_batch, self.unlabelled_batch)
        steps = self.epochs * steps
        trained = await Train(model, streams, self.loss, self.sgd, steps=steps, frozen=frozen)
        return Upload(model=trained.model, weight=total, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy in the place of the divergence, of which it has all the gradient."""
        known = [batch.labelled.images] if "labelled" in batch.streams else []
        weak, strong, *labelled = jointly(model, *batch.unlabelled.views, *known)
        local = weak.detach().softmax(-1)
        common = frozen["global"].evaluate(batch.unlabelled.images).detach().softmax(-1)
        target, mask = correct_softly(local, common, self.threshold, self.half_gap)
        loss = self.unlabelled_weight * masked_cross_entropy(strong, target, mask)
        if labelled:
            loss = loss + cross_entropy(labelled[0], batch.labelled.label)
        return loss, {"trusted": mask.mean()}


def correct_softly(
    local: Tensor, common: Tensor, threshold: float, half_gap: float
) -> tuple[Tensor, Tensor]:
    """Targets from the probabilities of two models, and where either is sure.

    The local guess has the say exp(-kappa gap), kappa = ln 2 / half_gap: all of it where both are
    equally confident.
    """
    local_confidence, local_guess = local.max(-1)
    common_confidence, common_guess = common.max(-1)
    say = torch.exp(-math.log(2) / half_gap * (local_confidence - common_confidence).abs())
    say = torch.where(local_confidence >= threshold, say, torch.zeros_like(say))[:, None]
    target = say * one_hot(local_guess, like=local) + (1 - say) * one_hot(common_guess, like=local)
    sure = torch.maximum(local_confidence, common_confidence) >= threshold
    return target, sure.to(local.dtype)

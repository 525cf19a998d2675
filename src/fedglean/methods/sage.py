"""SAGE (Liu, Shang, Zhang, Lu, Gong, Xue, Wang, CVPR 2025): labels at clients, and two models that
label the rest.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean.losses import cross_entropy, jointly, masked_cross_entropy, one_hot
from fedglean.method import Batch, Declared, Hub, Me, Method, Train, Upload, setting
from fedglean.methods.common import averaged, need_labels_at_clients, pooled
from fedglean.models import Model
from fedglean.optimiser import Optimiser
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class Sage(Method):
    """FedAvg with FixMatch at clients, its pseudo-labels corrected by the global model."""

    # With fewer labels than four each, some seeds leave a class without any.
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 30,
        "split": {"partition": "iid", "labels": "each:4", "clients": 20},
        "settings": {"epochs": 3, "labelled_batch": 20, "unlabelled_batch": 40},
    }

    active: float = setting(0.4, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(
        5, "local epochs; each is as many steps as labelled batches fit into all images", low=1
    )
    labelled_batch: int = setting(128, "batch size of labelled images", low=1)
    unlabelled_batch: int = setting(256, "batch size of all images, seen without labels", low=1)
    threshold: float = setting(0.95, "confidence from which a guess is trusted", low=0, high=1)
    half_gap: float = setting(
        0.05, "gap of confidences at which the local guess has half the say", low=1e-6, high=1
    )
    unlabelled_weight: float = setting(1.0, "weight of the unlabelled loss", low=0)
    rate: float = setting(0.1, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(1e-4, "weight decay", low=0)

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(self.rate, self.momentum, decay=self.decay)

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("SAGE", clients)

    async def round(self, hub: Hub, state: Record) -> Record:
        return await averaged(self.client, hub.sample(self.active), hub, state)

    async def client(self, me: Me, message: Record) -> Upload | None:
        total = len(me.labelled) + len(me.unlabelled)
        if not total:
            return None
        streams, steps = pooled(me, self.labelled_batch, self.unlabelled_batch)
        frozen = {"global": message.model}
        trained = await Train(
            message.model, streams, self.loss, self.sgd, steps=self.epochs * steps, frozen=frozen
        )
        return Upload(model=trained.model, weight=total, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The divergence from a target differs from the cross-entropy by the target's entropy:
        gradients are equal.
        """
        known = [batch.labelled.images] if "labelled" in batch.streams else []
        weak, strong, *labelled = jointly(model, *batch.unlabelled.views, *known)
        common = frozen["global"].evaluate(batch.unlabelled.images).detach().softmax(-1)
        target, mask = corrected(weak.detach().softmax(-1), common, self.threshold, self.half_gap)
        loss = self.unlabelled_weight * masked_cross_entropy(strong, target, mask)
        if labelled:
            loss = loss + cross_entropy(labelled[0], batch.labelled.label)
        return loss, {"trusted": mask.mean()}


def corrected(
    local: Tensor, common: Tensor, threshold: float, half_gap: float
) -> tuple[Tensor, Tensor]:
    """Confidence-driven soft correction: targets from the probabilities of two models, and where
    either is sure.

    The local guess has the say exp(-kappa gap), kappa = ln 2 / half_gap: all of it where both are
    equally confident.
    """
    local_confidence, local_guess = local.max(-1)
    common_confidence, common_guess = common.max(-1)
    say = torch.exp(-math.log(2) / half_gap * (local_confidence - common_confidence).abs())
    say = torch.where(local_confidence >= threshold, say, torch.zeros_like(say))[:, None]
    target = say * one_hot(local_guess, like=local) + (1 - say) * one_hot(common_guess, like=local)
    return target, (torch.maximum(local_confidence, common_confidence) >= threshold).to(local.dtype)

"""CBAFed (Li, Li, Wang, CVPR 2023): some clients are fully labelled, the others not at all.

A warm-up trains on the labelled clients alone. Then, in each round, a client without labels lets
the global model label its images once (the labels stay fixed while it trains) and keeps those above
a threshold of their class: the share of the class among all that clients trained on in the round
before, so that a class which is rare so far is let in more easily. An image that is rejected, but
whose second guess is a very rare class, is kept under that one.

Residual weight connections are averages with older weights: every five epochs at a labelled client,
every five rounds at the hub.

The rules and numbers follow the released code. There, kept images are trained on in the very view
that was labelled; here in a fresh weak view. The release warms up one labelled client and asks for
more exchanges where there are several (`warmup_rounds`). The paper's clients have all labels or
none; a partly labelled one is both here, first labelled, then unlabelled.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglean.inputs.images import Images
from fedglean.losses import moving_average, one_hot
from fedglean.method import Ask, Expect, Hub, MakeModel, Me, Method, Predict, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.settings import WithSGD, iid, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class CBAFedState(State):
    """The model, that of some rounds ago, and how many images of each class are trusted."""

    model: Model
    older: Model
    counts: Tensor


@dataclass(frozen=True)
class CBAFed(WithSGD, Method):
    """Class-balanced adaptive pseudo-labels; the paper counts its rounds after the warm-up."""

    defaults = on_a_laptop(30, iid("LU:3%"), warmup_epochs=101, batch=16)
    check = needs_labels_at_clients("CBAFed")

    active: float = settings.active(1.0)
    warmup_rounds: int = setting(1, "first rounds, in which only labelled clients take part", low=1)
    warmup_epochs: int = setting(501, "epochs at a labelled client in a warm-up round", low=1)
    epochs: int = setting(11, "epochs at a labelled client; pseudo-labels are seen once", low=1)
    batch: int = setting(64, "batch size", low=1)
    base: float = settings.share(
        0.84, "threshold of a class before its share is added and the shares' deviation taken off"
    )
    cap: float = settings.share(0.95, "highest threshold; 0.9 for SVHN")
    rare: float = settings.share(0.03, "share below which a class may be a second guess")
    connect_every: int = setting(5, "epochs and rounds between residual connections", low=1)
    local_residual: float = settings.share(0.8, "share of the older weights at a labelled client")
    global_residual: float = settings.share(0.5, "share of the older weights at the hub")
    rate: float = settings.rate(0.03, "learning rate on labels")
    pseudo_rate: float = settings.rate(0.02, "learning rate on pseudo-labels")
    momentum: float = settings.momentum(0.9, "momentum, kept from visit to visit")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(5.0)

    def start(self, make: MakeModel) -> CBAFedState:
        model = make("model")
        counts = next(iter(model.parameters.values())).new_zeros(model.architecture.classes)
        return CBAFedState(model, older=model, counts=counts)

    async def round(self, hub: Hub, state: CBAFedState) -> CBAFedState:
        done = hub.round - self.warmup_rounds - 1
        with_labels = [client for client in hub.everyone if hub.clients[client].labelled]
        ask, among = (self.client, hub.everyone) if done >= 0 else (self.warm_up, with_labels)
        message = {"model": state.model, "class_counts": state.counts}
        expect = {"counts": Expect(state.counts, bound=1.0, low=0)}
        to = hub.sample(self.active, among)
        reply = await Ask(ask, to, message, expect=expect, once=["counts"])
        if not reply.has("model"):
            return state
        model, older = reply.mean("model"), state.older
        if done < 0:
            older = model
        elif done and done % self.connect_every == 0:
            model = older = moving_average(older, model, self.global_residual)
        model = await with_statistics(model, hub)
        return CBAFedState(model, older, counts=reply.sum("counts"))

    async def warm_up(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        model, memory = await self.learn_labels(me, message.model, self.warmup_epochs)
        return self.upload(model, me.labelled, message, keep={"labelled": memory})

    async def client(self, me: Me, message: Record) -> Upload | None:
        # Observed as guesses one and all: which are kept depends on their class.
        guess = await Predict(message.model, me.unlabelled, view="weak", threshold=0.0)
        trusted = self.select(guess.images, guess.probabilities, message.class_counts)
        model, keep, used = message.model, dict(me.state or {}), trusted
        if me.labelled:
            model, keep["labelled"] = await self.learn_labels(me, model, self.epochs)
            used = me.labelled + trusted
        if trusted:
            memory = keep.get("unlabelled")
            trained = await self.training(model, trusted, 1, memory, self.pseudo_rate)
            model, keep["unlabelled"] = trained.model, trained.memory
        return self.upload(model, used, message, keep) if used else None

    async def learn_labels(self, me: Me, model: Model, epochs: int) -> tuple[Model, Tree]:
        """An epoch, then stretches of five, each connected with the weights of the last one."""
        images, memory = me.labelled, (me.state or {}).get("labelled")
        trained = await self.training(model, images, 1, memory, self.rate)
        older = trained.model
        for left in range(epochs - 1, 0, -self.connect_every):
            length, memory = min(left, self.connect_every), trained.memory
            trained = await self.training(trained.model, images, length, memory, self.rate)
            if length == self.connect_every:
                older = moving_average(older, trained.model, self.local_residual)
                trained = replace(trained, models=older)
        return trained.model, trained.memory

    def training(
        self, model: Model, images: Images, epochs: int, memory: Tree, rate: float
    ) -> Train:
        streams = {"labelled": Stream(images, view="weak", batch=self.batch)}
        return Train(model, streams, supervised, self.sgd, epochs=epochs, memory=memory, rate=rate)

    def upload(self, model: Model, used: Images, message: Record, keep: Tree) -> Upload:
        assert used.label is not None
        counts = one_hot(used.label, like=message.class_counts).sum(0)
        weight = {"model": len(used), "counts": 1.0}
        return Upload(model=model, counts=counts, weight=weight, keep=keep)

    def select(self, images: Images, probabilities: Tensor, counts: Tensor) -> Images:
        """The images to train on, with the labels that `choose` gives them."""
        shares = class_shares(counts)
        threshold = thresholds(shares, self.base, self.cap)
        label, kept = choose(probabilities, threshold, shares < self.rare)
        return images.labelled(label).subset(kept)


def class_shares(counts: Tensor) -> Tensor:
    """Shares of the classes, scaled so that one of average size has 0.1 whatever their number."""
    return counts / counts.sum() * (len(counts) / 10)


def thresholds(shares: Tensor, base: float, cap: float) -> Tensor:
    """High for frequent classes, and lower for all the more they differ."""
    return (shares + base - shares.std()).clamp(max=cap)


def choose(probabilities: Tensor, threshold: Tensor, rare: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and which to keep: sure first guesses, else second guesses of rare classes."""
    confidence, guess = probabilities.topk(2, -1)
    first, second = guess.unbind(-1)
    sure = confidence[:, 0] > threshold[first]
    return torch.where(sure, first, second), sure | rare[second]

"""SemiFL (Diao, Ding, Tarokh, NeurIPS 2022): labels at the hub alone, clients with none.

A round alternates: the hub fine-tunes the global model on its labels; the clients that take part
label their images once with it, keep the confident ones, and train on them with strong views and
Mixup; the hub averages. Defaults follow the released code, which clips gradients, keeps each
client's momentum from its last visit and averages clients with equal weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglean import tree
from fedglean.losses import cross_entropy, lanes, mix_ratio
from fedglean.method import Ask, Batch, Hub, Me, Method, Predict, Stream, Train, Upload, setting
from fedglean.methods.common import supervised, with_momentum, with_statistics
from fedglean.methods.settings import needs_labels_at_hub
from fedglean.models import Model
from fedglean.optimiser import Optimiser, cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class SemiFLState(State):
    """The model, the velocity of the hub's steps, its momentum, and the model as it is tested."""

    model: Model
    velocity: Tree
    memory: Tree
    tested: Model


@dataclass(frozen=True)
class SemiFL(Method):
    """Algorithm 1."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 40,
        "settings": {"active": 0.25, "threshold": 0.9},
    }

    check = needs_labels_at_hub("SemiFL", instead="hassle")
    # The switches of Table 2's rows.
    retired: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "combine": ("fine-tune", "semifl-table2"),
        "labels_from": ("global", "semifl-table2"),
    }

    active: float = setting(0.1, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)
    threshold: float = setting(
        0.95, "confidence from which a pseudo-label is trusted", low=0, high=1
    )
    mixup: bool = setting(True, "train on Mixup of confident and arbitrary images too")
    mix_concentration: float = setting(
        0.75, "both parameters of the Beta distribution of the Mixup ratio", low=0.01, high=1
    )
    global_momentum: float = setting(
        0.5, "momentum of the hub's step towards the clients' mean", low=0, high=0.99
    )
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    client_batch: int = setting(10, "batch size at clients", low=1)
    rate: float = setting(
        0.03, "learning rate of round 1, annealed by a cosine over the rounds", low=0
    )
    momentum: float = setting(0.9, "Nesterov momentum", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(1.0, "largest norm of a gradient", low=1e-6)
    keep_momentum: bool = setting(
        True, "a client continues with the momentum of its last visit, as the released code does"
    )
    statistics_from: str = setting(
        "everyone", "whose images give the test statistics (Table 3)", choices=("hub", "everyone")
    )
    statistics_formula: str = setting(
        "cumulative",
        "the released average, or the paper's pooled one",
        choices=("cumulative", "pooled"),
    )

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay, clip=self.clip
        )

    def start(self, make: Callable[..., Model]) -> SemiFLState:
        model = make("model")
        return SemiFLState(
            model=model,
            velocity=tree.zeros(dict(model.parameters)),
            memory=self.sgd.init(model),
            tested=model,
        )

    def predictors(self, state: SemiFLState) -> dict[str, Model]:
        return {"model": state.tested}

    async def round(self, hub: Hub, state: SemiFLState) -> SemiFLState:
        """The hub trains first; what goes out to the clients is what is tested."""
        tuned = await self.fine_tune(hub, state)
        message = {"model": tuned.tested, "rate": cosine(self.rate, hub.progress)}
        reply = await Ask(self.client, hub.sample(self.active), message, once=["model"])
        if not reply.has("model"):
            return tuned
        model, velocity = with_momentum(
            tuned.model, reply.mean("model"), tuned.velocity, self.global_momentum
        )
        return replace(tuned, model=model, velocity=velocity)

    async def finish(self, hub: Hub, state: SemiFLState) -> SemiFLState | None:
        """The last mean is fine-tuned once more, as the released code ends on a fine-tuning."""
        return await self.fine_tune(hub, state)

    async def fine_tune(self, hub: Hub, state: SemiFLState) -> SemiFLState:
        tuned = await self.train_at_hub(hub, state)
        tested = await self.measure(tuned.model, hub)
        return replace(state, model=tuned.model, memory=tuned.memory, tested=tested)

    def train_at_hub(self, hub: Hub, state: SemiFLState) -> Train:
        return Train(
            state.model,
            {"labelled": Stream(hub.labelled, view="weak", batch=self.hub_batch)},
            supervised,
            self.sgd,
            epochs=self.epochs,
            memory=state.memory,
            rate=cosine(self.rate, hub.progress),
        )

    async def measure(self, model: Model, hub: Hub) -> Model:
        """The model with its test statistics."""
        models = await with_statistics(
            {"model": model}, hub, self.statistics_from, self.statistics_formula
        )
        return models["model"]

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.unlabelled):
            return None
        guess = await Predict(message.model, me.unlabelled, view="weak", threshold=self.threshold)
        if not guess.confident:
            return None
        if self.mixup:
            streams = {
                "fix": Stream(guess.confident, view=("strong", "weak"), batch=self.client_batch),
                "mix": Stream(
                    guess.hard, view="weak", batch=self.client_batch, draw="with-replacement"
                ),
            }
        else:
            streams = {"fix": Stream(guess.confident, view="strong", batch=self.client_batch)}
        trained = await Train(
            message.model,
            streams,
            self.loss,
            self.sgd,
            epochs=self.epochs,
            memory=me.state,
            rate=message.rate,
        )
        keep = trained.memory if self.keep_momentum else None
        return Upload(model=trained.model, keep=keep, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eqs. (3)-(5): confident images under strong views, and their Mixup with any images."""
        if not self.mixup:
            return cross_entropy(model(batch.fix.images), batch.fix.label)
        strong, weak = batch.fix.views
        ratio = mix_ratio(batch.key, self.mix_concentration, like=weak)
        mixed = ratio * weak + (1 - ratio) * batch.mix.images
        fix_logits, mix_logits = lanes(model, strong, mixed)
        mix_loss = ratio * cross_entropy(mix_logits, batch.fix.label)
        mix_loss = mix_loss + (1 - ratio) * cross_entropy(mix_logits, batch.mix.label)
        return cross_entropy(fix_logits, batch.fix.label) + mix_loss

"""SemiFL (Diao, Ding, Tarokh, NeurIPS 2022): labels at the hub alone, clients with none.

A round alternates: the hub fine-tunes the global model on its labels; the clients that take part
label their images once with it, keep the confident ones, and train on them with strong views and
Mixup; the hub averages. Defaults follow the released code, which clips gradients, keeps each
client's momentum from its last visit and averages clients with equal weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglean import tree
from fedglean.losses import cross_entropy, lanes, mix_ratio
from fedglean.method import Ask, Batch, Hub, MakeModel, Me, Method, Predict, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_momentum, with_statistics
from fedglean.methods.settings import WithSGD, needs_labels_at_hub, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import cosine
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class SemiFLState(State):
    """The model, the velocity of the hub's steps, its momentum, and the model as it is tested."""

    model: Model
    velocity: Tree
    memory: Tree
    tested: Model


@dataclass(frozen=True)
class SemiFL(WithSGD, Method):
    """Algorithm 1."""

    defaults = on_a_laptop(40, active=0.25, threshold=0.9)
    nesterov = True
    check = needs_labels_at_hub("SemiFL", instead="hassle")
    # The switches of Table 2's rows.
    retired: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "combine": ("fine-tune", "semifl-table2"),
        "labels_from": ("global", "semifl-table2"),
    }

    active: float = settings.active(0.1)
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)
    threshold: float = settings.threshold(0.95)
    mixup: bool = setting(True, "train on Mixup of confident and arbitrary images too")
    mix_concentration: float = settings.concentration(0.75, of="Mixup ratio")
    global_momentum: float = settings.global_momentum(0.5)
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    client_batch: int = setting(10, "batch size at clients", low=1)
    rate: float = settings.annealed_rate(0.03)
    momentum: float = settings.momentum(0.9, "Nesterov momentum")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(1.0)
    keep_momentum: bool = setting(True, "a client continues with the momentum of its last visit")
    statistics_from: str = setting(
        "everyone", "whose images give the test statistics (Table 3)", choices=("hub", "everyone")
    )
    statistics_formula: str = setting(
        "cumulative", "the released average, or the pooled one", choices=("cumulative", "pooled")
    )

    def start(self, make: MakeModel) -> SemiFLState:
        model = make("model")
        velocity, memory = tree.zeros(model.parameters), self.sgd.init(model)
        return SemiFLState(model, velocity, memory, tested=model)

    def predictors(self, state: SemiFLState) -> dict[str, Model]:
        return {"model": state.tested}

    async def round(self, hub: Hub, state: SemiFLState) -> SemiFLState:
        """The hub trains first; what goes out to the clients is what is tested."""
        tuned = await self.fine_tune(hub, state)
        message = {"model": tuned.tested, "rate": cosine(self.rate, hub.progress)}
        reply = await Ask(self.client, hub.sample(self.active), message, once=["model"])
        if not reply.has("model"):
            return tuned
        mean = reply.mean("model")
        model, velocity = with_momentum(tuned.model, mean, tuned.velocity, self.global_momentum)
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
        return await with_statistics(model, hub, self.statistics_from, self.statistics_formula)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.unlabelled:
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

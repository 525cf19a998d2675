"""SemiFL (Diao, Ding, Tarokh, NeurIPS 2022): labels at the hub alone, clients with none.

A round alternates: the hub fine-tunes the global model on its labels; the clients that take part
label their images once with it, keep the confident ones, and train on them with strong views and
Mixup; the hub averages. Defaults follow the released code, which clips gradients, keeps each
client's momentum from its last visit and averages clients with equal weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import cross_entropy, lanes, mix_ratio, pseudo_label_loss
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
    Trained,
    Upload,
    setting,
)
from fedglean.methods.common import need_labels_at_hub, supervised, with_momentum, with_statistics
from fedglean.methods.fedrgd import group, mean_with
from fedglean.models import Model
from fedglean.optimiser import Optimiser, cosine, standard_step
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class SemiFL(Method):
    """Algorithm 1; the switches are those of Tables 2, 3 and 5."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 40,
        "settings": {"active": 0.25, "threshold": 0.9},
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
    combine: str = setting(
        "fine-tune",
        "how hub and clients meet (Table 2; halves: what it calls FedRGD)",
        choices=("fine-tune", "parallel", "halves"),
    )
    labels_from: str = setting(
        "global",
        "the global model labels each round, or the trained one each batch (Table 2)",
        choices=("global", "batch"),
    )
    statistics_from: str = setting(
        "everyone", "whose images give the test statistics (Table 3)", choices=("hub", "everyone")
    )
    statistics_formula: str = setting(
        "cumulative",
        "the released average, or the paper's pooled one",
        choices=("cumulative", "pooled"),
    )

    def __post_init__(self) -> None:
        if self.labels_from == "batch" and self.mixup:
            raise ConfigError("labels_from = 'batch' has no fixed labels to mix; set mixup = false")

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay, clip=self.clip
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_hub("SemiFL", hub_labels, instead="hassle")

    def start(self, make: Callable[..., Model]) -> Record:
        model = make("model")
        memory = self.sgd.init(model)
        return Record(
            model=model, velocity=tree.zeros(dict(model.parameters)), memory=memory, tested=model
        )

    def predictors(self, state: Record) -> dict[str, Model]:
        return {"model": state.tested}

    async def round(self, hub: Hub, state: Record) -> Record:
        plays = {
            "fine-tune": self.fine_tuned_round,
            "parallel": self.parallel_round,
            "halves": self.halved_round,
        }
        return await plays[self.combine](hub, state)

    async def fine_tuned_round(self, hub: Hub, state: Record) -> Record:
        """The hub trains first; what goes out to the clients is what is tested."""
        tuned, sent = await self.fine_tune(hub, state)
        reply = await self.ask(hub, sent)
        if not reply.has("model"):
            return Record(state, model=tuned.model, memory=tuned.memory, tested=sent)
        model, velocity = with_momentum(
            tuned.model, reply.mean("model"), state.velocity, self.global_momentum
        )
        return Record(model=model, velocity=velocity, memory=tuned.memory, tested=sent)

    async def parallel_round(self, hub: Hub, state: Record) -> Record:
        """Hub and clients train side by side from one model; the hub counts as much as all clients
        together.
        """
        reply = await self.ask(hub, state.tested)
        tuned = await self.train_at_hub(hub, state)
        mean = tuned.model
        if reply.has("model"):
            mean = tree.map(lambda a, b: (a + b) / 2, mean, reply.mean("model"))
        return await self.met(hub, state, tuned, mean)

    async def halved_round(self, hub: Hub, state: Record) -> Record:
        """What Table 1 calls FedRGD: the hub is one more client of each half of the clients."""
        ask, replies = self.ask(hub, state.tested), []
        for number in (0, 1):
            replies.append(await replace(ask, to=group(ask.to, number, 2)))
        tuned = await self.train_at_hub(hub, state)
        means = [
            mean_with(tuned.model, reply.sum("model"), reply.count("model")) for reply in replies
        ]
        mean = tree.map(lambda a, b: (a + b) / 2, *means)
        return await self.met(hub, state, tuned, mean)

    async def met(self, hub: Hub, state: Record, tuned: Trained, mean: Model) -> Record:
        """The step from what the hub has trained to where it and the clients meet."""
        model, velocity = with_momentum(tuned.model, mean, state.velocity, self.global_momentum)
        tested = await self.measured(model, hub)
        return Record(model=model, velocity=velocity, memory=tuned.memory, tested=tested)

    async def finish(self, hub: Hub, state: Record) -> Record | None:
        """The last aggregate is fine-tuned once more, as the released code ends on a fine-
        tuning.
        """
        if self.combine != "fine-tune":
            return None
        return await self.final_tuning(hub, state)

    async def final_tuning(self, hub: Hub, state: Record) -> Record:
        tuned, sent = await self.fine_tune(hub, state)
        return Record(state, model=tuned.model, memory=tuned.memory, tested=sent)

    async def fine_tune(self, hub: Hub, state: Record) -> tuple[Trained, Model]:
        tuned = await self.train_at_hub(hub, state)
        return tuned, await self.measured(tuned.model, hub)

    def train_at_hub(self, hub: Hub, state: Record) -> Train:
        streams = {"labelled": Stream(hub.labelled, view="weak", batch=self.hub_batch)}
        rate = cosine(self.rate, hub.progress)
        return Train(
            state.model,
            streams,
            supervised,
            self.sgd,
            epochs=self.epochs,
            memory=state.memory,
            rate=rate,
        )

    async def measured(self, model: Model, hub: Hub) -> Model:
        models = await with_statistics(
            {"model": model}, hub, self.statistics_from, self.statistics_formula
        )
        return models["model"]

    def ask(self, hub: Hub, model: Model) -> Ask:
        message = {"model": model, "rate": cosine(self.rate, hub.progress)}
        return Ask(self.client, hub.sample(self.active), message, once=["model"])

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.unlabelled):
            return None
        per_batch, halves = self.labels_from == "batch", self.combine == "halves"
        streams = self.unlabelled(me) if per_batch else await self.fix_and_mix(me, message.model)
        # In halves who is sure of no image at first stays away, even where labels come by batch.
        if not streams or (per_batch and halves and not await self.fix_and_mix(me, message.model)):
            return None
        step = self.step_with_own_labels if per_batch else None
        trained = await Train(
            message.model,
            streams,
            self.loss,
            self.sgd,
            step,
            self.epochs,
            memory=me.state,
            rate=message.rate,
        )
        if per_batch and not halves:
            # Nothing is done with these labels: asking for them lets the evaluator see how good
            # they are (Fig. 6).
            await Predict(message.model, me.unlabelled, view="weak", threshold=self.threshold)
        keep = trained.memory if self.keep_momentum else None
        return Upload(model=trained.model, keep=keep, report=trained.metrics)

    async def fix_and_mix(self, me: Me, model: Model) -> dict[str, Stream]:
        """The confident images, and all of them to mix with; nothing when none is confident."""
        guess = await Predict(model, me.unlabelled, view="weak", threshold=self.threshold)
        if not guess.confident:
            return {}
        if not self.mixup:
            return {"fix": Stream(guess.confident, view="strong", batch=self.client_batch)}
        return {
            "fix": Stream(guess.confident, view=("strong", "weak"), batch=self.client_batch),
            "mix": Stream(
                guess.hard, view="weak", batch=self.client_batch, draw="with-replacement"
            ),
        }

    def unlabelled(self, me: Me) -> dict[str, Stream]:
        return {"images": Stream(me.unlabelled, view=("weak", "strong"), batch=self.client_batch)}

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eqs. (3)-(5): the confident images under strong views, and their Mixup with arbitrary
        ones.
        """
        if not self.mixup:
            return cross_entropy(model(batch.fix.images), batch.fix.label)
        strong, weak = batch.fix.views
        ratio = mix_ratio(batch.key, self.mix_concentration, like=weak)
        mixed = ratio * weak + (1 - ratio) * batch.mix.images
        fix_logits, mix_logits = lanes(model, strong, mixed)
        mix_loss = ratio * cross_entropy(mix_logits, batch.fix.label) + (1 - ratio) * cross_entropy(
            mix_logits, batch.mix.label
        )
        return cross_entropy(fix_logits, batch.fix.label) + mix_loss

    def step_with_own_labels(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """A step without a confident image changes nothing, momentum and decay included."""
        new_model, new_memory, metrics = standard_step(self.own_label_loss, self.sgd)(
            model, memory, batch, frozen
        )
        any_confident = metrics["confident"] > 0
        return (
            tree.select(any_confident, new_model, model),
            tree.select(any_confident, new_memory, memory),
            metrics,
        )

    def own_label_loss(
        self, model: Model, batch: Batch, frozen: Tree
    ) -> tuple[Tensor, dict[str, Tensor]]:
        weak, strong = batch.images.views
        loss, mask = pseudo_label_loss(model(weak), model(strong), self.threshold, over="masked")
        return loss, {"confident": mask.mean()}

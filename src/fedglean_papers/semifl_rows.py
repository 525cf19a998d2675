"""What SemiFL's Tables 1 and 2 compare it with.

Hub and clients meet in other ways, or labels are given by the model in training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import pseudo_label_loss
from fedglean.method import Ask, Batch, Hub, Me, Predict, Stream, Train, Upload, setting
from fedglean.methods import Entry
from fedglean.methods.common import with_momentum
from fedglean.methods.fedrgd import group, mean_with
from fedglean.methods.semifl import SemiFL, SemiFLState
from fedglean.models import Model
from fedglean.optimiser import cosine, standard_step
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class SemiFLRows(SemiFL):
    """SemiFL with the switches of Table 2; as both stand, it is SemiFL."""

    retired: ClassVar[Mapping[str, tuple[Any, str]]] = {}

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

    def __post_init__(self) -> None:
        if self.labels_from == "batch" and self.mixup:
            raise ConfigError("labels_from = 'batch' has no fixed labels to mix; set mixup = false")

    async def round(self, hub: Hub, state: SemiFLState) -> SemiFLState:
        """Unless it fine-tunes, the hub trains after the clients, from the model that they had."""
        if self.combine == "fine-tune":
            return await super().round(hub, state)
        message = {"model": state.tested, "rate": cosine(self.rate, hub.progress)}
        ask = Ask(self.client, hub.sample(self.active), message, once=["model"])
        if self.combine == "parallel":
            reply = await ask
            tuned = await self.train_at_hub(hub, state)
            mean = tuned.model
            if reply.has("model"):
                # The hub counts as much as all clients together.
                mean = tree.map(lambda a, b: (a + b) / 2, mean, reply.mean("model"))
        else:
            # The hub is one more client of each half of the clients.
            first = await replace(ask, to=group(ask.to, 0, 2))
            second = await replace(ask, to=group(ask.to, 1, 2))
            tuned = await self.train_at_hub(hub, state)
            means = []
            for reply in (first, second):
                means.append(mean_with(tuned.model, reply.sum("model"), reply.count("model")))
            mean = tree.map(lambda a, b: (a + b) / 2, *means)
        model, velocity = with_momentum(tuned.model, mean, state.velocity, self.global_momentum)
        tested = await self.measure(model, hub)
        return SemiFLState(model=model, velocity=velocity, memory=tuned.memory, tested=tested)

    async def finish(self, hub: Hub, state: SemiFLState) -> SemiFLState | None:
        if self.combine != "fine-tune":
            return None
        return await super().finish(hub, state)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if self.labels_from == "global":
            return await super().client(me, message)
        if not len(me.unlabelled):
            return None
        halves = self.combine == "halves"
        predict = Predict(message.model, me.unlabelled, view="weak", threshold=self.threshold)
        if halves:
            # Who is sure of no image at first stays away.
            guess = await predict
            if not guess.confident:
                return None
        views = ("weak", "strong")
        trained = await Train(
            message.model,
            {"images": Stream(me.unlabelled, view=views, batch=self.client_batch)},
            optimiser=self.sgd,
            step=self.step_with_own_labels,
            epochs=self.epochs,
            memory=me.state,
            rate=message.rate,
        )
        if not halves:
            # Nothing is done with these labels: the evaluator sees how good they are (Fig. 6).
            await predict
        keep = trained.memory if self.keep_momentum else None
        return Upload(model=trained.model, keep=keep, report=trained.metrics)

    def step_with_own_labels(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """A step without a confident image changes nothing, momentum and decay included."""
        step = standard_step(self.own_label_loss, self.sgd)
        new_model, new_memory, metrics = step(model, memory, batch, frozen)
        is_any_confident = metrics["confident"] > 0
        return (
            tree.select(is_any_confident, new_model, model),
            tree.select(is_any_confident, new_memory, memory),
            metrics,
        )

    def own_label_loss(
        self, model: Model, batch: Batch, frozen: Tree
    ) -> tuple[Tensor, dict[str, Tensor]]:
        weak, strong = batch.images.views
        loss, mask = pseudo_label_loss(model(weak), model(strong), self.threshold, over="masked")
        return loss, {"confident": mask.mean()}


def _defaults(**settings: Any) -> dict[str, Any]:
    """SemiFL's own defaults with other settings."""
    return {**SemiFL.defaults, "settings": {**SemiFL.defaults["settings"], **settings}}


HALVES = {"combine": "halves", "labels_from": "batch", "mixup": False}
ROWS: Mapping[str, Entry] = {
    "fedavg-fixmatch-hub": Entry(
        SemiFLRows,
        "labels at the hub; FixMatch at clients beside training at the hub, then averaged: "
        "what SemiFL mends (2022)",
        _defaults(combine="parallel", labels_from="batch", mixup=False),
    ),
    "fedrgd-semifl": Entry(
        SemiFLRows,
        "labels at the hub; what SemiFL compared with as FedRGD: two halves averaged, "
        "static batch norm (2022)",
        {"rounds": 40, "settings": {"active": 0.25, **HALVES}},
    ),
    "semifl-table2": Entry(
        SemiFLRows, "labels at the hub; SemiFL with the switches of its Table 2 (2022)"
    ),
}

"""RSCFed (Liang, Lin, Fu, Zhu, Li, CVPR 2022): a few labelled clients, many without any label.

Unlabelled clients train a student against their own mean teacher, and some of them go astray. So a
round draws several small subsets of clients, makes a consensus of each, in which a model far from
the subset's mean counts less, and takes the mean of these. Defaults and rules are those of the
released code, which starts from a stored model that a labelled client trained before; here the
labelled clients train it in round 1.

A subset takes two exchanges. The hub sends the mean back and every client weighs its own model by
the distance that only it can see: the hub sees sums alone, so secure aggregation is possible, for
one more model in each direction.

A client with labels learns from these alone, for the paper knows no partially labelled client; one
without learns from its teacher.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import consistency, moving_average
from fedglean.method import Ask, Batch, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import supervised, with_statistics
from fedglean.models import Model
from fedglean.optimiser import Optimiser, standard_step
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class RSCFed(Method):
    """A client drawn into several subsets trains for each, from the same global model; its teacher
    goes on.
    """

    # As published, the teacher is too weak to be seen within so few rounds.
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20,
        "split": {"partition": "iid", "labels": "LU:3%", "clients": 10},
        "settings": {
            "epochs": 3,
            "batch": 16,
            "unlabelled_weight": 1.0,
            "labelled_scale": 10.0,
            "unlabelled_scale": 10.0,
        },
    }

    subsets: int = setting(3, "M: subsets of clients per round", low=1)
    subset_size: int = setting(5, "K: clients of a subset", low=1)
    warm_up: int = setting(7, "exchanges with labelled clients only, before round 1", low=0)
    epochs: int = setting(1, "local epochs", low=1)
    batch: int = setting(64, "batch size", low=1)
    labelled_rate: float = setting(0.03, "learning rate of labelled clients", low=0)
    unlabelled_rate: float = setting(0.021, "learning rate of unlabelled clients", low=0)
    momentum: float = setting(0.9, "momentum, kept from visit to visit", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(5.0, "largest norm of a gradient", low=1e-6)
    unlabelled_weight: float = setting(
        0.02, "weight of the squared difference from the teacher", low=0
    )
    temperature: float = setting(0.5, "below 1 the teacher's predictions are sharpened", low=1e-3)
    teacher_decay: float = setting(0.999, "largest decay of the teacher's average", low=0, high=1)
    labelled_times: float = setting(
        6.0, "how much more an image of a labelled client counts, both times", low=1
    )
    labelled_scale: float = setting(100.0, "beta in a subset with a labelled client", low=0)
    unlabelled_scale: float = setting(1e4, "beta in a subset without one", low=0)

    def sgd(self, rate: float) -> Optimiser:
        return self.optimiser(rate, self.momentum, decay=self.decay, clip=self.clip)

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        if not any(client.labelled for client in clients):
            raise ConfigError(
                "RSCFed needs clients with labels; 'semifl' works with labels at the hub alone"
            )

    async def round(self, hub: Hub, state: Record) -> Record:
        model = state.model if hub.round > 1 else await self.warmed_up(hub, state.model)
        found = []
        for number in range(self.subsets):
            drawn = hub.sample(min(1, self.subset_size / len(hub.clients)), name=f"subset {number}")
            found.append(await self.consensus(hub, model, drawn))
        mean = tree.map(lambda *models: sum(models) / self.subsets, *found)
        models = await with_statistics({"model": mean}, hub, "everyone")
        return Record(model=models["model"])

    async def warmed_up(self, hub: Hub, model: Model) -> Model:
        labelled = [client for client in hub.everyone if hub.clients[client].labelled]
        for _ in range(self.warm_up):
            reply = await Ask(self.train, labelled, {"model": model})
            model = reply.mean("model")
        return model

    async def consensus(self, hub: Hub, model: Model, drawn: list[int]) -> Model:
        """Distance-reweighted aggregation; a subset in which nobody has an image leaves the model
        as it is.
        """
        reply = await Ask(self.train, drawn, {"model": model.for_training()})
        has_labels = any(hub.clients[client].labelled for client in reply.answered)
        scale = self.labelled_scale if has_labels else self.unlabelled_scale
        reply = await Ask(
            self.weigh, reply.answered, {"model": reply.mean("model"), "scale": scale}
        )
        mean: Model = reply.mean("model")
        return mean

    async def train(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled) + len(me.unlabelled):
            return None
        memory = None if me.state is None else me.state["memory"]
        trained = await self.training(me, message.model.for_training(), memory)
        keep = {"model": trained.model, "memory": trained.memory}
        return Upload(
            model=trained.model, weight=self.data_weight(me), keep=keep, report=trained.metrics
        )

    def training(self, me: Me, model: Model, memory: Tree) -> Train:
        if len(me.labelled):
            streams = {"labelled": Stream(me.labelled, batch=self.batch)}
            return Train(
                model,
                streams,
                supervised,
                self.sgd(self.labelled_rate),
                epochs=self.epochs,
                memory=memory,
            )
        streams = {"images": Stream(me.unlabelled, view=("weak", "weak"), batch=self.batch)}
        if memory is None:
            steps = next(iter(model.parameters.values())).new_zeros(())
            memory = {**self.sgd(0.0).init(model), "teacher": model, "steps": steps}
        return Train(
            model,
            streams,
            step=self.step,
            epochs=self.epochs,
            memory=memory,
            rate=self.unlabelled_rate,
        )

    def step(
        self, student: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The teacher counts its steps over all visits: at its very first one it becomes the
        student.
        """
        teacher, steps = memory["teacher"], memory["steps"]
        frozen = {"teacher": teacher}
        student, memory, metrics = standard_step(self.teacher_loss, self.sgd(0.0))(
            student, memory, batch, frozen
        )
        decay = (1 - 1 / (steps + 1)).clamp(max=self.teacher_decay)
        return (
            student,
            {**memory, "teacher": moving_average(teacher, student, decay), "steps": steps + 1},
            metrics,
        )

    def teacher_loss(self, student: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Squared difference from the sharpened prediction, summed over classes: no threshold, two
        weak views.
        """
        one, other = batch.images.views
        logits, target = student(other), frozen["teacher"].evaluate(one) / self.temperature
        return self.unlabelled_weight * logits.shape[-1] * consistency(logits, target)

    async def weigh(self, me: Me, message: Record) -> Upload | None:
        own = me.state["model"]
        closeness = math.exp(-message.scale * distance(own, message.model) / images(me))
        # Nothing at all would not be a weight.
        weight = max(1e-300, self.data_weight(me) * self.share(me) * closeness)
        return Upload(model=own, weight=weight)

    def data_weight(self, me: Me) -> float:
        return images(me) * self.share(me)

    def share(self, me: Me) -> float:
        """What an image counts; only ratios matter, and a weight may not exceed the number of
        images.
        """
        return 1.0 if len(me.labelled) else 1 / self.labelled_times


def images(me: Me) -> int:
    """n_k: those that the client trains on."""
    return len(me.labelled) or len(me.unlabelled)


def distance(a: Model, b: Model) -> float:
    """Sum over tensors of the Euclidean distance."""
    pairs = zip(tree.named(a).values(), tree.named(b).values(), strict=True)
    return float(torch.stack([(x.double() - y.double()).norm() for x, y in pairs]).sum())

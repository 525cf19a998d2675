"""RSCFed (Liang et al., CVPR 2022): a few labelled clients, many without any label.

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
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean import tree
from fedglean.losses import consistency, moving_average
from fedglean.method import Ask, Batch, Hub, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.settings import iid, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import Optimiser, standard_step
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class RSCFed(Method):
    """A client drawn into several subsets trains anew for each, but its teacher goes on."""

    # As published, the teacher is too weak to be seen within so few rounds.
    defaults = on_a_laptop(
        20,
        iid("LU:3%"),
        epochs=3,
        batch=16,
        unlabelled_weight=1.0,
        labelled_scale=10.0,
        unlabelled_scale=10.0,
    )
    check = needs_labels_at_clients("RSCFed", instead="semifl")

    subsets: int = setting(3, "M: subsets of clients per round", low=1)
    subset_size: int = setting(5, "K: clients of a subset", low=1)
    warm_up: int = setting(7, "exchanges with labelled clients only, before round 1", low=0)
    epochs: int = setting(1, "local epochs", low=1)
    batch: int = setting(64, "batch size", low=1)
    labelled_rate: float = settings.rate(0.03, "learning rate of labelled clients")
    unlabelled_rate: float = settings.rate(0.021, "learning rate of unlabelled clients")
    momentum: float = settings.momentum(0.9, "momentum, kept from visit to visit")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(5.0)
    unlabelled_weight: float = setting(0.02, "weight of the difference from the teacher", low=0)
    temperature: float = setting(0.5, "below 1 the teacher's predictions are sharpened", low=1e-3)
    teacher_decay: float = settings.share(0.999, "largest decay of the teacher's average")
    labelled_times: float = setting(6.0, "how much more a labelled client's image counts", low=1)
    labelled_scale: float = setting(100.0, "beta in a subset with a labelled client", low=0)
    unlabelled_scale: float = setting(1e4, "beta in a subset without one", low=0)

    def sgd(self, rate: float) -> Optimiser:
        return self.optimiser(rate, self.momentum, decay=self.decay, clip=self.clip)

    async def round(self, hub: Hub, state: Record) -> Record:
        model = state.model if hub.round > 1 else await self.pretrain(hub, state.model)
        found = []
        for number in range(self.subsets):
            drawn = hub.sample(min(1, self.subset_size / len(hub.clients)), name=f"subset {number}")
            found.append(await self.consensus(hub, model, drawn))
        mean = tree.map(lambda *models: sum(models) / self.subsets, *found)
        return Record(model=await with_statistics(mean, hub))

    async def pretrain(self, hub: Hub, model: Model) -> Model:
        labelled = [client for client in hub.everyone if hub.clients[client].labelled]
        for _ in range(self.warm_up):
            reply = await Ask(self.train, labelled, {"model": model})
            model = reply.mean("model")
        return model

    async def consensus(self, hub: Hub, model: Model, drawn: list[int]) -> Model:
        """Distance-reweighted aggregation; a subset without any image leaves the model as it is."""
        reply = await Ask(self.train, drawn, {"model": model.for_training()})
        has_labels = any(hub.clients[client].labelled for client in reply.answered)
        scale = self.labelled_scale if has_labels else self.unlabelled_scale
        message = {"model": reply.mean("model"), "scale": scale}
        reply = await Ask(self.weigh, reply.answered, message)
        mean: Model = reply.mean("model")
        return mean

    async def train(self, me: Me, message: Record) -> Upload | None:
        if not images(me):
            return None
        memory = None if me.state is None else me.state["memory"]
        trained = await self.training(me, message.model.for_training(), memory)
        keep = {"model": trained.model, "memory": trained.memory}
        weight = images(me) * self.share(me)
        return Upload(model=trained.model, weight=weight, keep=keep, report=trained.metrics)

    def training(self, me: Me, model: Model, memory: Tree) -> Train:
        epochs = self.epochs
        if me.labelled:
            streams = {"labelled": Stream(me.labelled, batch=self.batch)}
            sgd = self.sgd(self.labelled_rate)
            return Train(model, streams, supervised, sgd, epochs=epochs, memory=memory)
        streams = {"images": Stream(me.unlabelled, view=("weak", "weak"), batch=self.batch)}
        if memory is None:
            steps = next(iter(model.parameters.values())).new_zeros(())
            memory = {**self.sgd(0.0).init(model), "teacher": model, "steps": steps}
        rate = self.unlabelled_rate
        return Train(model, streams, step=self.step, epochs=epochs, memory=memory, rate=rate)

    def step(
        self, student: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The teacher counts its steps over all visits: at the very first it is the student."""
        teacher, steps = memory["teacher"], memory["steps"]
        step = standard_step(self.teacher_loss, self.sgd(0.0))
        student, memory, metrics = step(student, memory, batch, {"teacher": teacher})
        decay = (1 - 1 / (steps + 1)).clamp(max=self.teacher_decay)
        teacher = moving_average(teacher, student, decay)
        return student, {**memory, "teacher": teacher, "steps": steps + 1}, metrics

    def teacher_loss(self, student: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Squared difference from the sharpened prediction, summed over classes; no threshold."""
        one, other = batch.images.views
        logits, target = student(other), frozen["teacher"].evaluate(one) / self.temperature
        return self.unlabelled_weight * logits.shape[-1] * consistency(logits, target)

    async def weigh(self, me: Me, message: Record) -> Upload | None:
        own = me.state["model"]
        closeness = math.exp(-message.scale * distance(own, message.model) / images(me))
        # Nothing at all would not be a weight.
        weight = max(1e-300, images(me) * self.share(me) * self.share(me) * closeness)
        return Upload(model=own, weight=weight)

    def share(self, me: Me) -> float:
        """What an image counts; only ratios matter, and no weight may exceed the images' number."""
        return 1.0 if me.labelled else 1 / self.labelled_times


def images(me: Me) -> int:
    """n_k: those that the client trains on."""
    return len(me.labelled) or len(me.unlabelled)


def distance(a: Model, b: Model) -> float:
    """Sum over tensors of the Euclidean distance."""
    pairs = zip(tree.named(a).values(), tree.named(b).values(), strict=True)
    return float(torch.stack([(x.double() - y.double()).norm() for x, y in pairs]).sum())

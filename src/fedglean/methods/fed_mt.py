"""Fed-MT: mean teacher (Tarvainen, Valpola 2017) under FedAvg, a baseline of Fed-SHVR (2021).

At each client a student learns the labels, and to say of a noisy image what its teacher says of
another noisy copy; the teacher is the moving average of the student's weights. Both start from the
global model. The Fed-SHVR paper gives no more than the name: rates and batches are its own for all
methods, the rest is from the mean-teacher literature. A teacher that a client keeps for itself
instead falls behind: where a client's labels are of two digits and its images of ten, it pulls the
federation below what the labels alone teach.

A client without labels learns from its teacher alone, one with all labels from both. The teacher is
tested nowhere: what is averaged, by the number of images, is the students.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean.losses import consistency, moving_average, ramp
from fedglean.method import Batch, Hub, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import fedavg_round, supervised
from fedglean.methods.settings import (
    MISMATCH,
    MLP,
    WithSGD,
    needs_labels_at_clients,
    on_a_laptop,
    setting,
)
from fedglean.models import Model
from fedglean.optimiser import standard_step
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedMT(WithSGD, Method):
    """An epoch is one over all images; the labelled ones are drawn again beside them, and cycle."""

    defaults = on_a_laptop(25, MISMATCH, MLP, rate=0.1, ramp_epochs=20.0)
    check = needs_labels_at_clients("Fed-MT")

    active: float = settings.active(1.0)
    epochs: int = setting(2, "local epochs", low=1)
    labelled_batch: int = setting(32, "batch size of labelled images", low=1)
    batch: int = setting(32, "batch size of images that the teacher speaks about", low=1)
    rate: float = settings.rate(0.01)
    momentum: float = settings.momentum(0.0)
    consistency_weight: float = setting(50.0, "weight of the difference from the teacher", low=0)
    ramp_epochs: float = setting(50.0, "local epochs over which that weight grows", low=0)
    early_average: float = settings.share(0.99, "decay of the teacher's average until then")
    late_average: float = settings.share(0.999, "decay of the teacher's average afterwards")
    keep_teacher: bool = setting(False, "go on with the last visit's teacher, not the global model")
    view: str = setting("noise", "what makes two copies of an image differ", names="VIEWS")

    async def round(self, hub: Hub, state: Record) -> Record:
        to, done = hub.sample(self.active), (hub.round - 1) * self.epochs
        return await fedavg_round(self.client, to, hub, state, epochs_done=done)

    async def client(self, me: Me, message: Record) -> Upload | None:
        images = me.unlabelled + me.labelled
        if not images:
            return None
        streams = {"images": Stream(images, view=(self.view, self.view), batch=self.batch)}
        if me.labelled:
            streams["labelled"] = Stream(me.labelled, view=self.view, batch=self.labelled_batch)
        model = message.model.for_training()
        teacher = model if me.state is None else me.state
        trained = await Train(
            model,
            streams,
            step=self.step,
            epochs=self.epochs,
            memory={**self.sgd.init(model), "teacher": teacher},
            frozen={"epochs_done": torch.tensor(float(message.epochs_done), dtype=torch.float64)},
            rate=self.rate,
        )
        keep = trained.memory["teacher"] if self.keep_teacher else None
        return Upload(model=trained.model, weight=len(images), keep=keep, report=trained.metrics)

    def step(
        self, student: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The student learns, then the teacher moves a little towards it."""
        teacher, known = memory["teacher"], {**frozen, "teacher": memory["teacher"]}
        student, memory, metrics = standard_step(self.loss, self.sgd)(student, memory, batch, known)
        growing = frozen["epochs_done"] + batch.epoch < self.ramp_epochs
        early = growing.to(batch.images.images.dtype)
        decay = self.late_average + (self.early_average - self.late_average) * early
        return student, {**memory, "teacher": moving_average(teacher, student, decay)}, metrics

    def loss(self, student: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        own, other = batch.images.views
        difference = consistency(student(own), frozen["teacher"].evaluate(other))
        epochs = frozen["epochs_done"] + batch.epoch
        weight = self.consistency_weight * ramp(epochs, self.ramp_epochs, "sigmoid")
        total = weight.to(difference.dtype) * difference
        if "labelled" in batch.streams:
            total = total + supervised(student, batch, frozen)
        return total, {"difference": difference}

"""Centralised semi-supervised learning: one site has all images. Federations are measured by it.

The methods of this family differ in their loss alone. A round is so many steps at the one client,
which sends its model and the moving average of its weights back; momentum stays there. The hub
tests the average, as the public codes do. Steps count, not epochs: a batch has labelled images and
`ratio` times as many unlabelled ones, and the labelled are among the latter too. Defaults follow
TorchSSL's CIFAR-10 configurations.

Different from that code: static batch norm measured over all images of the site (there running
averages, of labelled batches where views are not joined), decay on biases and norms too, and a
learning rate that falls by round.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean.errors import ConfigError
from fedglean.losses import moving_average
from fedglean.method import Ask, Batch, Declared, Hub, MakeModel, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import with_statistics
from fedglean.methods.settings import WithSGD, iid, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import standard_step
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class CentralState(State):
    """What is trained, its moving average, and both as they are tested."""

    model: Model
    average: Model
    tested: dict[str, Model]


@dataclass(frozen=True)
class Central(WithSGD, Method):
    """All but the loss; `views` are what it sees of an unlabelled image."""

    defaults = on_a_laptop(40, iid("each:20", clients=1), steps=20, batch=20, average=0.95)
    nesterov = True
    labelled_view: ClassVar[str] = "weak"
    views: ClassVar[tuple[str, ...]]

    steps: int = setting(1024, "steps per round", low=1)
    batch: int = setting(64, "labelled images per step", low=1)
    ratio: int = setting(1, "unlabelled images per labelled one", low=1)
    rate: float = settings.rate(0.03, "first learning rate; falls to a fifth as cos(7/16 pi x)")
    momentum: float = settings.momentum(0.9, "Nesterov momentum")
    decay: float = settings.decay(5e-4)
    average: float = settings.share(0.999, "decay of the moving average, which is tested")

    @abstractmethod
    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Any:
        """`frozen` has the moving `average` so far, and `progress`, from 0 to 1 over the run."""

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        if len(clients) != 1 or not clients[0].labelled or not clients[0].unlabelled:
            raise ConfigError(
                "a centralised reference needs a single client, with labelled and unlabelled "
                "images; use clients = 1 and labels = 'each:N'"
            )

    def start(self, make: MakeModel) -> CentralState:
        model = self.extend(make("model"))
        tested = {name: self.classifier(model) for name in ("average", "model")}
        return CentralState(model, average=model, tested=tested)

    def extend(self, model: Model) -> Model:
        """What is trained."""
        return model

    def classifier(self, model: Model) -> Model:
        """What is tested of it."""
        return model

    def predictors(self, state: CentralState) -> dict[str, Model]:
        return {name: state.tested[name] for name in ("average", "model")}

    async def round(self, hub: Hub, state: CentralState) -> CentralState:
        rate = self.rate * math.cos(7 / 16 * math.pi * hub.progress)
        known = {"rate": rate, "round": hub.round, "rounds": hub.rounds}
        message = {"model": state.model, "average": state.average, **known}
        reply = await Ask(self.client, hub.everyone, message)
        trained = {name: reply.mean(name) for name in ("average", "model")}
        tested = {name: self.classifier(model) for name, model in trained.items()}
        return CentralState(**trained, tested=await with_statistics(tested, hub))

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        streams = {
            "labelled": Stream(me.labelled, self.labelled_view, self.batch),
            "unlabelled": Stream(me.unlabelled + me.labelled, self.views, self.batch * self.ratio),
        }
        kept = self.fresh_memory(message.model) if me.state is None else me.state
        trained = await Train(
            message.model,
            streams,
            step=self.step,
            steps=self.steps,
            memory={**kept, "average": message.average},
            frozen=self.frozen(me, message),
            rate=message.rate,
        )
        keep = dict(trained.memory)
        average = keep.pop("average")
        return Upload(model=trained.model, average=average, keep=keep, report=trained.metrics)

    def fresh_memory(self, model: Model) -> dict[str, Tree]:
        return self.sgd.init(model)

    def frozen(self, me: Me, message: Record) -> dict[str, Tensor]:
        steps = torch.tensor([message.round - 1, message.rounds], dtype=torch.float64) * self.steps
        return {"steps_done": steps[0], "all_steps": steps[1]}

    def step(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The standard step; the average of the weights follows, with the model's statistics."""
        progress = (frozen["steps_done"] + batch.step) / frozen["all_steps"]
        known: Mapping[str, Any] = {**frozen, "average": memory["average"], "progress": progress}
        old = memory["average"].parameters
        model, memory, metrics = standard_step(self.loss, self.sgd)(model, memory, batch, known)
        weights = moving_average(old, model.parameters, self.average)
        average = Model(model.architecture, weights, dict(model.statistics))
        return model, {**memory, "average": average}, metrics

"""Centralised semi-supervised learning: one site has all images, labelled or not. Federations are
measured by it.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean.errors import ConfigError
from fedglean.losses import moving_average
from fedglean.method import Ask, Batch, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import with_statistics
from fedglean.models import Model
from fedglean.optimiser import Optimiser, standard_step
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class CentralState(State):
    """What is trained, its moving average, and both as they are tested."""

    model: Model
    average: Model
    tested: dict[str, Model]


@dataclass(frozen=True)
class Central(Method):
    """All but the loss; `views` are what it sees of an unlabelled image."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 40,
        "split": {"partition": "iid", "labels": "each:20", "clients": 1},
        "settings": {"steps": 20, "batch": 20, "average": 0.95},
    }

    labelled_view: ClassVar[str] = "weak"
    views: ClassVar[tuple[str, ...]]

    steps: int = setting(1024, "steps per round", low=1)
    batch: int = setting(64, "labelled images per step", low=1)
    ratio: int = setting(1, "unlabelled images per labelled one", low=1)
    rate: float = setting(
        0.03, "learning rate of round 1; falls to a fifth as cos(7/16 pi x)", low=0
    )
    momentum: float = setting(0.9, "Nesterov momentum", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    average: float = setting(
        0.999, "decay of the moving average of the weights, which is tested", low=0, high=1
    )

    @abstractmethod
    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Any:
        """`frozen` has `average`, the moving average before this step, and `progress`, from 0 to 1
        over the run.
        """

    @property
    def sgd(self) -> Optimiser:
        return self.optimiser(
            self.rate, self.momentum, nesterov=self.momentum > 0, decay=self.decay
        )

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        if len(clients) != 1 or not clients[0].labelled or not clients[0].unlabelled:
            raise ConfigError(
                "a centralised reference needs a single client, with labelled and unlabelled "
                "images; "
                "use clients = 1 and labels = 'each:N'"
            )

    def start(self, make: Callable[..., Model]) -> CentralState:
        model = self.built(make("model"))
        tested = {name: self.classifier(model) for name in ("average", "model")}
        return CentralState(model=model, average=model, tested=tested)

    def built(self, model: Model) -> Model:
        """What is trained."""
        return model

    def classifier(self, model: Model) -> Model:
        """What is tested of it."""
        return model

    def predictors(self, state: CentralState) -> dict[str, Model]:
        return {name: state.tested[name] for name in ("average", "model")}

    async def round(self, hub: Hub, state: CentralState) -> CentralState:
        rate = self.rate * math.cos(7 / 16 * math.pi * hub.progress)
        message = {"model": state.model, "average": state.average, "rate": rate}
        reply = await Ask(
            self.client, hub.everyone, {**message, "round": hub.round, "rounds": hub.rounds}
        )
        trained = {name: reply.mean(name) for name in ("average", "model")}
        tested = {name: self.classifier(model) for name, model in trained.items()}
        return CentralState(**trained, tested=await with_statistics(tested, hub, "everyone"))

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {
            "labelled": Stream(me.labelled, self.labelled_view, self.batch),
            "unlabelled": Stream(me.unlabelled + me.labelled, self.views, self.batch * self.ratio),
        }
        kept = me.state if me.state is not None else self.fresh_memory(message.model)
        memory, frozen = {**kept, "average": message.average}, self.frozen(me, message)
        trained = await Train(
            message.model,
            streams,
            step=self.step,
            steps=self.steps,
            memory=memory,
            frozen=frozen,
            rate=message.rate,
        )
        keep = {name: part for name, part in trained.memory.items() if name != "average"}
        return Upload(
            model=trained.model,
            average=trained.memory["average"],
            keep=keep,
            report=trained.metrics,
        )

    def fresh_memory(self, model: Model) -> dict[str, Tree]:
        return self.sgd.init(model)

    def frozen(self, me: Me, message: Record) -> dict[str, Tensor]:
        steps = torch.tensor([message.round - 1, message.rounds], dtype=torch.float64) * self.steps
        return {"steps_done": steps[0], "all_steps": steps[1]}

    def step(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        """The standard step, and the average follows: its weights only, the statistics are the
        model's own.
        """
        progress = (frozen["steps_done"] + batch.step) / frozen["all_steps"]
        known: Mapping[str, Any] = {**frozen, "average": memory["average"], "progress": progress}
        model, memory, metrics = standard_step(self.loss, self.sgd)(model, memory, batch, known)
        weights = moving_average(
            dict(memory["average"].parameters), dict(model.parameters), self.average
        )
        return (
            model,
            {**memory, "average": Model(model.architecture, weights, dict(model.statistics))},
            metrics,
        )

"""HASSLE with SUMA (Shang et al. 2023): a model for labelled images and one for the others.

The supervised model learns from labelled images, the unsupervised one from images that the
supervised one labelled. They help each other twice: two small residual models learn the difference
of their outputs (residual alignment), and each is pulled towards the other while it trains
(proximity alignment).

The paper's equations are the default, with the values it leaves open taken from the released code
(proximity on the squared distance, temperatures 2 and 1, KL from teacher to student).
What that code does otherwise is `hassle-release`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedglean.inputs.images import Images
from fedglean.losses import cross_entropy, distillation, squared_distance
from fedglean.method import (
    Ask,
    Batch,
    Hub,
    MakeModel,
    Me,
    Method,
    Mixture,
    Predict,
    Stream,
    Train,
    Upload,
    together,
)
from fedglean.methods import settings
from fedglean.methods.common import with_statistics
from fedglean.methods.settings import needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.tree import Record, State, Tree

DUALS = ("supervised", "unsupervised")
RESIDUALS = ("supervised_residual", "unsupervised_residual")


@dataclass(frozen=True)
class HassleState(State):
    """All models, the duals of the round before, and what is tested."""

    models: dict[str, Model]
    previous: dict[str, Model]
    tested: dict[str, Model]


@dataclass(frozen=True)
class Hassle(Method):
    """Algorithm 1 of the appendix; an upload lacks the models of data that a client lacks."""

    # Digits are so few that a client takes ten steps where the paper's take hundreds: proximity
    # must pull harder to matter.
    defaults = on_a_laptop(
        50,
        {"partition": "hassle-dirichlet:0.05", "labels": "LU:20%"},
        active=0.2,
        epochs=5,
        batch=16,
        rate=0.03,
        residual_steps=5,
        proximity_weight=0.1,
    )
    check = needs_labels_at_clients("HASSLE", instead="semifl")
    retired: ClassVar[Mapping[str, tuple[Any, str]]] = {"variant": ("paper", "hassle-release")}

    active: float = settings.active(0.4)
    epochs: int = setting(10, "local epochs of the two models", low=1)
    residual_steps: int = setting(10, "steps of the residual models per visit", low=1)
    batch: int = setting(128, "batch size", low=1)
    rate: float = settings.rate(0.1)
    momentum: float = settings.momentum(0.9)
    view: str = setting("weak", "what is trained on", names="VIEWS")
    residual_decay: float = setting(0.0, "weight decay of the residual models", low=0)
    residual: bool = setting(True, "residual alignment (GRA)")
    proximity: bool = setting(True, "proximity alignment (MPA)")
    residual_width: float = setting(
        0.25, "share of the channels that a residual model has", low=1 / 64, high=1
    )
    residual_weight: float = setting(1.0, "lambda of eq. (9), of what a residual learns", low=0)
    proximity_weight: float = setting(0.001, "gamma of eq. (12), on the squared distance", low=0)
    supervised_temperature: float = setting(2.0, "of eq. (7), for supervised residuals", low=1e-3)
    unsupervised_temperature: float = setting(1.0, "of eq. (7), for unsupervised ones", low=1e-3)
    threshold: float = settings.share(0.0, "confidence from which a label is used (Table 6: 0.95)")

    def start(self, make: MakeModel) -> HassleState:
        models = {name: make(name) for name in DUALS}
        if self.residual:
            models |= {name: make(name, self.residual_width) for name in RESIDUALS}
        duals = {name: models[name] for name in DUALS}
        return HassleState(models, previous=duals, tested=models)

    def predictors(self, state: HassleState) -> dict[str, Model | Mixture]:
        """Ensemble, supervised and unsupervised model, each dual with its residual."""
        tested = state.tested
        models = tuple(tested[name] for name in (*DUALS, *RESIDUALS) if name in tested)
        if not self.residual:
            return {"EM": Mixture(models, (0.5, 0.5)), "SM": models[0], "UM": models[1]}
        sides = {
            name: Mixture(models[place::2], (1.0, 1.0)) for place, name in enumerate(("SM", "UM"))
        }
        return {"EM": Mixture(models, (0.5,) * 4), **sides}

    async def round(self, hub: Hub, state: HassleState) -> HassleState:
        """All models go out, and the supervised one before them; means are by n_L and n_U."""
        message = {**state.models, "previous": state.previous["supervised"]}
        reply = await Ask(self.client, hub.sample(self.active), message)
        models = await with_statistics({name: reply.mean(name) for name in state.models}, hub)
        old = {name: state.models[name] for name in DUALS}
        # A residual was trained against the duals that were sent: tested is w^(t-1) + r^(t).
        tested = models | old if self.residual else models
        return HassleState(models, previous=old, tested=tested)

    async def client(self, me: Me, message: Record) -> Upload | None:
        work: dict[str, Train] = {}
        if me.labelled:
            work |= self.trainings("supervised", "unsupervised", me.labelled, message)
        if me.unlabelled:
            images = await self.label(me, message)
            if images:
                work |= self.trainings("unsupervised", "supervised", images, message)
        if not work:
            return None
        trained = dict(zip(work, await together(*work.values()), strict=True))
        counts = {"supervised": len(me.labelled), "unsupervised": len(me.unlabelled)}
        weight = {name: counts[name.removesuffix("_residual")] for name in work}
        duals = [name for name in DUALS if name in work]
        report = {f"{name}_loss": trained[name].metrics["loss"] for name in duals}
        models = {name: answer.model for name, answer in trained.items()}
        return Upload(weight=weight, report=report, **models)

    async def label(self, me: Me, message: Record) -> Images:
        """Eq. (11), or eq. (5) without residuals."""
        guess = await Predict(self.labeller(message), me.unlabelled, threshold=self.threshold)
        return guess.confident

    def labeller(self, message: Record) -> Model | Mixture:
        if not self.residual:
            supervised: Model = message.supervised
            return supervised
        return Mixture((message.previous, message.supervised_residual), (1.0, 1.0))

    def trainings(self, own: str, other: str, images: Images, message: Record) -> dict[str, Train]:
        """The dual model of one kind of data and its residual."""
        streams = {"images": Stream(images, view=self.view, batch=self.batch)}
        work = {
            own: Train(
                message[own],
                streams,
                self.dual_loss,
                self.optimiser(self.rate, self.momentum),
                epochs=self.epochs,
                frozen={"other": message[other].parameters},
            )
        }
        if self.residual:
            losses = {
                "supervised": self.supervised_residual_loss,
                "unsupervised": self.unsupervised_residual_loss,
            }
            work[f"{own}_residual"] = Train(
                message[f"{own}_residual"],
                streams,
                losses[own],
                self.optimiser(self.rate, self.momentum, decay=self.residual_decay),
                steps=self.residual_steps,
                frozen={"own": message[own], "other": message[other]},
            )
        return work

    def dual_loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Eq. (12)."""
        loss = cross_entropy(model(batch.images.images), batch.images.label)
        if self.proximity:
            distance = squared_distance(model.parameters, frozen["other"])
            loss = loss + self.proximity_weight * distance
        return loss

    def supervised_residual_loss(self, residual: Model, batch: Batch, frozen: Tree) -> Tensor:
        return self.residual_loss(residual, batch, frozen, self.supervised_temperature)

    def unsupervised_residual_loss(self, residual: Model, batch: Batch, frozen: Tree) -> Tensor:
        return self.residual_loss(residual, batch, frozen, self.unsupervised_temperature)

    def residual_loss(
        self, residual: Model, batch: Batch, frozen: Tree, temperature: float
    ) -> Tensor:
        """Eqs. (7)-(9): what the other dual knows more, and what makes the sum predict well."""
        images = batch.images.images
        output, own = residual(images), frozen["own"].evaluate(images).detach()
        difference = frozen["other"].evaluate(images).detach() - own
        learned = distillation(output, difference, temperature)
        return cross_entropy(own + output, batch.images.label) + self.residual_weight * learned

"""HASSLE as its released code has it where that differs from the paper.

Labels are made afresh for every batch; a residual learns from the other dual as it was a round
before, and with its residual; the unsupervised model is pulled to the previous supervised one;
residuals are tested on duals one round older; and a round for the residuals alone comes first. That
code's momentum leaks from client to client, which depends on their order: it is not reproduced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglean.errors import ConfigError
from fedglean.inputs.images import Images
from fedglean.losses import cross_entropy, distillation
from fedglean.method import Ask, Batch, Hub, Me, Train
from fedglean.methods.common import with_statistics
from fedglean.methods.hassle import DUALS, Hassle, HassleState
from fedglean.models import Model
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class HassleRelease(Hassle):
    """HASSLE as released."""

    retired: ClassVar[Mapping[str, tuple[Any, str]]] = {"variant": ("release", "hassle")}

    def __post_init__(self) -> None:
        if self.threshold:
            raise ConfigError(
                "the released code makes pseudo-labels for every batch and has no threshold; set "
                "threshold = 0"
            )

    async def round(self, hub: Hub, state: HassleState) -> HassleState:
        if self.residual and hub.round == 1:
            warm_up = hub.sample(self.active, name="warm-up")
            state = replace(state, models=await self.exchange(hub, warm_up, state, duals=False))
        models = await self.exchange(hub, hub.sample(self.active), state, duals=True)
        old = {name: state.models[name] for name in DUALS}
        tested = models | state.previous if self.residual else models
        return HassleState(models=models, previous=old, tested=tested)

    async def exchange(
        self, hub: Hub, to: list[int], state: HassleState, duals: bool
    ) -> dict[str, Model]:
        """Both duals of the round before go out too: they teach the residuals."""
        message = {**state.models, "previous": state.previous["supervised"], "duals": duals}
        if self.residual:
            message["previous_unsupervised"] = state.previous["unsupervised"]
        reply = await Ask(self.client, to, message)
        means = {name: reply.mean(name) for name in state.models}
        return await with_statistics(means, hub, "everyone")

    async def label(self, me: Me, message: Record) -> Images:
        """Not yet: the losses label each batch by itself."""
        return me.unlabelled

    def trainings(self, own: str, other: str, images: Images, message: Record) -> dict[str, Train]:
        work = super().trainings(own, other, images, message)
        labeller = self.labeller(message)
        pulled_to = message.previous if own == "unsupervised" else message.unsupervised
        frozen = {"other": pulled_to.parameters, "labeller": labeller}
        work[own] = replace(work[own], frozen=frozen)
        if self.residual:
            frozen = {
                "own": message[own],
                "other": message.previous
                if other == "supervised"
                else message.previous_unsupervised,
                "other_residual": message[f"{other}_residual"],
                "labeller": labeller,
            }
            work[f"{own}_residual"] = replace(work[f"{own}_residual"], frozen=frozen)
        if not message.duals:
            del work[own]
        return work

    def dual_loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        return super().dual_loss(model, with_labels(batch, frozen), frozen)

    def residual_loss(
        self, residual: Model, batch: Batch, frozen: Tree, temperature: float
    ) -> Tensor:
        """The other dual teaches as it was the round before, with its residual."""
        images, label = batch.images.images, with_labels(batch, frozen).images.label
        output, own = residual(images), frozen["own"].evaluate(images).detach()
        difference = frozen["other"].evaluate(images).detach() - own
        difference = difference + frozen["other_residual"].evaluate(images).detach()
        learned = distillation(output, difference, temperature)
        return cross_entropy(own + output, label) + self.residual_weight * learned


def with_labels(batch: Batch, frozen: Tree) -> Batch:
    """Where it has no labels, the batch has those that the labeller gives this very view."""
    sample = batch.images
    if sample.label is not None:
        return batch
    label = frozen["labeller"].evaluate(sample.images).detach().argmax(-1)
    return replace(batch, streams={"images": replace(sample, label=label)})

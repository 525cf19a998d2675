"""Exchanges and streams that several methods share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedglean import tree
from fedglean.losses import cross_entropy
from fedglean.method import (
    Ask,
    Batch,
    ClientFunction,
    Expect,
    Hub,
    Me,
    Statistics,
    Stream,
    Upload,
    together,
)
from fedglean.models import Model
from fedglean.models.norm import lowest
from fedglean.randomness import fold_int, uniform
from fedglean.tree import Record, State, Tree

#: One model, or several by name.
Models = TypeVar("Models", Model, dict[str, Model])


@dataclass(frozen=True)
class ModelAndMemory(State):
    """The model, and what the hub's optimiser remembers."""

    model: Model
    memory: Tree


@dataclass(frozen=True)
class ModelAndVelocity(State):
    """The model, and the velocity of the hub's steps (`with_momentum`)."""

    model: Model
    velocity: Tree


def supervised(model: Model, batch: Batch, frozen: Tree) -> Tensor:
    """Cross-entropy on labelled images."""
    return cross_entropy(model(batch.labelled.images), batch.labelled.label)


def epochs_in_time(me: Me, epochs: int, stragglers: float) -> int:
    """FedProx's clients that run out of time: in a share of the visits fewer epochs, by chance."""
    if float(uniform(fold_int(me.key, "straggler"))) >= stragglers:
        return epochs
    return 1 + fold_int(me.key, "epochs") % epochs


async def with_statistics(
    models: Models, hub: Hub, source: str = "everyone", formula: str = "cumulative"
) -> Models:
    """One model, or several by name, with test statistics over the images of hub and clients.

    Of the hub alone if `source` is "hub". Costs nothing for models that need none. Where nobody has
    two images to measure, the models stay as they are.
    """
    if isinstance(models, Model):
        alone: dict[str, Model] = {"model": models}
        return (await with_statistics(alone, hub, source, formula))["model"]  # type: ignore[return-value]
    names = [name for name, model in models.items() if model.needs_statistics]
    if not names:
        return dict(models)
    own = await together(*[Statistics(models[name], hub.labelled) for name in names])
    sums = dict(zip(names, own, strict=True))
    if source == "everyone":
        expect = {f"{name}_sums": _form_of_sums(models[name]) for name in names}
        message = {name: models[name] for name in names}
        reply = await Ask(
            _measure, hub.everyone, message, expect=expect, once=list(expect), purpose="measure"
        )
        sums = {name: tree.add(sums[name], reply.sum(f"{name}_sums")) for name in names}
    measured = {
        name: models[name].with_statistics(sums[name], formula)
        for name in names
        if float(sums[name]["images"])
    }
    return {**models, **measured}


def _form_of_sums(model: Model) -> Expect:
    """Over no more images than a client declared; none is negative but those of means."""
    empty = model.empty_sums()
    bound = {name: torch.full_like(value, 1e6) for name, value in empty.items()}
    bound["images"] = torch.ones_like(empty["images"])
    return Expect(empty, bound, lowest(empty))


async def _measure(me: Me, message: Record) -> Upload | None:
    images = me.labelled + me.unlabelled
    if len(images) < 2:
        return None
    sums = await together(*[Statistics(model, images) for model in message.values()])
    return Upload.of({f"{name}_sums": part for name, part in zip(message, sums, strict=True)})


async def fedavg_round(
    client: ClientFunction, to: Sequence[int], hub: Hub, state: Record, **message: Any
) -> Record:
    """These clients train from the model, and their mean is the next one, statistics included.

    The model goes out with its statistics, so that a client's predictions are those of the test.
    """
    reply = await Ask(client, to, {"model": state.model, **message})
    return Record(state, model=await with_statistics(reply.mean("model"), hub))


def streams_and_steps(
    me: Me, labelled_batch: int, unlabelled_batch: int
) -> tuple[dict[str, Stream], int]:
    """SAGE's benchmark: all images in two views without labels, the labelled ones, and steps.

    An epoch is as many steps as labelled batches fit into all images, whatever the other batch.
    """
    images = me.unlabelled + me.labelled
    streams = {"unlabelled": Stream(images, view=("weak", "strong"), batch=unlabelled_batch)}
    if me.labelled:
        streams["labelled"] = Stream(me.labelled, view="weak", batch=labelled_batch)
    return streams, max(1, len(images) // labelled_batch)


def with_momentum(model: Model, mean: Model, velocity: Tree, momentum: float) -> tuple[Model, Tree]:
    """The hub's step to the mean A: V <- m V + (W - A), W <- W - V; statistics are those of A."""
    weights = model.parameters
    velocity = tree.map(lambda v, w, a: momentum * v + (w - a), velocity, weights, mean.parameters)
    return mean.with_parameters(tree.subtract(weights, velocity)), velocity

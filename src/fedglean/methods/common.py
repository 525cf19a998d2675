"""Exchanges and settings that several methods share."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import cross_entropy
from fedglean.method import (
    Ask,
    Batch,
    ClientFunction,
    Declared,
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
from fedglean.tree import Record, Tree


def supervised(model: Model, batch: Batch, frozen: Tree) -> Tensor:
    """Cross-entropy on labelled images."""
    return cross_entropy(model(batch.labelled.images), batch.labelled.label)


def need_labels_at_clients(method: str, clients: Sequence[Declared]) -> None:
    if not any(client.labelled for client in clients):
        raise ConfigError(
            f"{method} needs clients with labels; 'hub-only' trains on labels at the hub"
        )


def need_labels_at_hub(method: str, hub_labels: int, instead: str) -> None:
    if hub_labels == 0:
        raise ConfigError(
            f"{method} needs labelled images at the hub; '{instead}' works with labels at the "
            "clients"
        )


def epochs_managed(me: Me, epochs: int, stragglers: float) -> int:
    """All epochs, or at a share of the visits a random number of them: FedProx's clients that run
    out of time.
    """
    if float(uniform(fold_int(me.key, "straggler"))) >= stragglers:
        return epochs
    return 1 + fold_int(me.key, "epochs") % epochs


async def with_statistics(
    models: Mapping[str, Model], hub: Hub, source: str, formula: str = "cumulative"
) -> dict[str, Model]:
    """The models with test statistics over the hub's images, and every client's where `source` is
    "everyone".

    Costs nothing for models that need none. Where nobody has two images to measure, the models stay
    as they are.
    """
    names = [name for name, model in models.items() if model.needs_statistics]
    if not names:
        return dict(models)
    own = await together(*[Statistics(models[name], hub.labelled) for name in names])
    sums = dict(zip(names, own, strict=True))
    if source == "everyone":
        expect = {f"{name}_sums": _expected(models[name]) for name in names}
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


def _expected(model: Model) -> Expect:
    """Sums over no more images than a client has declared, and none of them negative but those of
    means.
    """
    empty = model.empty_sums()
    bound = {
        name: torch.full_like(value, 1.0 if name == "images" else 1e6)
        for name, value in empty.items()
    }
    return Expect(empty, bound, lowest(empty))


async def _measure(me: Me, message: Record) -> Upload | None:
    images = me.labelled + me.unlabelled
    if len(images) < 2:
        return None
    sums = await together(*[Statistics(model, images) for model in message.values()])
    trees = {f"{name}_sums": part for name, part in zip(message, sums, strict=True)}
    return Upload.of(trees)


async def averaged(
    client: ClientFunction, to: Sequence[int], hub: Hub, state: Record, **message: Any
) -> Record:
    """A round of FedAvg: these clients train from the model, and their mean is the next one, test
    statistics included.

    The model goes out with its statistics, so that a client's predictions are those of the test.
    """
    reply = await Ask(client, to, {"model": state.model, **message})
    models = await with_statistics({"model": reply.mean("model")}, hub, "everyone")
    return Record(state, model=models["model"])


def pooled(me: Me, labelled_batch: int, unlabelled_batch: int) -> tuple[dict[str, Stream], int]:
    """Streams and steps per epoch of SAGE's benchmark: all images in two views without labels, and
    the labelled ones.

    An epoch is as many steps as labelled batches fit into all images, whatever the unlabelled
    batch.
    """
    images = me.unlabelled + me.labelled
    streams = {"unlabelled": Stream(images, view=("weak", "strong"), batch=unlabelled_batch)}
    if len(me.labelled):
        streams["labelled"] = Stream(me.labelled, view="weak", batch=labelled_batch)
    return streams, max(1, len(images) // labelled_batch)


def with_momentum(model: Model, mean: Model, velocity: Tree, momentum: float) -> tuple[Model, Tree]:
    """The hub's step towards the clients' mean: V <- m V + (W - A), W <- W - V; statistics follow
    the mean.
    """
    velocity = tree.map(
        lambda v, w, a: momentum * v + (w - a),
        velocity,
        dict(model.parameters),
        dict(mean.parameters),
    )
    return mean.with_parameters(tree.subtract(dict(model.parameters), velocity)), velocity

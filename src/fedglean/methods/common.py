"""Exchanges and settings that several methods share."""

from collections.abc import Mapping

from torch import Tensor

from fedglean import tree
from fedglean.losses import cross_entropy
from fedglean.method import Ask, Batch, Expect, Hub, Me, Statistics, Talk, Upload
from fedglean.models import Model
from fedglean.tree import Record, Tree


def supervised(model: Model, batch: Batch, frozen: Tree) -> Tensor:
    """Cross-entropy on labelled images."""
    return cross_entropy(model(batch.labelled.images), batch.labelled.label)


def with_statistics(models: Mapping[str, Model], hub: Hub, source: str, formula: str = "cumulative") -> Talk:
    """The models with test statistics over the hub's images, and every client's where `source` is "everyone".

    Costs nothing for models that need none. Where nobody has two images to measure, the models stay as they are.
    """
    names = [name for name, model in models.items() if model.needs_statistics]
    if not names:
        return models
    own = yield [Statistics(models[name], hub.labelled) for name in names]
    sums = dict(zip(names, own, strict=True))
    if source == "everyone":
        expect = {f"{name}_sums": Expect(models[name].empty_sums()) for name in names}
        message = {name: models[name] for name in names}
        reply = yield Ask(_measure, hub.everyone, message, expect=expect, purpose="measure")
        sums = {name: tree.add(sums[name], reply.sum(f"{name}_sums")) for name in names}
    measured = {
        name: models[name].with_statistics(sums[name], formula) for name in names if float(sums[name]["images"])
    }
    return {**models, **measured}


def _measure(me: Me, message: Record) -> Talk:
    images = me.labelled + me.unlabelled
    if len(images) < 2:
        return None
    sums = yield [Statistics(model, images) for model in message.values()]
    return Upload(**{f"{name}_sums": part for name, part in zip(message, sums, strict=True)})


def with_momentum(model: Model, mean: Model, velocity: Tree, momentum: float) -> tuple[Model, Tree]:
    """The hub's step towards the clients' mean: V <- m V + (W - A), W <- W - V; statistics follow the mean."""
    velocity = tree.map(lambda v, w, a: momentum * v + (w - a), velocity, dict(model.parameters), dict(mean.parameters))
    return mean.with_parameters(tree.subtract(dict(model.parameters), velocity)), velocity

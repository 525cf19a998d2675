"""The standard training step: gradient, clip, decay, correction, momentum, rate. Pure, for one
client, and liftable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import grad
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.models import Model
from fedglean.tree import Tree


class Optimiser(Protocol):
    """A door: a frozen dataclass with a field `rate`, whose two functions are pure, for one client.

    The rate that `update` gets is the step's; the field is only where a schedule begins.
    `correction` is added to the gradient once it is clipped and decayed.
    """

    @property
    def rate(self) -> float: ...

    def init(self, models: Tree) -> dict[str, Tree]:
        """What it remembers before the first step."""

    def update(
        self, weights: Tree, memory: Tree, gradient: Tree, rate: Tensor, correction: Tree = None
    ) -> tuple[Tree, Tree]:
        """New weights and memory."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as torch.optim.SGD defines it, with gradients clipped to a global
    norm first.
    """

    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    clip: float | None = None

    def init(self, models: Tree) -> dict[str, Tree]:
        return {"momentum": tree.zeros(parameters(models))} if self.momentum else {}

    def update(
        self, weights: Tree, memory: Tree, gradient: Tree, rate: Tensor, correction: Tree = None
    ) -> tuple[Tree, Tree]:
        if self.clip is not None:
            gradient = clipped(gradient, self.clip)
        if self.decay:
            gradient = tree.map(lambda g, w: torch.add(g, w, alpha=self.decay), gradient, weights)
        if correction is not None:
            gradient = tree.add(gradient, correction)
        if self.momentum:
            velocity = tree.map(
                lambda v, g: torch.add(g, v, alpha=self.momentum), memory["momentum"], gradient
            )
            memory = memory | {"momentum": velocity}
            if self.nesterov:
                gradient = tree.map(
                    lambda g, v: torch.add(g, v, alpha=self.momentum), gradient, velocity
                )
            else:
                gradient = velocity
        return _stepped(weights, gradient, rate), memory


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW has it.

    It takes SGD's hyper-parameters, so that it can stand in its place; momentum is its own.
    """

    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    clip: float | None = None
    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8

    def init(self, models: Tree) -> dict[str, Tree]:
        weights = parameters(models)
        like = pytree.tree_leaves(weights)[0]
        return {
            "mean": tree.zeros(weights),
            "square": tree.zeros(weights),
            "steps": like.new_zeros(()),
        }

    def update(
        self, weights: Tree, memory: Tree, gradient: Tree, rate: Tensor, correction: Tree = None
    ) -> tuple[Tree, Tree]:
        if self.clip is not None:
            gradient = clipped(gradient, self.clip)
        if correction is not None:
            gradient = tree.add(gradient, correction)
        steps = memory["steps"] + 1
        mean = tree.map(
            lambda m, g: self.first * m + (1 - self.first) * g, memory["mean"], gradient
        )
        square = tree.map(
            lambda v, g: self.second * v + (1 - self.second) * g * g, memory["square"], gradient
        )
        # Both begin at nothing, and are made up for that.
        mean_share, square_share = 1 - self.first**steps, 1 - self.second**steps
        direction = tree.map(
            lambda m, v: m / mean_share / (torch.sqrt(v / square_share) + self.epsilon),
            mean,
            square,
        )
        decayed = tree.map(lambda w: w - rate.to(w.dtype) * self.decay * w, weights)
        memory = memory | {"mean": mean, "square": square, "steps": steps}
        return _stepped(decayed, direction, rate), memory


def _stepped(weights: Tree, direction: Tree, rate: Tensor) -> Tree:
    return tree.map(
        lambda w, d: torch.addcmul(w, d, rate.to(w.dtype), value=-1), weights, direction
    )


@dataclass(frozen=True)
class OptimiserKind:
    """An optimiser under a name; it is made with SGD's rate, momentum, nesterov, decay and clip."""

    make: Callable[..., Optimiser]
    summary: str


OPTIMISERS: Mapping[str, OptimiserKind] = {
    "sgd": OptimiserKind(SGD, "stochastic gradient descent, with momentum as the method sets it"),
    "adamw": OptimiserKind(AdamW, "Adam with decoupled weight decay; its rates are small: 1e-3"),
}


def clipped(gradient: Tree, largest: float) -> Tree:
    """The gradient, shrunk to the largest norm where it is longer."""
    # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6, and so did the published results.
    shrink = (largest / (tree.norm(gradient) + 1e-6)).clamp(max=1.0)
    return tree.map(lambda g: g * shrink, gradient)


def parameters(models: Tree) -> Tree:
    """What is trained: the parameters of a model, a tensor itself, and both in a dictionary."""
    match models:
        case Model():
            return models.parameters
        case Tensor():
            return models
        case Mapping():
            return {name: parameters(part) for name, part in models.items()}
    raise TypeError(
        f"a loss trains a model, a tensor or a dictionary of them, not a {type(models).__name__}"
    )


def with_parameters(models: Tree, weights: Tree) -> Tree:
    """The same models with other weights; their statistics are copied, for a forward pass writes
    them.
    """
    match models:
        case Model():
            return models.for_training().with_parameters(weights)
        case Tensor():
            return weights
    return {name: with_parameters(part, weights[name]) for name, part in models.items()}


def without_rate(optimiser: Optimiser) -> Optimiser:
    """The optimiser whatever its rate: that comes with the batch, and makes no other step."""
    return replace(optimiser, rate=0.0)  # type: ignore[type-var]


def standard_step(loss: Callable[..., Any], optimiser: Optimiser) -> Callable[..., Any]:
    """The step that descends `loss(models, batch, frozen)`: a scalar, or a scalar and a dictionary
    of metrics.

    The rate is taken from the batch, so that a schedule does not make another step of it.
    """
    return partial(_step, loss, without_rate(optimiser))


def _step(
    loss: Callable[..., Any],
    optimiser: Optimiser,
    models: Tree,
    memory: Tree,
    batch: Any,
    frozen: Any,
) -> tuple[Tree, Tree, dict[str, Tensor]]:
    def objective(weights: Tree) -> tuple[Tensor, tuple[dict[str, Tensor], Tree]]:
        live = with_parameters(models, weights)
        result = loss(live, batch, frozen)
        value, metrics = result if isinstance(result, tuple) else (result, {})
        if not torch.compiler.is_compiling():
            _check(value, metrics)
        return value, ({"loss": value, **metrics}, live)

    gradient, (metrics, live) = grad(objective, has_aux=True)(parameters(models))
    weights, memory = optimiser.update(
        parameters(models), memory, gradient, batch.rate, frozen.get("correction")
    )
    return (
        _with_new_statistics(live, weights),
        memory,
        {name: value.detach() for name, value in metrics.items()},
    )


def _check(value: Any, metrics: Any) -> None:
    """Refuse what is no loss: torch would take a loss without a gradient for one whose gradient is
    nothing.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            "a loss returns a tensor, or one and a dictionary of metrics; this is a "
            f"{type(value).__name__}"
        )
    if value.dim():
        raise ValueError(
            f"a loss is one number, this one has the shape {tuple(value.shape)}; take its .mean()"
        )
    if not value.requires_grad:
        raise ValueError(
            "the loss has no gradient: argmax, comparisons, integers, detach() and item() cut it "
            "off"
        )
    for name, metric in metrics.items():
        if not isinstance(metric, Tensor):
            raise TypeError(
                f"the metric '{name}' of a loss must be a tensor, not a {type(metric).__name__}"
            )


def _with_new_statistics(live: Tree, weights: Tree) -> Tree:
    match live:
        case Model():
            return Model(live.architecture, weights, live.statistics)
        case Tensor():
            return weights
    return {name: _with_new_statistics(part, weights[name]) for name, part in live.items()}


def cosine(rate: float, progress: float) -> float:
    """Annealed from `rate` at progress 0 to nothing at 1."""
    return (
        rate * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * progress, dtype=torch.float64))))
    )

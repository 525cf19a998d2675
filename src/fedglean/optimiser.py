"""The standard training step: pure, for one client, and liftable."""

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
    """Stochastic gradient descent as in torch.optim.SGD, of gradients clipped to a global norm."""

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
            gradient = clip_to_norm(gradient, self.clip)
        if self.decay:
            gradient = _add(gradient, weights, times=self.decay)
        if correction is not None:
            gradient = tree.add(gradient, correction)
        if self.momentum:
            velocity = _add(gradient, memory["momentum"], times=self.momentum)
            memory = memory | {"momentum": velocity}
            gradient = _add(gradient, velocity, times=self.momentum) if self.nesterov else velocity
        return _descend(weights, gradient, rate), memory


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
        zeros = tree.zeros(parameters(models))
        steps = pytree.tree_leaves(zeros)[0].new_zeros(())
        return {"mean": zeros, "square": tree.zeros(zeros), "steps": steps}

    def update(
        self, weights: Tree, memory: Tree, gradient: Tree, rate: Tensor, correction: Tree = None
    ) -> tuple[Tree, Tree]:
        if self.clip is not None:
            gradient = clip_to_norm(gradient, self.clip)
        if correction is not None:
            gradient = tree.add(gradient, correction)
        steps = memory["steps"] + 1
        a, b, epsilon = self.first, self.second, self.epsilon
        mean = tree.map(lambda m, g: a * m + (1 - a) * g, memory["mean"], gradient)
        square = tree.map(lambda v, g: b * v + (1 - b) * g * g, memory["square"], gradient)
        # Both begin at nothing, and are made up for that.
        m_share, v_share = 1 - a**steps, 1 - b**steps
        direction = tree.map(
            lambda m, v: m / m_share / (torch.sqrt(v / v_share) + epsilon), mean, square
        )
        weights = tree.map(lambda w: w - rate.to(w.dtype) * self.decay * w, weights)
        memory = memory | {"mean": mean, "square": square, "steps": steps}
        return _descend(weights, direction, rate), memory


def _add(a: Tree, b: Tree, times: float) -> Tree:
    return tree.map(lambda x, y: torch.add(x, y, alpha=times), a, b)


def _descend(weights: Tree, direction: Tree, rate: Tensor) -> Tree:
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


def clip_to_norm(gradient: Tree, largest: float) -> Tree:
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
    """The same models with other weights, and a copy of their statistics, to be moved in place."""
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
    """The step that descends `loss(models, batch, frozen)`: a scalar, or a scalar and metrics.

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
    metrics = {name: value.detach() for name, value in metrics.items()}
    return with_parameters(live, weights), memory, metrics


def _check(value: Any, metrics: Any) -> None:
    """Refuse what is no loss: torch takes one without a gradient for one whose gradient is zero."""
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
            "the loss has no gradient: argmax, comparisons, integers, detach() or item() cut it off"
        )
    for name, metric in metrics.items():
        if not isinstance(metric, Tensor):
            raise TypeError(
                f"the metric '{name}' of a loss must be a tensor, not a {type(metric).__name__}"
            )


def cosine(rate: float, progress: float) -> float:
    """Annealed from `rate` at progress 0 to nothing at 1."""
    angle = torch.tensor(torch.pi * progress, dtype=torch.float64)
    return rate * 0.5 * (1 + float(torch.cos(angle)))

"""Lion (Chen et al. 2023): `fedglean run fedavg --use own_optimiser.py --optimiser lion`."""

from dataclasses import dataclass

import torch

from fedglean import tree
from fedglean.optimiser import clip_to_norm, parameters


@dataclass(frozen=True)
class Lion:
    """The sign of a mean of gradients: every weight moves by the rate. Use small rates: 1e-3."""

    # An optimiser is made with the first five; the method's `momentum` is not Lion's.
    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0
    clip: float | None = None
    fast: float = 0.9
    slow: float = 0.99

    def init(self, models):
        return {"mean": tree.zeros(parameters(models))}

    def update(self, weights, memory, gradient, rate, correction=None):
        if self.clip is not None:
            gradient = clip_to_norm(gradient, self.clip)
        if correction is not None:
            gradient = tree.add(gradient, correction)

        def moved(weight, mean, gradient):
            direction = torch.sign(self.fast * mean + (1 - self.fast) * gradient)
            return weight - rate.to(weight.dtype) * (direction + self.decay * weight)

        def remembered(mean, gradient):
            return self.slow * mean + (1 - self.slow) * gradient

        new = tree.map(moved, weights, memory["mean"], gradient)
        return new, {"mean": tree.map(remembered, memory["mean"], gradient)}


OPTIMISERS = {"lion": Lion}

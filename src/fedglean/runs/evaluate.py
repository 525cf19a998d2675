"""Tests of models and pseudo-labels. The only module that reads hidden labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedglean.data.federation import Truth
from fedglean.engine.batches import Setting
from fedglean.inputs.images import Predictions
from fedglean.inputs.views import Recipe, channels_last, view
from fedglean.method import Mixture
from fedglean.models import Model

Predictor = Model | Mixture

#: Pixels of an image from which on fewer are tested at a time.
LARGE = 64 * 64


def logits(predictor: Predictor, images: Tensor, setting: Setting) -> Tensor:
    """Raw outputs for uint8 images, in batches that fit a CPU's cache or fill a GPU."""
    batch = 8192 if images.is_cuda else 500
    pixels = math.prod(images.shape[2:])
    if pixels > LARGE:
        batch = max(1, batch * LARGE // pixels)
    parts = []
    with torch.no_grad():
        for part in torch.split(images, batch):
            unused = torch.zeros(len(part), dtype=torch.long, device=images.device)
            seen = view("plain", part, unused, setting.recipe, setting.dtype)
            parts.append(predictor.evaluate(channels_last(seen)))
    return torch.cat(parts)


def plain_logits(
    predictor: Predictor, images: Tensor, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """`logits` outside a run, where only the data's mean and deviation are known."""
    model = predictor.models[0] if isinstance(predictor, Mixture) else predictor
    weight = next(iter(model.parameters.values()))
    setting = Setting(Recipe(tuple(mean), tuple(std), flip=False, pad=0), weight.dtype)
    return logits(predictor, images.to(weight.device), setting)


@dataclass
class Tally:
    """SemiFL's three measures of pseudo-labels, summed over a round's clients."""

    seen: int = 0
    trusted: int = 0
    known: int = 0
    right: int = 0
    trusted_known: int = 0
    trusted_right: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def measures(self) -> dict[str, float]:
        shares = {
            "accuracy": (self.right, self.known),
            "confident_share": (self.trusted, self.seen),
            "confident_accuracy": (self.trusted_right, self.trusted_known),
        }
        return {name: part / whole for name, (part, whole) in shares.items() if whole}


@dataclass
class Evaluator:
    """Holds the test set and, in a simulation, the truth; tells no party of what it sees."""

    test_images: Tensor
    test_labels: Tensor
    truth: Truth | None
    setting: Setting
    tally: Tally = field(default_factory=Tally)

    def watch(self, guess: Predictions) -> None:
        """Count a client's pseudo-labels, and compare them with the truth where that is known."""
        assert self.truth is not None, "there is nothing to compare with"
        truth = self.truth.labels[guess.images.index]
        known = truth >= 0
        right = (guess.probabilities.argmax(-1) == truth) & known
        trusted = guess.trusted
        # One look at a GPU's numbers, not five.
        counts = torch.stack([trusted, known, right, trusted & known, trusted & right]).sum(1)
        self.tally += Tally(len(truth), *counts.tolist())

    def count(self, seen: int, trusted: int) -> None:
        """Count pseudo-labels of a branch, whose truth nobody knows."""
        self.tally += Tally(seen, trusted)

    def pseudo(self) -> dict[str, float]:
        """The measures since the last call."""
        measures, self.tally = self.tally.measures(), Tally()
        return measures

    def test(self, predictors: Mapping[str, Predictor]) -> dict[str, dict[str, Any]]:
        """Accuracy, loss and accuracy by class of each predictor on the whole test set."""
        results: dict[str, dict[str, Any]] = {"accuracy": {}, "loss": {}, "per_class": {}}
        seen: dict[int, Tensor] = {}  # by model: mixtures share theirs
        for name, predictor in predictors.items():
            output = self._output(predictor, seen).double()
            right = (output.argmax(-1) == self.test_labels).double()
            results["accuracy"][name] = float(right.mean())
            loss = float(F.cross_entropy(output, self.test_labels))
            results["loss"][name] = loss if math.isfinite(loss) else None  # JSON has no NaN
            results["per_class"][name] = _by_class(right, self.test_labels, output.shape[-1])
        return results

    def _output(self, predictor: Predictor, seen: dict[int, Tensor]) -> Tensor:
        if isinstance(predictor, Mixture):
            return predictor.mix([self._output(model, seen) for model in predictor.models])
        if id(predictor) not in seen:
            seen[id(predictor)] = logits(predictor, self.test_images, self.setting)
        return seen[id(predictor)]


def _by_class(right: Tensor, labels: Tensor, classes: int) -> list[float | None]:
    # A product with 0 and 1: torch.bincount with weights has no deterministic kernel on CUDA.
    member = (labels[:, None] == torch.arange(classes, device=labels.device)).double()
    pairs = zip((right @ member).tolist(), member.sum(0).tolist(), strict=True)
    return [hits / count if count else None for hits, count in pairs]

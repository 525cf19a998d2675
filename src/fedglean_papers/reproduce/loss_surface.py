"""Fed-SHVR's Fig. 5: the objective around the final model, over two random directions.

Q(x, y) = F(model + x first + y second, labels), eq. (23), where F is eq. (5a) and the pseudo-labels
are those of the final model. The paper says nothing of its directions; these are Gaussian, each row
of a weight matrix scaled to the norm of the model's row (Li et al. 2018), so that surfaces of
different models can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from torch import Tensor

from fedglean.inputs.images import Images
from fedglean.inputs.views import view
from fedglean.losses import one_hot
from fedglean.methods.fed_shvr import FedSHVR
from fedglean.models import Model
from fedglean.randomness import fold_int, normal
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import RunFolder
from fedglean.runs.run import Run
from fedglean.studies import StudyOptions
from fedglean_papers.reproduce.panels import full_title, keep, new_canvas
from fedglean_papers.reproduce.trainings import Training, choose, note, train

TITLE = "Fed-SHVR, Fig. 5: the loss around the solution, MNIST, Non-IID"
PRESETS = {"a2-0": "fed-shvr/mnist-noniid-a1-0.75-a2-0", "a2-0.1": "fed-shvr/mnist-noniid"}
STEPS, REACH = 21, 1.0
#: Unlabelled images of each client that are looked at: all sixty thousand take hours on a CPU.
SEEN = 200

Surface = NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """Eq. (5a) as one weighted sum over every client's labelled images and some unlabelled ones.

    `pulls` weighs the predictions' divergence from uniform, of unlabelled images alone.
    """

    images: Tensor
    targets: Tensor
    weights: Tensor
    pulls: Tensor
    constant: float

    def at(self, model: Model) -> float:
        parts = []
        with torch.no_grad():
            for images in torch.split(self.images, 500):
                parts.append(model.evaluate(images).log_softmax(-1))
        logs = torch.cat(parts).double()
        crossed = -(self.targets * logs).sum(-1)
        divergence = (logs.exp() * logs).sum(-1) + np.log(logs.shape[-1])
        return float((self.weights * crossed + self.pulls * divergence).sum()) + self.constant


def objective_of(experiment: Experiment, model: Model, seen: int = SEEN) -> Objective:
    """With the soft labels that the model gives to the first unlabelled images of each client."""
    method = experiment.method
    assert isinstance(method, FedSHVR)
    federation = experiment.federation
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    total, constant = sum(client.total for client in federation.declared), 0.0
    for labelled, unlabelled, declared in zip(
        federation.labelled, federation.unlabelled, federation.declared, strict=True
    ):
        share = declared.total / total
        if len(labelled):
            assert labelled.label is not None
            images = _pixels(experiment, labelled)
            known = one_hot(labelled.label, model.evaluate(images[:1])).double()
            even = torch.full((len(labelled),), share / len(labelled), dtype=torch.float64)
            parts.append((images, known, even, even * 0))
        if len(unlabelled):
            images = _pixels(experiment, unlabelled, seen)
            with torch.no_grad():
                guess = model.evaluate(images).softmax(-1)
            soft = method.soft_labels(guess, method.unlabelled_weight).double()
            even = torch.full((len(images),), share / len(images), dtype=torch.float64)
            weights = even * method.unlabelled_weight
            parts.append((images, soft, weights, even * method.output_weight))
            softness = (soft * (soft.clamp(min=1e-30) * soft.shape[-1]).log()).sum(-1).mean()
            constant += share * method.soft_weight * float(softness)
    images, targets, weights, pulls = (torch.cat(column) for column in zip(*parts, strict=True))
    return Objective(images, targets, weights, pulls, constant)


def _pixels(experiment: Experiment, images: Images, count: int | None = None) -> Tensor:
    setting, index = experiment.evaluator.setting, images.index[:count]
    return view("plain", images.store[index], index, setting.recipe, setting.dtype)


def direction(model: Model, name: str) -> dict[str, Tensor]:
    """Random, every row as long as the model's; biases stay where they are."""
    way = {}
    for key, weight in model.parameters.items():
        if weight.dim() < 2:
            way[key] = torch.zeros_like(weight)
            continue
        draw = normal(fold_int(0, "direction", name, key), tuple(weight.shape)).to(weight)
        way[key] = draw * _row_lengths(weight) / _row_lengths(draw)
    return way


def _row_lengths(weight: Tensor) -> Tensor:
    lengths: Tensor = weight.flatten(1).norm(dim=1)
    return lengths.clamp(min=1e-12).view(len(weight), *(1,) * (weight.dim() - 1))


def surface(
    objective: Objective, model: Model, steps: int = STEPS, reach: float = REACH
) -> Surface:
    """Q on a square grid, the model in the middle."""
    first, second = direction(model, "first"), direction(model, "second")
    places = np.linspace(-reach, reach, steps)
    values = np.zeros((steps, steps))
    for row, y in enumerate(places):
        for column, x in enumerate(places):
            weights = {}
            for name, weight in model.parameters.items():
                weights[name] = weight + (float(x) * first[name] + float(y) * second[name])
            moved = Model(model.architecture, weights, dict(model.statistics))
            values[row, column] = objective.at(moved)
    return values


def draw_surfaces(asked: StudyOptions) -> None:
    """Train with and without the output's regulariser, and look around both solutions."""
    title = full_title(TITLE, asked)
    steps = 7 if asked.scale < 0.05 else STEPS
    found: dict[str, Surface] = {}
    for cell in choose(asked.cell, tuple(PRESETS)):
        result = train(Training(PRESETS[cell]), asked)[0]
        note(f"{cell}: {steps * steps} points of the surface", asked)
        found[cell] = surface(*_solution(result), steps)
    facts = {cell: summary(values) for cell, values in found.items()}
    numbers: dict[str, Any] = {
        "places": np.linspace(-REACH, REACH, steps).tolist(),
        "unlabelled_images_a_client": SEEN,
        "surfaces": {},
    }
    for cell, values in found.items():
        numbers["surfaces"][cell] = {"surface": values.tolist(), **facts[cell]}
    claim = "with alpha_2 = 0.1 the surface is smoother than with 0"
    keep(asked, title, draw(found, title), numbers, (claim,))
    print(title)
    for cell, fact in facts.items():
        print(f"{cell}: " + ", ".join(f"{name} {number:.4g}" for name, number in fact.items()))
    print(f"the paper says: {claim}")


def _solution(result: Run) -> tuple[Objective, Model]:
    assert result.folder is not None
    place = RunFolder(result.folder)
    model = result.predictors["model"]
    assert isinstance(model, Model)
    return objective_of(prepare(place.config(), place.split()), model), model


def summary(values: Surface) -> dict[str, float]:
    """The middle, how far the rim lies above it, and the mean curvature by second differences."""
    middle = len(values) // 2
    rim = np.concatenate([values[0], values[-1], values[1:-1, 0], values[1:-1, -1]])
    second = [np.abs(np.diff(values, 2, axis)).mean() * (middle / REACH) ** 2 for axis in (0, 1)]
    centre = float(values[middle, middle])
    return {
        "centre": centre,
        "rim above centre": float(rim.mean() - centre),
        "mean curvature": float(np.mean(second)),
    }


def draw(found: Mapping[str, Surface], title: str) -> Canvas:
    canvas = new_canvas(5.2 * len(found), 4.6, title)
    top = max(values.max() for values in found.values())
    for number, (cell, values) in enumerate(found.items()):
        axes: Any = canvas.add_subplot(1, len(found), number + 1, projection="3d")
        places = np.linspace(-REACH, REACH, len(values))
        x, y = np.meshgrid(places, places)
        axes.plot_surface(x, y, values, cmap="viridis", linewidth=0, antialiased=True)
        axes.set(zlim=(0, top), zlabel="objective", title=cell.replace("a2-", "alpha_2 = "))
        axes.set(xlabel="first direction", ylabel="second direction")
        axes.set(xticks=(-REACH, 0, REACH), yticks=(-REACH, 0, REACH))
    return canvas

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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from torch import Tensor

from fedglean.inputs.views import view
from fedglean.losses import one_hot
from fedglean.methods.fed_shvr import FedSHVR
from fedglean.models import Model
from fedglean.randomness import fold_int, normal
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import RunFolder
from fedglean.runs.run import Run
from fedglean.sealed import make_folder
from fedglean.studies import StudyOptions
from fedglean_papers.reproduce.panels import keep, shown_title
from fedglean_papers.reproduce.trainings import Training, note, one_of, trained

PRESETS = {"a2-0": "fed-shvr/mnist-noniid-a1-0.75-a2-0", "a2-0.1": "fed-shvr/mnist-noniid"}
STEPS, REACH = 21, 1.0
#: Unlabelled images of each client that are looked at: all sixty thousand take hours on a CPU.
SEEN = 200


@dataclass(frozen=True)
class Objective:
    """Eq. (5a) as one weighted sum over images: every client's labelled ones, and some of its
    unlabelled ones.
    """

    images: Tensor
    targets: Tensor
    weights: Tensor
    pulls: Tensor
    constant: float

    def at(self, model: Model) -> float:
        """F. `pulls` weighs the predictions' divergence from uniform, of unlabelled images
        alone.
        """
        with torch.no_grad():
            logs = torch.cat(
                [model.evaluate(part).log_softmax(-1) for part in torch.split(self.images, 500)]
            ).double()
        crossed = -(self.targets * logs).sum(-1)
        divergence = (logs.exp() * logs).sum(-1) + np.log(logs.shape[-1])
        return float((self.weights * crossed + self.pulls * divergence).sum()) + self.constant


def objective_of(experiment: Experiment, model: Model, seen: int = SEEN) -> Objective:
    """With the soft labels that the model gives to the first unlabelled images of each client."""
    method = experiment.method
    assert isinstance(method, FedSHVR)
    federation, setting = experiment.federation, experiment.evaluator.setting
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    total, constant = sum(client.total for client in federation.declared), 0.0
    for labelled, unlabelled, declared in zip(
        federation.labelled, federation.unlabelled, federation.declared, strict=True
    ):
        share = declared.total / total
        if len(labelled):
            images = view(
                "plain",
                labelled.store[labelled.index],
                labelled.index,
                setting.recipe,
                setting.dtype,
            )
            even = torch.full((len(labelled),), share / len(labelled), dtype=torch.float64)
            assert labelled.label is not None
            parts.append(
                (
                    images,
                    one_hot(labelled.label, model.evaluate(images[:1])).double(),
                    even,
                    even * 0,
                )
            )
        if len(unlabelled):
            index = unlabelled.index[:seen]
            images = view("plain", unlabelled.store[index], index, setting.recipe, setting.dtype)
            with torch.no_grad():
                soft = method.soft_labels(
                    model.evaluate(images).softmax(-1), method.unlabelled_weight
                ).double()
            even = torch.full((len(index),), share / len(index), dtype=torch.float64)
            parts.append(
                (images, soft, even * method.unlabelled_weight, even * method.output_weight)
            )
            softness = (soft * (soft.clamp(min=1e-30) * soft.shape[-1]).log()).sum(-1).mean()
            constant += share * method.soft_weight * float(softness)
    images, targets, weights, pulls = (torch.cat(column) for column in zip(*parts, strict=True))
    return Objective(images, targets, weights, pulls, constant)


def direction(model: Model, name: str) -> dict[str, Tensor]:
    """Random, every row as long as the model's; biases stay where they are."""
    moved = {}
    for key, weight in model.parameters.items():
        if weight.dim() < 2:
            moved[key] = torch.zeros_like(weight)
            continue
        draw = normal(fold_int(0, "direction", name, key), tuple(weight.shape)).to(weight)
        rows = (len(weight), *(1,) * (weight.dim() - 1))
        lengths = [
            part.flatten(1).norm(dim=1).clamp(min=1e-12).view(rows) for part in (weight, draw)
        ]
        moved[key] = draw * lengths[0] / lengths[1]
    return moved


def surface(
    objective: Objective, model: Model, steps: int = STEPS, reach: float = REACH
) -> NDArray[np.float64]:
    """Q on a square grid, the model in the middle."""
    first, second = direction(model, "first"), direction(model, "second")
    places = np.linspace(-reach, reach, steps)
    return np.array(
        [[objective.at(_moved(model, (x, first), (y, second))) for x in places] for y in places]
    )


def _moved(model: Model, *ways: tuple[float, dict[str, Tensor]]) -> Model:
    """The model elsewhere; its statistics stay what they are."""
    own = model.parameters.items()
    weights = {
        name: weight + sum(float(far) * way[name] for far, way in ways) for name, weight in own
    }
    return Model(model.architecture, weights, dict(model.statistics))


def surfaces(asked: StudyOptions) -> None:
    """The study: train with and without the output's regulariser, and look around both
    solutions.
    """
    title = shown_title("Fed-SHVR, Fig. 5: the loss around the solution, MNIST, Non-IID", asked)
    steps = 7 if asked.scale < 0.05 else STEPS
    found: dict[str, NDArray[np.float64]] = {}
    for cell in one_of(asked.cell, tuple(PRESETS)):
        result = trained(Training(PRESETS[cell]), asked)[0]
        note(f"{cell}: {steps * steps} points of the surface", asked)
        found[cell] = surface(*_solution(result), steps)
    make_folder(asked.out)
    drawing(found, title).savefig(asked.file("figure.png"), dpi=130)
    claims = ("with alpha_2 = 0.1 the surface is smoother than with 0",)
    numbers = {
        cell: {"surface": values.tolist(), **summary(values)} for cell, values in found.items()
    }
    about = {
        "places": np.linspace(-REACH, REACH, steps).tolist(),
        "unlabelled_images_a_client": SEEN,
    }
    keep(asked, title, claims, {**about, "surfaces": numbers})
    print(title)
    for cell, values in found.items():
        print(
            f"{cell}: "
            + ", ".join(f"{name} {number:.4g}" for name, number in summary(values).items())
        )
    print(f"the paper says: {claims[0]}")


def _solution(result: Run) -> tuple[Objective, Model]:
    assert result.folder is not None
    place = RunFolder(result.folder)
    experiment = prepare(place.config(), place.split())
    model = result.predictors["model"]
    assert isinstance(model, Model)
    return objective_of(experiment, model), model


def summary(values: NDArray[np.float64]) -> dict[str, float]:
    """Height of the middle, how far the rim lies above it, and the mean curvature: the grid's
    second differences.
    """
    middle = len(values) // 2
    rim = np.concatenate([values[0], values[-1], values[1:-1, 0], values[1:-1, -1]])
    second = [np.abs(np.diff(values, 2, axis)).mean() * (middle / REACH) ** 2 for axis in (0, 1)]
    centre = float(values[middle, middle])
    return {
        "centre": centre,
        "rim above centre": float(rim.mean() - centre),
        "mean curvature": float(np.mean(second)),
    }


def drawing(found: Mapping[str, NDArray[np.float64]], title: str) -> Canvas:
    canvas = Canvas(figsize=(5.2 * len(found), 4.6), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(title, x=0.01, ha="left", fontsize=11)
    top = max(values.max() for values in found.values())
    for number, (cell, values) in enumerate(found.items()):
        axes: Any = canvas.add_subplot(1, len(found), number + 1, projection="3d")
        x, y = np.meshgrid(*[np.linspace(-REACH, REACH, len(values))] * 2)
        axes.plot_surface(x, y, values, cmap="viridis", linewidth=0, antialiased=True)
        axes.set(
            zlim=(0, top), xlabel="first direction", ylabel="second direction", zlabel="objective"
        )
        axes.set(xticks=(-REACH, 0, REACH), yticks=(-REACH, 0, REACH))
        axes.set_title(cell.replace("a2-", "alpha_2 = "), fontsize=10)
    return canvas

"""Figures 2 and 5-10 of SemiFL."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedglean.inputs.image_ops import OPERATIONS
from fedglean.report.plots import accuracy_of
from fedglean.runs.experiment import dataset_of
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.panels import (
    Curves,
    Figure,
    Number,
    PanelPlan,
    Point,
    Trace,
    full_title,
    keep,
    new_canvas,
    pseudo,
)
from fedglean_papers.reproduce.trainings import Training, choose, config_of, note

SPREADS = {"iid": "IID", "dir0.3": "Dir(0.3)", "dir0.1": "Dir(0.1)", "k2": "K = 2"}
WORDS = {"iid": "IID", "k2": "Non-IID, K = 2"}

#: Fig. 5, read by eye from the authors' picture, to a point.
ROUNDS = (1, 50, 100, 200, 400, 600, 800)
FIGURE5 = {
    "cifar10-250-iid": (25, 49, 60, 71, 79, 85, 88),
    "cifar10-250-dir0.3": (25, 44, 51, 60, 67.5, 70.5, 72),
    "cifar10-250-dir0.1": (25, 44, 51, 57, 60.5, 62, 60),
    "cifar10-250-k2": (25, 44, 47, 53, 58.5, 59, 60),
    "cifar10-4000-iid": (40, 81, 84, 86, 88, 91.2, 93.1),
    "cifar10-4000-dir0.3": (40, 78, 82, 83.5, 84.7, 87.5, 88.8),
    "cifar10-4000-dir0.1": (40, 79, 81, 82, 82.5, 83.7, 84.3),
    "cifar10-4000-k2": (40, 76, 80, 81, 82.3, 84, 85.3),
}


def _trace(preset: str) -> Trace:
    training = Training(f"semifl/{preset}")
    printed: dict[Number, float] = dict(zip(ROUNDS, FIGURE5.get(preset, ()), strict=False))
    printed.update(training.published)
    return Trace(training, accuracy_of(), printed)


def _partitions(data: str, labels: tuple[int, ...]) -> dict[str, PanelPlan]:
    """One panel for each number of labels, one curve for each partition, and the labels alone."""
    panels: dict[str, PanelPlan] = {}
    for count in labels:
        traces = {word: _trace(f"{data}-{count}-{spread}") for spread, word in SPREADS.items()}
        alone = {"only the labels": Point(Training(f"semifl/partially-{data}-{count}"))}
        panels[str(count)] = Curves(f"{data}, {count} labels", traces, alone)
    return panels


def _rows(rows: Mapping[str, str], levels: Mapping[str, Point]) -> dict[str, PanelPlan]:
    """One panel for each partition, one curve for each row."""
    panels: dict[str, PanelPlan] = {}
    for spread, word in WORDS.items():
        traces = {label: _trace(f"{row}-{spread}") for label, row in rows.items()}
        panels[spread] = Curves(word, traces, levels)
    return panels


_SUPERVISED = {
    "fully supervised": Point(Training("semifl/table2-fully")),
    "partially supervised": Point(Training("semifl/table2-partially")),
}
_VANILLA = {"FedSGD + FixMatch": "fedsgd-fixmatch", "FedAvg + FixMatch": "table2-parallel-batch"}
_COMBINATIONS = {
    "fine-tune, global": "table2-fine-tune-global",
    "average, global": "table2-parallel-global",
    "fine-tune, training": "table2-fine-tune-batch",
    "average, training": "table2-parallel-batch",
}
_TECHNIQUES = {
    "all": "table5-full",
    "no global momentum": "table5-no-momentum",
    "no Mixup": "table5-no-mixup",
    "1 epoch": "table5-1-epoch",
}
#: Labels that are given batch by batch are measured once a visit, with the model that the visit
#: starts from.
_MEASURES = {
    "accuracy": "accuracy of pseudo-labels in %",
    "confident_accuracy": "accuracy of confident ones in %",
    "confident_share": "share of confident ones in %",
}


def _qualities() -> dict[str, PanelPlan]:
    """One panel for each partition and measure of pseudo-labels."""
    panels: dict[str, PanelPlan] = {}
    for spread, word in WORDS.items():
        trainings = {
            label: Training(f"semifl/{row}-{spread}") for label, row in _COMBINATIONS.items()
        }
        for measure, about in _MEASURES.items():
            read = pseudo(measure)
            traces = {label: Trace(training, read) for label, training in trainings.items()}
            panels[f"{spread}-{measure}"] = Curves(word, traces, y_label=about)
    return panels


DECLARED: dict[str, Figure] = {
    "semifl-fig2": Figure(
        "SemiFL, Fig. 2: FixMatch under FedSGD and FedAvg, CIFAR-10, 4000 labels at the hub",
        _rows(_VANILLA, _SUPERVISED),
        (
            "FedSGD + FixMatch rises above partially supervised training; FedAvg + FixMatch starts "
            "near 40 and falls",
        ),
    ),
    "semifl-fig5": Figure(
        "SemiFL, Fig. 5: CIFAR-10",
        _partitions("cifar10", (250, 4000)),
        (
            "all curves rise fastest in the first 100 rounds; IID goes on rising while the rate "
            "anneals",
        ),
    ),
    "semifl-fig6": Figure(
        "SemiFL, Fig. 6: quality of pseudo-labels, CIFAR-10, 4000 labels at the hub",
        _qualities(),
        ("fine-tune with global labels is best in all three measures; averaging collapses",),
    ),
    "semifl-fig7": Figure("SemiFL, Fig. 7: SVHN", _partitions("svhn", (250, 1000))),
    "semifl-fig8": Figure("SemiFL, Fig. 8: CIFAR-100", _partitions("cifar100", (2500, 10000))),
    "semifl-fig9": Figure(
        "SemiFL, Fig. 9: training techniques, CIFAR-10, 4000 labels at the hub",
        _rows(_TECHNIQUES, {}),
        ("one epoch is worst, Mixup is worth about 2 points, global momentum hardly any",),
    ),
}

_FIGURE10 = "SemiFL, Fig. 10: strong augmentations by magnitude"
LEVELS = (0, 1, 3, 5, 7, 9)


def _draw_augmentations(asked: StudyOptions) -> None:
    """Fig. 10 has pictures alone: one image sheared, and one with its contrast stretched."""
    choose(asked.cell, ("images",))
    config = config_of(Training("semifl/table5-full-iid"), asked)
    image = dataset_of(config).train_images[:1]
    stretched = OPERATIONS["autocontrast"](image, torch.zeros(1, 8, dtype=torch.float64))
    rows = {
        "ShearX": {f"ShearX {level}": shear(image, level) for level in LEVELS},
        "AutoContrast": {"original": image, "AutoContrast": stretched},
    }
    note(f"examples from {config.data.name}", asked)
    title = full_title(_FIGURE10, asked)
    canvas = new_canvas(1.5 * len(LEVELS), 3.8, title)
    change: dict[str, list[float]] = {}
    for place, (name, pictures) in enumerate(rows.items()):
        change[name] = []
        for number, (label, picture) in enumerate(pictures.items(), start=1):
            axes = canvas.add_subplot(len(rows), len(LEVELS), place * len(LEVELS) + number)
            axes.set_axis_off()
            axes.set_title("original" if number == 1 else label, size=8)
            pixels = np.asarray(picture[0].permute(1, 2, 0))  # height x width x channels
            axes.imshow(pixels.repeat(3, 2) if pixels.shape[2] == 1 else pixels)
            change[name].append(float((image.double() - picture.double()).abs().mean()))
    keep(asked, title, canvas, {"levels": list(LEVELS), "mean_change_of_a_pixel": change})
    by_level = ", ".join(f"{x:.1f}" for x in change["ShearX"])
    print(f"{title}\nmean change of a pixel by level of shear: {by_level}")


def shear(image: Tensor, level: int) -> Tensor:
    """RandAugment's ShearX: 0.03 a level of ten."""
    strength = torch.tensor([[1, 0.03 * level, 0, 0, 1, 0, 0, 0]], dtype=torch.float64)
    return OPERATIONS["nearest"](image, strength)


FIGURES: dict[str, Study] = {name: figure.study() for name, figure in DECLARED.items()}
FIGURES["semifl-fig10"] = Study(_FIGURE10, ("images",), _draw_augmentations, ("--set",))

"""Figures 2 and 5-10 of SemiFL."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from fedglean.inputs import image_ops
from fedglean.report.plots import accuracy_of
from fedglean.runs.experiment import dataset_of
from fedglean.sealed import make_folder
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.panels import (
    Curves,
    Figure,
    Number,
    Point,
    Trace,
    keep,
    pseudo,
    shown_title,
)
from fedglean_papers.reproduce.trainings import Training, config_of, note, one_of

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


def _partitions(data: str, labels: tuple[int, ...]) -> Mapping[str, Any]:
    """One panel for each number of labels, one curve for each partition, and the labels alone."""
    return {
        str(count): Curves(
            f"{data}, {count} labels",
            {word: _trace(f"{data}-{count}-{spread}") for spread, word in SPREADS.items()},
            {"only the labels": Point(Training(f"semifl/partially-{data}-{count}"))},
        )
        for count in labels
    }


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
#: Labels that are given batch by batch are measured once a visit, with the model that the visit
#: starts from.
_MEASURES = {
    "accuracy": "accuracy of pseudo-labels in %",
    "confident_accuracy": "accuracy of confident ones in %",
    "confident_share": "share of confident ones in %",
}
_TECHNIQUES = {
    "all": "table5-full",
    "no global momentum": "table5-no-momentum",
    "no Mixup": "table5-no-mixup",
    "1 epoch": "table5-1-epoch",
}
DECLARED: dict[str, Figure] = {
    "semifl-fig2": Figure(
        "SemiFL, Fig. 2: FixMatch under FedSGD and FedAvg, CIFAR-10, 4000 labels at the hub",
        {
            spread: Curves(
                word,
                {label: _trace(f"{row}-{spread}") for label, row in _VANILLA.items()},
                _SUPERVISED,
            )
            for spread, word in WORDS.items()
        },
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
        {
            f"{spread}-{measure}": Curves(
                word,
                {
                    label: Trace(Training(f"semifl/{row}-{spread}"), pseudo(measure))
                    for label, row in _COMBINATIONS.items()
                },
                y_label=about,
            )
            for spread, word in WORDS.items()
            for measure, about in _MEASURES.items()
        },
        ("fine-tune with global labels is best in all three measures; averaging collapses",),
    ),
    "semifl-fig7": Figure("SemiFL, Fig. 7: SVHN", _partitions("svhn", (250, 1000))),
    "semifl-fig8": Figure("SemiFL, Fig. 8: CIFAR-100", _partitions("cifar100", (2500, 10000))),
    "semifl-fig9": Figure(
        "SemiFL, Fig. 9: training techniques, CIFAR-10, 4000 labels at the hub",
        {
            spread: Curves(
                word, {label: _trace(f"{row}-{spread}") for label, row in _TECHNIQUES.items()}
            )
            for spread, word in WORDS.items()
        },
        ("one epoch is worst, Mixup is worth about 2 points, global momentum hardly any",),
    ),
}

LEVELS = (0, 1, 3, 5, 7, 9)


def _augmentations(asked: StudyOptions) -> None:
    """Fig. 10 has pictures alone: one image sheared by growing amounts, and one with its contrast
    stretched.
    """
    one_of(asked.cell, ("images",))
    config = config_of(Training("semifl/table5-full-iid"), asked)
    dataset = dataset_of(config)
    image = dataset.train_images[:1]
    rows = {
        "ShearX": [sheared(image, level) for level in LEVELS],
        "AutoContrast": [image, _contrast(image)],
    }
    note(f"examples from {config.data.name}", asked)
    title = shown_title("SemiFL, Fig. 10: strong augmentations by magnitude", asked)
    make_folder(asked.out)
    _pictured(rows, title).savefig(asked.file("figure.png"), dpi=130)
    change = {name: [_change(image, each) for each in row] for name, row in rows.items()}
    keep(asked, title, (), {"levels": list(LEVELS), "mean_change_of_a_pixel": change})
    print(
        f"{title}\nmean change of a pixel by level of shear: "
        + ", ".join(f"{x:.1f}" for x in change["ShearX"])
    )


def sheared(image: torch.Tensor, level: int) -> torch.Tensor:
    """RandAugment's ShearX: 0.03 a level of ten."""
    strength = torch.tensor([[1, 0.03 * level, 0, 0, 1, 0, 0, 0]], dtype=torch.float64)
    return image_ops.OPERATIONS["nearest"](image, strength)


def _contrast(image: torch.Tensor) -> torch.Tensor:
    return image_ops.OPERATIONS["autocontrast"](image, torch.zeros(1, 8, dtype=torch.float64))


def _change(image: torch.Tensor, other: torch.Tensor) -> float:
    return float((image.double() - other.double()).abs().mean())


def _pictured(rows: Mapping[str, list[torch.Tensor]], title: str) -> Canvas:
    canvas = Canvas(figsize=(1.5 * len(LEVELS), 3.8), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(title, x=0.01, ha="left", fontsize=10)
    places = canvas.subplots(len(rows), len(LEVELS), squeeze=False)
    for line in places:
        for axes in line:
            axes.set_axis_off()
    for line, (name, images) in zip(places, rows.items(), strict=True):
        for place, (axes, image) in enumerate(zip(line, images, strict=False)):
            pixels = np.asarray(image[0].permute(1, 2, 0))
            axes.imshow(pixels.repeat(3, 2) if pixels.shape[2] == 1 else pixels)
            axes.set_title(
                "original" if not place else f"{name} {LEVELS[place]}" if len(images) > 2 else name,
                size=8,
            )
    return canvas


FIGURES: dict[str, Study] = {name: figure.study() for name, figure in DECLARED.items()}
FIGURES["semifl-fig10"] = Study(
    "SemiFL, Fig. 10: strong augmentations by magnitude", ("images",), _augmentations, ("--set",)
)

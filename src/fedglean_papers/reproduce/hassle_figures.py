"""Figures 2 and 4-11 of HASSLE. The points of Figs. 2, 4, 10 and 11 are ours: the paper's went with
its pictures.

Figs. 10 and 11 are lambda and gamma by their captions; the paper's text has them the other way
round.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.image import imread
from torch import Tensor

from fedglean.report.bubbles import bubble_chart
from fedglean.report.plots import accuracy_of
from fedglean.runs.experiment import dataset_of, divide_up
from fedglean.sealed import make_folder
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.panels import (
    Curves,
    Figure,
    Number,
    Point,
    Points,
    Trace,
    keep,
    report,
    shown_title,
)
from fedglean_papers.reproduce.trainings import Training, config_of, first_clients, one_of, thinned

LAYOUTS = ("PL", "LPL", "UPL", "LU", "ALL")
ALPHAS = {"0.01": "-alpha0.01", "0.1": "", "1": "-alpha1"}
UNLABELLED_CLIENTS = (0, 5, 10, 15)
RATIOS = (0.5, 1, 2, 4, 8)
LAMBDAS = ("0.1", "0.5", "1", "2", "5")
GAMMAS = ("0.0001", "0.001", "0.01", "0.1")
OTHERS = {
    "FedAvg": "fedavg-",
    "FedAvg + FixMatch": "fedavg-fixmatch-",
    "FedMatch": "fedmatch-",
    "RSCFed": "rscfed-",
}
SIDES = ("SM", "UM", "EM")

# A tenth of all images is labelled, at five of twenty equal clients.
_FIVE_PARTLY = {"split.labels": "fraction:" + ",".join(["0.4"] * 5 + ["0"] * 15)}

Row = Mapping[Number, Point]


def _methods(
    presets: Mapping[Number, str], others: Sequence[str] = tuple(OTHERS)
) -> dict[str, Row]:
    """A line for each method; the presets' names go on after the method's."""
    rows: dict[str, Row] = {
        label: {x: Point(Training(f"hassle/{OTHERS[label]}{rest}")) for x, rest in presets.items()}
        for label in others
    }
    return rows | {
        "HASSLE-EM": {x: Point(Training(f"hassle/{rest}"), "EM") for x, rest in presets.items()}
    }


def _sides(trainings: Mapping[Number, Training], names: Sequence[str] = SIDES) -> dict[str, Row]:
    return {f"HASSLE-{side}": {x: Point(t, side) for x, t in trainings.items()} for side in names}


def _joined(method: str, side: str | None = None) -> Row:
    """Five partially labelled clients, and the first of fifteen unlabelled ones."""
    return {
        count: Point(
            Training(f"hassle/{method}cifar10-10", _FIVE_PARTLY, first_clients(5 + count)), side
        )
        for count in UNLABELLED_CLIENTS
    }


def _ratio(ratio: float) -> Training:
    """Nine times as many images are unlabelled as labelled: the clients keep what the ratio asks
    for.
    """
    return Training("hassle/cifar10-10", part=thinned(ratio / 9))


def _with_and_without(names: Sequence[str]) -> dict[str, Trace]:
    return {
        f"{name} {word} SUMA": Trace(
            Training(f"hassle/table2-{row}"), accuracy_of(name), _printed(row, name)
        )
        for row, word in (("both", "with"), ("none", "without"))
        for name in names
    }


def _printed(row: str, name: str) -> dict[Number, float]:
    return {"best": Training(f"hassle/table2-{row}").published[name]}


_FIGURE4: dict[str, Row] = {
    **_sides({ratio: _ratio(ratio) for ratio in RATIOS}, ("SM", "UM")),
    "FedAvg on the labels": {
        ratio: Point(Training("hassle/fedavg-cifar10-10")) for ratio in RATIOS
    },
}
_LOSSES = {
    "SM": Trace(Training("hassle/cifar10-10"), report("supervised_loss")),
    "UM": Trace(Training("hassle/cifar10-10"), report("unsupervised_loss")),
}
DECLARED: dict[str, Figure] = {
    "hassle-fig2": Figure(
        "HASSLE, Fig. 2: 5 partially labelled clients and more and more unlabelled ones (our "
        "points), CIFAR-10",
        {
            "clients": Points(
                "10 % of 20 clients' images labelled",
                "unlabelled clients that take part",
                {
                    "FedAvg + FixMatch": _joined("fedavg-fixmatch-"),
                    "FedMatch": _joined("fedmatch-"),
                    "HASSLE-EM": _joined("", "EM"),
                },
            )
        },
        ("FedAvg + FixMatch and FedMatch stay flat, HASSLE rises",),
    ),
    "hassle-fig4": Figure(
        "HASSLE, Fig. 4: unlabelled images for each labelled one (our points), CIFAR-10",
        {
            "ratio": Points(
                "layout ALL, 10 % labelled", "unlabelled : labelled images", _FIGURE4, log_x=True
            )
        },
        ("UM is below SM up to a ratio of 1 and above it from 2 on; SM rises above FedAvg",),
    ),
    "hassle-fig5": Figure(
        "HASSLE, Fig. 5: both models with and without mutual alignment, CIFAR-10, 10 % labelled",
        {"curves": Curves("alpha = 0.1", _with_and_without(("SM", "UM")))},
        (
            "UM starts below SM; in the last round they are 0.94 points apart with SUMA and 2.29 "
            "without",
        ),
    ),
    "hassle-fig6": Figure(
        "HASSLE, Fig. 6: five layouts of annotation, CIFAR-10, 10 % labelled",
        {
            "layouts": Points(
                "alpha = 0.1",
                "layout",
                _methods({layout: f"layout-{layout}" for layout in LAYOUTS}),
            )
        },
        ("HASSLE is best in all five",),
    ),
    "hassle-fig8": Figure(
        "HASSLE, Fig. 8: degrees of heterogeneity, CIFAR-10, 10 % labelled",
        {
            "alpha": Points(
                "layout ALL",
                "alpha",
                _methods({alpha: f"cifar10-10{rest}" for alpha, rest in ALPHAS.items()}),
            )
        },
        ("all lose as alpha falls; from 1 to 0.1 HASSLE loses less than the others",),
    ),
    "hassle-fig9": Figure(
        "HASSLE, Fig. 9: training loss of both models, CIFAR-10, 10 % labelled",
        {"losses": Curves("alpha = 0.1", _LOSSES, y_label="mean loss of the round's clients")},
        ("SM's loss starts below UM's; both settle near 0.9",),
    ),
    "hassle-fig10": Figure(
        "HASSLE, Fig. 10: weight lambda of the residual (our points), CIFAR-10, 10 % labelled",
        {
            "lambda": Points(
                "gamma = 0.001",
                "lambda",
                _sides({x: Training(f"hassle/lambda-{x}") for x in LAMBDAS}),
            )
        },
        ("lambda = 1 is best",),
    ),
    "hassle-fig11": Figure(
        "HASSLE, Fig. 11: weight gamma of proximity (our points), CIFAR-10, 10 % labelled",
        {
            "gamma": Points(
                "lambda = 1", "gamma", _sides({x: Training(f"hassle/gamma-{x}") for x in GAMMAS})
            )
        },
        ("flat, but for a drop at 0.1",),
    ),
}


def _splits(asked: StudyOptions) -> None:
    """Fig. 7 shows who holds what; nothing is trained."""
    title = shown_title(
        "HASSLE, Fig. 7: who holds what at three degrees of heterogeneity, CIFAR-10", asked
    )
    make_folder(asked.out)
    counts, pictures = {}, {}
    for alpha in one_of(asked.cell, tuple(ALPHAS)):
        config = config_of(Training(f"hassle/cifar10-10{ALPHAS[alpha]}"), asked)
        dataset = dataset_of(config)
        split, classes = divide_up(config, dataset), len(dataset.classes)
        pictures[alpha] = asked.out / f"alpha-{alpha}.png"
        bubble_chart(split, dataset.train_labels, dataset.classes, pictures[alpha])
        held = {"labelled": split.labelled, "unlabelled": split.unlabelled}
        counts[alpha] = {
            name: _by_class(parts, dataset.train_labels, classes) for name, parts in held.items()
        }
    _together(pictures, title).savefig(asked.file("figure.png"), dpi=130)
    keep(asked, title, (), {"images_by_client_and_class": counts})
    spread = {alpha: _classes_a_client(held) for alpha, held in counts.items()}
    print(
        f"{title}\nclasses per client, on average: "
        + ", ".join(f"alpha {a}: {n:.1f}" for a, n in spread.items())
    )


def _by_class(parts: Sequence[Tensor], labels: Tensor, classes: int) -> list[list[int]]:
    return [torch.bincount(labels[part], minlength=classes).tolist() for part in parts]


def _classes_a_client(held: Mapping[str, list[list[int]]]) -> float:
    total = torch.tensor(held["labelled"]) + torch.tensor(held["unlabelled"])
    return float((total > 0).sum(1).double().mean())


def _together(pictures: Mapping[str, Path], title: str) -> Canvas:
    canvas = Canvas(figsize=(9, 4.4 * len(pictures)), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(title, x=0.01, ha="left", fontsize=11)
    for axes, (alpha, path) in zip(
        canvas.subplots(len(pictures), squeeze=False)[:, 0], pictures.items(), strict=True
    ):
        axes.imshow(imread(path))
        axes.set_axis_off()
        axes.set_title(f"alpha = {alpha}", loc="left", fontsize=10)
    return canvas


FIGURES: dict[str, Study] = {name: figure.study() for name, figure in DECLARED.items()}
FIGURES["hassle-fig7"] = Study(
    "HASSLE, Fig. 7: who holds what at three degrees of heterogeneity, CIFAR-10",
    tuple(ALPHAS),
    _splits,
    ("--set",),
)

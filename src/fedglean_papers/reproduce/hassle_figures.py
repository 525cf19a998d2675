"""Figures 2 and 4-11 of HASSLE. The points of Figs. 2, 4, 10 and 11 are ours.

Figs. 10 and 11 are lambda and gamma by their captions; the paper's text has them the other way
round.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.image import imread

from fedglean.report.bubbles import bubble_chart, holdings
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
    Row,
    Trace,
    full_title,
    keep,
    new_canvas,
    report,
    row_of,
)
from fedglean_papers.reproduce.trainings import (
    Training,
    choose,
    config_of,
    first_clients,
    part_of_unlabelled,
)

LAYOUTS = ("PL", "LPL", "UPL", "LU", "ALL")
ALPHAS = {"0.01": "-alpha0.01", "0.1": "", "1": "-alpha1"}
UNLABELLED_CLIENTS = (0, 5, 10, 15)
RATIOS = (0.5, 1, 2, 4, 8)
LAMBDAS = ("0.1", "0.5", "1", "2", "5")
GAMMAS = ("0.0001", "0.001", "0.01", "0.1")
METHODS = {
    "FedAvg": "fedavg-",
    "FedAvg + FixMatch": "fedavg-fixmatch-",
    "FedMatch": "fedmatch-",
    "RSCFed": "rscfed-",
    "HASSLE-EM": "",
}

# A tenth of all images is labelled, at five of twenty equal clients.
_FIVE_PARTLY = {"split.labels": "fraction:" + ",".join(["0.4"] * 5 + ["0"] * 15)}


def _methods(presets: Mapping[Number, str]) -> dict[str, Row]:
    """A line for each method; the presets' names go on after the method's."""
    rows = {}
    for label, start in METHODS.items():
        names = {x: f"hassle/{start}{rest}" for x, rest in presets.items()}
        rows[label] = row_of(names, None if start else "EM")
    return rows


def _sides(presets: Mapping[Number, str]) -> dict[str, Row]:
    return {f"HASSLE-{side}": row_of(presets, side) for side in ("SM", "UM", "EM")}


def _figure2() -> dict[str, Row]:
    """Five partially labelled clients, and the first of fifteen unlabelled ones."""
    rows: dict[str, dict[Number, Point]] = {}
    for label in ("FedAvg + FixMatch", "FedMatch", "HASSLE-EM"):
        start = METHODS[label]
        rows[label] = {}
        for count in UNLABELLED_CLIENTS:
            part = first_clients(5 + count)
            training = Training(f"hassle/{start}cifar10-10", _FIVE_PARTLY, part)
            rows[label][count] = Point(training, None if start else "EM")
    return dict(rows)


def _figure4() -> dict[str, Row]:
    """Of nine unlabelled images for each labelled one, clients keep as many as the ratio says."""
    rows: dict[str, Row] = {}
    for side in ("SM", "UM"):
        row: dict[Number, Point] = {}
        for ratio in RATIOS:
            training = Training("hassle/cifar10-10", part=part_of_unlabelled(ratio / 9))
            row[ratio] = Point(training, side)
        rows[f"HASSLE-{side}"] = row
    return rows | {
        "FedAvg on the labels": row_of(dict.fromkeys(RATIOS, "hassle/fedavg-cifar10-10"))
    }


def _figure5() -> dict[str, Trace]:
    traces = {}
    for row, word in (("both", "with"), ("none", "without")):
        training = Training(f"hassle/table2-{row}")
        for side in ("SM", "UM"):
            printed: dict[Number, float] = {"best": training.published[side]}
            traces[f"{side} {word} SUMA"] = Trace(training, accuracy_of(side), printed)
    return traces


_FIVE, _ALL = "10 % of 20 clients' images labelled", "layout ALL, 10 % labelled"
_BY_LAYOUT = _methods({layout: f"layout-{layout}" for layout in LAYOUTS})
_BY_ALPHA = _methods({alpha: f"cifar10-10{rest}" for alpha, rest in ALPHAS.items()})
_BY_LAMBDA = _sides({weight: f"hassle/lambda-{weight}" for weight in LAMBDAS})
_BY_GAMMA = _sides({weight: f"hassle/gamma-{weight}" for weight in GAMMAS})
_LOSSES = {
    "SM": Trace(Training("hassle/cifar10-10"), report("supervised_loss")),
    "UM": Trace(Training("hassle/cifar10-10"), report("unsupervised_loss")),
}
DECLARED: dict[str, Figure] = {
    "hassle-fig2": Figure(
        "HASSLE, Fig. 2: 5 partially labelled clients and more and more unlabelled ones (our "
        "points), CIFAR-10",
        {"clients": Points(_FIVE, "unlabelled clients that take part", _figure2())},
        ("FedAvg + FixMatch and FedMatch stay flat, HASSLE rises",),
    ),
    "hassle-fig4": Figure(
        "HASSLE, Fig. 4: unlabelled images for each labelled one (our points), CIFAR-10",
        {"ratio": Points(_ALL, "unlabelled : labelled images", _figure4(), log_x=True)},
        ("UM is below SM up to a ratio of 1 and above it from 2 on; SM rises above FedAvg",),
    ),
    "hassle-fig5": Figure(
        "HASSLE, Fig. 5: both models with and without mutual alignment, CIFAR-10, 10 % labelled",
        {"curves": Curves("alpha = 0.1", _figure5())},
        (
            "UM starts below SM; in the last round they are 0.94 points apart with SUMA and 2.29 "
            "without",
        ),
    ),
    "hassle-fig6": Figure(
        "HASSLE, Fig. 6: five layouts of annotation, CIFAR-10, 10 % labelled",
        {"layouts": Points("alpha = 0.1", "layout", _BY_LAYOUT)},
        ("HASSLE is best in all five",),
    ),
    "hassle-fig8": Figure(
        "HASSLE, Fig. 8: degrees of heterogeneity, CIFAR-10, 10 % labelled",
        {"alpha": Points("layout ALL", "alpha", _BY_ALPHA)},
        ("all lose as alpha falls; from 1 to 0.1 HASSLE loses less than the others",),
    ),
    "hassle-fig9": Figure(
        "HASSLE, Fig. 9: training loss of both models, CIFAR-10, 10 % labelled",
        {"losses": Curves("alpha = 0.1", _LOSSES, y_label="mean loss of the round's clients")},
        ("SM's loss starts below UM's; both settle near 0.9",),
    ),
    "hassle-fig10": Figure(
        "HASSLE, Fig. 10: weight lambda of the residual (our points), CIFAR-10, 10 % labelled",
        {"lambda": Points("gamma = 0.001", "lambda", _BY_LAMBDA)},
        ("lambda = 1 is best",),
    ),
    "hassle-fig11": Figure(
        "HASSLE, Fig. 11: weight gamma of proximity (our points), CIFAR-10, 10 % labelled",
        {"gamma": Points("lambda = 1", "gamma", _BY_GAMMA)},
        ("flat, but for a drop at 0.1",),
    ),
}

_FIGURE7 = "HASSLE, Fig. 7: who holds what at three degrees of heterogeneity, CIFAR-10"


def _draw_splits(asked: StudyOptions) -> None:
    """Fig. 7 shows who holds what; nothing is trained."""
    title = full_title(_FIGURE7, asked)
    make_folder(asked.out)
    alphas = choose(asked.cell, tuple(ALPHAS))
    canvas = new_canvas(9, 4.4 * len(alphas), title)
    counts, spread = {}, []
    for axes, alpha in zip(canvas.subplots(len(alphas), squeeze=False)[:, 0], alphas, strict=True):
        config = config_of(Training(f"hassle/cifar10-10{ALPHAS[alpha]}"), asked)
        dataset = dataset_of(config)
        split, path = divide_up(config, dataset), asked.out / f"alpha-{alpha}.png"
        bubble_chart(split, dataset.train_labels, dataset.classes, path)
        axes.imshow(imread(path))
        axes.set_axis_off()
        axes.set_title(f"alpha = {alpha}", loc="left", fontsize=10)
        # parties x classes; the hub is the first party, and no label is unknown
        labelled, unlabelled = holdings(split, dataset.train_labels, len(dataset.classes))
        labelled, unlabelled = labelled[1:, :-1], unlabelled[1:, :-1]
        counts[alpha] = {"labelled": labelled.tolist(), "unlabelled": unlabelled.tolist()}
        classes = ((labelled + unlabelled) > 0).sum(1)
        spread.append(f"alpha {alpha}: {np.mean(classes):.1f}")
    keep(asked, title, canvas, {"images_by_client_and_class": counts})
    print(f"{title}\nclasses per client, on average: {', '.join(spread)}")


FIGURES: dict[str, Study] = {name: figure.study() for name, figure in DECLARED.items()}
FIGURES["hassle-fig7"] = Study(_FIGURE7, tuple(ALPHAS), _draw_splits, ("--set",))

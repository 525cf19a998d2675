"""Figures 2-6 of Fed-SHVR. The points of Figs. 3 and 6 are ours: the paper's are lost with its
pictures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedglean.report.plots import ACCURACY, accuracy_of
from fedglean.runs.run import Runs
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.loss_surface import surfaces
from fedglean_papers.reproduce.panels import (
    Curves,
    Figure,
    Line,
    Number,
    Panel,
    Point,
    Points,
    Trace,
    line_of,
    report,
)
from fedglean_papers.reproduce.trainings import Training, thinned, trained

METHODS = {
    "Fed-SHVR": "",
    "Fed-MT": "fed-mt-",
    "Fed-Pseudo": "fed-pseudo-",
    "FedAvg, 600 labels": "fedavg-",
}
PARTS = {"Fed-SHVR": "", "Fed-SH": "fed-sh-", "Fed-SVR": "fed-svr-"}
SPREADS = {"iid": "IID", "noniid": "Non-IID"}
UNLABELLED = (5940, 14850, 29700, 59400)
CLIENTS = (5, 10, 20, 50)
RATIOS = ("0", "0.25", "0.5", "0.75", "1")
TARGETS = (60.0, 64.0, 68.0, 72.0, 76.0)


def _curve(preset: str) -> Trace:
    training = Training(f"fed-shvr/{preset}")
    printed: dict[Number, float] = {
        int(key.removeprefix("round ")): y for key, y in training.published.items()
    }
    return Trace(training, accuracy_of(), printed)


def _figure2(spread: str) -> dict[str, Trace]:
    methods = {**METHODS, "FedAvg, 60000 labels": "fedavg-all-"}
    return {label: _curve(f"{start}mnist-{spread}") for label, start in methods.items()}


def _thinned(start: str) -> dict[Number, Point]:
    """FedAvg does not look at them; at 59,400 nothing is left out."""
    return {
        count: Point(
            Training(
                f"fed-shvr/{start}mnist-iid",
                part=None if count == 59400 else thinned(count / 59400),
            )
            if start != "fedavg-"
            else Training("fed-shvr/fedavg-mnist-iid")
        )
        for count in UNLABELLED
    }


def _clients(start: str) -> dict[Number, Point]:
    names = {count: "mnist-iid" if count == 10 else f"clients-{count}" for count in CLIENTS}
    return {count: Point(Training(f"fed-shvr/{start}{name}")) for count, name in names.items()}


@dataclass(frozen=True)
class Deviation:
    """Fig. 4 (b): the deviation over the seeds of the global model's accuracy, round by round."""

    lines: Mapping[str, Training]

    def trainings(self) -> list[Training]:
        return list(self.lines.values())

    def made(self, asked: StudyOptions) -> Panel:
        lines = [
            _spread_by_round(label, trained(training, asked))
            for label, training in self.lines.items()
        ]
        title = "(b) deviation over the seeds" + (
            ": --seeds 5 has one, 1 has none" if asked.seeds == 1 else ""
        )
        return Panel(title, "round", "standard deviation of accuracy in points", lines)


def _spread_by_round(label: str, results: Runs) -> Line:
    """With the paper's divisor, the number of seeds: one seed alone has none."""
    if len(results) == 1:
        return line_of(label, [], [])
    histories = zip(*(result.history for result in results), strict=True)
    tested = [lines for lines in histories if "accuracy" in lines[0]]
    spread = [np.std([100 * line["accuracy"]["model"] for line in lines]) for lines in tested]
    return line_of(
        label, [lines[0]["round"] for lines in tested], [[float(value)] for value in spread]
    )


@dataclass(frozen=True)
class RoundsTo:
    """Fig. 6 (b): how many rounds each method needs for an accuracy; where a seed never gets there
    is no point.
    """

    title: str
    lines: Mapping[str, Training]

    def trainings(self) -> list[Training]:
        return list(self.lines.values())

    def made(self, asked: StudyOptions) -> Panel:
        lines = [_needed(label, trained(training, asked)) for label, training in self.lines.items()]
        return Panel(self.title, ACCURACY, "rounds needed", lines)


def _needed(label: str, results: Runs) -> Line:
    needed = {target: [result.rounds_to(target / 100) for result in results] for target in TARGETS}
    reached = {
        target: [float(n) for n in counts if n is not None] for target, counts in needed.items()
    }
    kept = {target: counts for target, counts in reached.items() if len(counts) == len(results)}
    return line_of(label, list(kept), list(kept.values()))


def _short(label: str) -> str:
    return label.partition(",")[0]


DECLARED: dict[str, Figure] = {
    "fed-shvr-fig2": Figure(
        "Fed-SHVR, Fig. 2: MNIST, 600 labels",
        {spread: Curves(word, _figure2(spread)) for spread, word in SPREADS.items()},
        (
            "Fed-SHVR is above Fed-MT and Fed-Pseudo, those are above FedAvg on 600 labels; "
            "Non-IID is harder than IID",
        ),
    ),
    "fed-shvr-fig3": Figure(
        "Fed-SHVR, Fig. 3: MNIST, IID, 600 labels (our points)",
        {
            "unlabelled": Points(
                "(a)",
                "unlabelled images",
                {label: _thinned(start) for label, start in METHODS.items()},
                log_x=True,
            ),
            "clients": Points(
                "(b)",
                "clients",
                {label: _clients(start) for label, start in METHODS.items()},
                log_x=True,
            ),
        },
        (
            "accuracy rises with the unlabelled images and changes little with the clients; "
            "Fed-SHVR is best",
        ),
    ),
    "fed-shvr-fig4": Figure(
        "Fed-SHVR, Fig. 4: its parts, MNIST, Non-IID",
        {
            "loss": Curves(
                "(a) training loss",
                {
                    label: Trace(Training(f"fed-shvr/{start}mnist-noniid"), report("objective"))
                    for label, start in PARTS.items()
                },
                y_label="objective, eq. (5a), at the model that was sent",
            ),
            "deviation": Deviation(
                {label: Training(f"fed-shvr/{start}mnist-noniid") for label, start in PARTS.items()}
            ),
        },
        (
            "Fed-SHVR reaches the smallest loss; variance reduction lowers the deviation, "
            "Fed-SHVR's is smallest",
        ),
    ),
    "fed-shvr-fig6": Figure(
        "Fed-SHVR, Fig. 6: CIFAR-10, labelled and unlabelled classes differ (our points)",
        {
            "mismatch": Points(
                "(a) after the last round",
                "mismatch ratio",
                {
                    _short(label): {
                        x: Point(Training(f"fed-shvr/{start}cifar10-mismatch-{x}")) for x in RATIOS
                    }
                    for label, start in METHODS.items()
                },
            ),
            "rounds": RoundsTo(
                "(b) mismatch ratio 0.5",
                {
                    _short(label): Training(f"fed-shvr/{start}cifar10-mismatch-0.5")
                    for label, start in METHODS.items()
                },
            ),
        },
        (
            "Fed-SHVR gets better as the mismatch grows; Fed-SHVR and Fed-MT stay above FedAvg",
            "to reach 76 %, semi-supervised methods need about 200 rounds less than FedAvg, "
            "Fed-SHVR least of all",
        ),
    ),
}

FIGURES: dict[str, Study] = {name: figure.study() for name, figure in DECLARED.items()}
FIGURES["fed-shvr-fig5"] = Study(
    "Fed-SHVR, Fig. 5: the loss around the solution, MNIST, Non-IID", ("a2-0", "a2-0.1"), surfaces
)

"""Figures 2-6 of Fed-SHVR. The points of Figs. 3 and 6 are ours."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedglean.report.plots import ACCURACY, accuracy_of, in_common
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.loss_surface import TITLE, draw_surfaces
from fedglean_papers.reproduce.panels import (
    Curves,
    Figure,
    Number,
    Panel,
    PanelPlan,
    Point,
    Points,
    Row,
    Trace,
    line_of,
    report,
    row_of,
)
from fedglean_papers.reproduce.trainings import Training, part_of_unlabelled, train

METHODS = {
    "Fed-SHVR": "",
    "Fed-MT": "fed-mt-",
    "Fed-Pseudo": "fed-pseudo-",
    "FedAvg, 600 labels": "fedavg-",
}
PARTS = {"Fed-SHVR": "", "Fed-SH": "fed-sh-", "Fed-SVR": "fed-svr-"}
SPREADS = {"iid": "IID", "noniid": "Non-IID"}
UNLABELLED = (5940, 14850, 29700, 59400)
CLIENTS = {5: "clients-5", 10: "mnist-iid", 20: "clients-20", 50: "clients-50"}
RATIOS = ("0", "0.25", "0.5", "0.75", "1")
TARGETS = (60.0, 64.0, 68.0, 72.0, 76.0)


def _figure2() -> dict[str, PanelPlan]:
    panels: dict[str, PanelPlan] = {}
    for spread, word in SPREADS.items():
        traces = {}
        for label, start in {**METHODS, "FedAvg, 60000 labels": "fedavg-all-"}.items():
            training = Training(f"fed-shvr/{start}mnist-{spread}")
            printed: dict[Number, float] = {}
            for key, accuracy in training.published.items():
                printed[int(key.removeprefix("round "))] = accuracy
            traces[label] = Trace(training, accuracy_of(), printed)
        panels[spread] = Curves(word, traces)
    return panels


def _by_unlabelled(start: str) -> Row:
    """FedAvg does not look at them; at 59,400 nothing is left out."""
    row: dict[Number, Point] = {}
    for count in UNLABELLED:
        is_whole = count == 59400 or start == "fedavg-"
        part = None if is_whole else part_of_unlabelled(count / 59400)
        row[count] = Point(Training(f"fed-shvr/{start}mnist-iid", part=part))
    return row


def _by_clients(start: str) -> Row:
    return row_of({count: f"fed-shvr/{start}{name}" for count, name in CLIENTS.items()})


def _by_mismatch() -> dict[str, Row]:
    rows = {}
    for label, start in METHODS.items():
        names: dict[Number, str] = {x: f"fed-shvr/{start}cifar10-mismatch-{x}" for x in RATIOS}
        rows[label.partition(",")[0]] = row_of(names)
    return rows


_BY_UNLABELLED = {label: _by_unlabelled(start) for label, start in METHODS.items()}
_BY_CLIENTS = {label: _by_clients(start) for label, start in METHODS.items()}
_ON_MNIST = {label: Training(f"fed-shvr/{start}mnist-noniid") for label, start in PARTS.items()}
_ON_CIFAR10 = {
    label.partition(",")[0]: Training(f"fed-shvr/{start}cifar10-mismatch-0.5")
    for label, start in METHODS.items()
}


@dataclass(frozen=True)
class Deviation:
    """Fig. 4 (b): the deviation over the seeds of the global model's accuracy, round by round."""

    trainings: Mapping[str, Training]

    def make(self, asked: StudyOptions) -> Panel:
        """With the paper's divisor, the number of seeds: one seed alone has none."""
        lines = []
        for label, training in self.trainings.items():
            rounds, values = in_common(train(training, asked), accuracy_of("model"))
            if len(values) == 1:
                lines.append(line_of(label, [], []))
                continue
            deviations = np.std(values, axis=0).tolist()  # of seeds x rounds
            lines.append(line_of(label, rounds, [[each] for each in deviations]))
        title = "(b) deviation over the seeds"
        if asked.seeds == 1:
            title += ": --seeds 5 has one, 1 has none"
        return Panel(title, "round", "standard deviation of accuracy in points", lines)


@dataclass(frozen=True)
class RoundsTo:
    """Fig. 6 (b): how many rounds each method needs for an accuracy that all seeds get to."""

    trainings: Mapping[str, Training]

    def make(self, asked: StudyOptions) -> Panel:
        lines = []
        for label, training in self.trainings.items():
            results, needed = train(training, asked), {}
            for target in TARGETS:
                counts = [result.rounds_to(target / 100) for result in results]
                reached = [float(count) for count in counts if count is not None]
                if len(reached) == len(counts):
                    needed[target] = reached
            lines.append(line_of(label, list(needed), list(needed.values())))
        return Panel("(b) mismatch ratio 0.5", ACCURACY, "rounds needed", lines)


_OBJECTIVES = {label: Trace(each, report("objective")) for label, each in _ON_MNIST.items()}
_LOSS = "objective, eq. (5a), at the model that was sent"
DECLARED: dict[str, Figure] = {
    "fed-shvr-fig2": Figure(
        "Fed-SHVR, Fig. 2: MNIST, 600 labels",
        _figure2(),
        (
            "Fed-SHVR is above Fed-MT and Fed-Pseudo, those are above FedAvg on 600 labels; "
            "Non-IID is harder than IID",
        ),
    ),
    "fed-shvr-fig3": Figure(
        "Fed-SHVR, Fig. 3: MNIST, IID, 600 labels (our points)",
        {
            "unlabelled": Points("(a)", "unlabelled images", _BY_UNLABELLED, log_x=True),
            "clients": Points("(b)", "clients", _BY_CLIENTS, log_x=True),
        },
        (
            "accuracy rises with the unlabelled images and changes little with the clients; "
            "Fed-SHVR is best",
        ),
    ),
    "fed-shvr-fig4": Figure(
        "Fed-SHVR, Fig. 4: its parts, MNIST, Non-IID",
        {
            "loss": Curves("(a) training loss", _OBJECTIVES, y_label=_LOSS),
            "deviation": Deviation(_ON_MNIST),
        },
        (
            "Fed-SHVR reaches the smallest loss; variance reduction lowers the deviation, "
            "Fed-SHVR's is smallest",
        ),
    ),
    "fed-shvr-fig6": Figure(
        "Fed-SHVR, Fig. 6: CIFAR-10, labelled and unlabelled classes differ (our points)",
        {
            "mismatch": Points("(a) after the last round", "mismatch ratio", _by_mismatch()),
            "rounds": RoundsTo(_ON_CIFAR10),
        },
        (
            "Fed-SHVR gets better as the mismatch grows; Fed-SHVR and Fed-MT stay above FedAvg",
            "to reach 76 %, semi-supervised methods need about 200 rounds less than FedAvg, "
            "Fed-SHVR least of all",
        ),
    ),
}

FIGURES: dict[str, Study] = {name: figure.study() for name, figure in DECLARED.items()}
FIGURES["fed-shvr-fig5"] = Study(TITLE, ("a2-0", "a2-0.1"), draw_surfaces)

"""Learning curves as a picture: test accuracy by round, the last value written, the best round a
dot.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LABEL_HEIGHT = 0.055

#: A number of a line of metrics.jsonl, or None where the line has it not.
Read = Callable[[Mapping[str, Any]], float | None]


class Result(Protocol):
    """What is drawn of a run."""

    @property
    def history(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def names(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Curve:
    """Accuracies in per cent, seeds x rounds, over the rounds in which every seed was tested."""

    label: str
    rounds: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = self.values.mean(0)
        return mean


def curves(runs: Mapping[str, Sequence[Result]], path: Path, title: str = "") -> Path:
    """Draw the learning curves into a PNG file; if it cannot be written, the runs are complete all
    the same.
    """
    try:
        drawing(runs, title).savefig(path, dpi=150)
    except OSError as error:
        logging.getLogger(__name__).warning(
            "the picture %s could not be written: %s", path, error.strerror or error
        )
    return path


def drawing(runs: Mapping[str, Sequence[Result]], title: str = "") -> Figure:
    """One curve a label: the mean over its runs, and a band from the worst to the best of them.

    A lone run of a method with several predictors gets a curve for each. What a method does after
    its last round stands one place further right.
    """
    drawn = [curve for curve in _curves(runs) if len(curve.rounds)]
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, curve in enumerate(drawn):
        _draw(axes, curve, COLOURS[number % len(COLOURS)])
    _write_last(axes, drawn)
    _dress(axes, title, any(len(curve.values) > 1 for curve in drawn))
    return figure


def _curves(runs: Mapping[str, Sequence[Result]]) -> list[Curve]:
    if len(runs) == 1:
        label, results = next(iter(runs.items()))
        if len(results) == 1 and len(results[0].names) > 1:
            return [_curve(f"{label} {name}".strip(), results, name) for name in results[0].names]
    return [
        _curve(label, results, results[0].names[0]) for label, results in runs.items() if results
    ]


def _curve(label: str, results: Sequence[Result], name: str) -> Curve:
    rounds, values = in_common(
        results, lambda line: 100 * line["accuracy"][name] if "accuracy" in line else None
    )
    return Curve(label, np.array(rounds, float), np.array(values, float))


def in_common(results: Sequence[Result], read: Read) -> tuple[list[int], list[list[float]]]:
    """The rounds in which every seed has a number, and the numbers, seeds x rounds.

    What comes after the last round stands one place further right.
    """
    seeds = [
        {
            line["round"] + bool(line.get("final")): value
            for line in result.history
            if (value := read(line)) is not None
        }
        for result in results
    ]
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return rounds, [[seed[r] for r in rounds] for seed in seeds]


def _draw(axes: Axes, curve: Curve, colour: str) -> None:
    mean = curve.mean
    axes.plot(curve.rounds, mean, color=colour, linewidth=1.8, marker="o" if len(mean) == 1 else "")
    if len(curve.values) > 1:
        axes.fill_between(
            curve.rounds,
            curve.values.min(0),
            curve.values.max(0),
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    best = int(mean.argmax())
    axes.plot(
        curve.rounds[best],
        mean[best],
        "o",
        color=colour,
        markersize=5,
        markeredgecolor="white",
        clip_on=False,
    )


def _write_last(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Label and last value beside each curve's end, moved apart where they would overlap."""
    if not drawn:
        return
    low, high = axes.get_ylim()
    ends = sorted((float(curve.mean[-1]), number) for number, curve in enumerate(drawn))
    places = spaced([(value - low) / (high - low) for value, _ in ends], LABEL_HEIGHT)
    for (value, number), place in zip(ends, places, strict=True):
        axes.annotate(
            f"{drawn[number].label}  {value:.1f} %",
            xy=(1.015, place),
            xycoords="axes fraction",
            color=COLOURS[number % len(COLOURS)],
            va="center",
            annotation_clip=False,
        )


def spaced(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved as little as needed to be `gap` apart: neighbours that collide share
    their middle.
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place, 1])
        while (
            len(groups) > 1
            and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2
        ):
            (b, m), (a, n) = groups.pop(), groups.pop()
            groups.append([(a * n + b * m) / (n + m), n + m])
    return [
        middle + gap * (k - (count - 1) / 2) for middle, count in groups for k in range(int(count))
    ]


def _dress(axes: Axes, title: str, band: bool) -> None:
    axes.set_xlabel(
        "round" + ("  (line: mean of the seeds, band: worst to best seed)" if band else "")
    )
    axes.set_ylabel("test accuracy in %")
    axes.set_title(title, loc="left", parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(
        0.99,
        0.02,
        "dot: best round; number: last round",
        transform=axes.transAxes,
        ha="right",
        fontsize=8,
        color="#555555",
    )

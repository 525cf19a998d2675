"""Pictures of accuracy: by round, and against what it costs; a colour a method."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedglean.runs.run import Line, Run, Runs, step_of

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", ":", "-.")
LABEL_HEIGHT = 0.055
ACCURACY = "test accuracy in %"
SENT = "MB per seed, down and up"

#: Keywords of matplotlib.
Look = dict[str, Any]
#: A number of a round, or None where it has none.
Read = Callable[[Line], float | None]
#: By panel: what a round costs, in the unit in which it is drawn.
COSTS: Mapping[str, Callable[[Line], float]] = {
    "rounds": lambda line: 1.0,
    SENT: lambda line: (line["bytes_down"] + line["bytes_up"]) / 1e6,
    "seconds per seed": lambda line: line["seconds"],
}


@dataclass(frozen=True)
class Curve:
    """A line: means over seeds, with a band from the worst to the best of them."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    @classmethod
    def of(cls, label: str, x: Sequence[float], seeds: Sequence[Sequence[float]]) -> "Curve":
        """From values seeds x places."""
        table = np.array(seeds, float).reshape(len(seeds), len(x))
        if not len(x):
            return cls(label, [], [], [], [])
        mean, low, high = (part.tolist() for part in (table.mean(0), table.min(0), table.max(0)))
        return cls(label, list(x), mean, low, high)

    def draw(self, axes: Axes, number: int, dots_below: int = 2) -> None:
        """In the colour and style of a number; dots mark the places of a curve with fewer."""
        marker = "o" if len(self.x) < dots_below else ""
        look: Look = {"color": colour_of(number), "linestyle": style_of(number), "marker": marker}
        axes.plot(self.x, self.mean, linewidth=1.8, markersize=4, label=self.label, **look)
        if self.low != self.high:
            band: Look = {"color": colour_of(number), "alpha": 0.18, "linewidth": 0}
            axes.fill_between(self.x, self.low, self.high, **band)


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def style_of(number: int) -> str:
    """Another one once the colours are used up."""
    return STYLES[number // len(COLOURS) % len(STYLES)]


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy_axes(axes: Axes, title: str = "") -> None:
    axes.set_title(title, loc="left", parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def accuracy_of(name: str | None = None) -> Read:
    """Of a predictor, by default the first of the line, in per cent."""

    def read(line: Line) -> float | None:
        accuracies = line.get("accuracy")
        return 100 * accuracies[name or next(iter(accuracies))] if accuracies else None

    return read


def in_common(runs: Iterable[Run], read: Read) -> tuple[list[int], list[list[float]]]:
    """The rounds in which every seed has a number, and the numbers, seeds x rounds."""
    seeds = []
    for run in runs:
        values = {}
        for line in run.history:
            value = read(line)
            if value is not None:
                values[step_of(line)] = value
        seeds.append(values)
    steps = sorted(set.intersection(*map(set, seeds)))
    numbers = []
    for values in seeds:
        numbers.append([values[step] for step in steps])
    return steps, numbers


def learning_curves(results: Mapping[str, Runs], path: Path, title: str = "") -> Path:
    """Draw the curves into a PNG file; runs are complete all the same where that fails."""
    try:
        curves_figure(results, title).savefig(path, dpi=150)
    except OSError as error:
        told = "the picture %s could not be written: %s"
        logging.getLogger(__name__).warning(told, path, error.strerror or error)
    return path


def curves_figure(results: Mapping[str, Runs], title: str = "") -> Figure:
    """One curve a label: the last value written beside it, the best round a dot.

    A lone run of a method with several predictors gets a curve for each.
    """
    curves = [curve for curve in _by_round(results) if curve.x]
    figure = new_figure(7.5, 4.5)
    axes = figure.add_subplot()
    for number, curve in enumerate(curves):
        curve.draw(axes, number)
        best = int(np.argmax(curve.mean))
        dot: Look = {"color": colour_of(number), "markersize": 5, "markeredgecolor": "white"}
        axes.plot(curve.x[best], curve.mean[best], "o", clip_on=False, **dot)
    _write_last(axes, curves)
    tidy_axes(axes, title)
    band = "  (line: mean of the seeds, band: worst to best seed)"
    axes.set_xlabel(f"round{band}" if _has_band(results) else "round")
    axes.set_ylabel(ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    note: Look = {"transform": axes.transAxes, "ha": "right", "fontsize": 8, "color": "#555555"}
    axes.text(0.99, 0.02, "dot: best round; number: last round", **note)
    return figure


def _has_band(results: Mapping[str, Runs]) -> bool:
    return any(len(runs) > 1 for runs in results.values())


def _by_round(results: Mapping[str, Runs]) -> list[Curve]:
    curves = []
    for label, runs in results.items():
        is_alone = len(results) == len(runs) == 1 and len(runs.names) > 1
        for name in runs.names if is_alone else runs.names[:1]:
            own = f"{label} {name}".strip() if is_alone else label
            curves.append(Curve.of(own, *in_common(runs, accuracy_of(name))))
    return curves


def _write_last(axes: Axes, curves: Sequence[Curve]) -> None:
    """Label and last value beside each curve's end, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    ends = sorted((curve.mean[-1], number) for number, curve in enumerate(curves))
    places = spread_out([(value - low) / (high - low) for value, _ in ends], LABEL_HEIGHT)
    for (value, number), place in zip(ends, places, strict=True):
        text = f"{curves[number].label}  {value:.1f} %"
        look: Look = {"color": colour_of(number), "va": "center", "annotation_clip": False}
        axes.annotate(text, xy=(1.015, place), xycoords="axes fraction", **look)


def spread_out(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved as little as needed to be `gap` apart.

    Neighbours that collide share their middle.
    """
    groups: list[tuple[float, int]] = []  # middle and number of each group of neighbours
    for place in places:
        groups.append((place, 1))
        while len(groups) > 1:
            (a, n), (b, m) = groups[-2:]
            if b - a >= gap * (n + m) / 2:
                break
            groups[-2:] = [((a * n + b * m) / (n + m), n + m)]
    moved = []
    for middle, count in groups:
        first = middle - gap * (count - 1) / 2
        moved += [first + gap * number for number in range(count)]
    return moved


def cost_curves(
    results: Mapping[str, Runs], path: Path, title: str = "", at_one_place: Collection[str] = ()
) -> Path:
    """Draw the panels into a PNG file."""
    costs_figure(results, title, at_one_place).savefig(path, dpi=150)
    return path


def costs_figure(
    results: Mapping[str, Runs], title: str = "", at_one_place: Collection[str] = ()
) -> Figure:
    """Rounds, bytes and seconds side by side.

    In the panel of bytes, what sends nothing is a dotted level, and so is what is no federation.
    """
    figure = new_figure(11, 4.2 + 0.22 * -(-len(results) // 4))
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (name, cost) in zip(panels, COSTS.items(), strict=True):
        for number, (label, runs) in enumerate(results.items()):
            curve = _by_cost(label, runs, cost)
            sends_nothing = name == SENT and (label in at_one_place or not any(curve.x))
            if sends_nothing and curve.x:
                look: Look = {"color": colour_of(number), "linestyle": ":", "label": label}
                axes.axhline(curve.mean[-1], **look)
            elif curve.x:
                curve.draw(axes, number)
        tidy_axes(axes)
        axes.set_xlabel(name)
        axes.set_xlim(left=0)
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel(ACCURACY)
    if _has_band(results):
        title += "  (line: mean of the seeds, band: worst to best)"
    figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=4, frameon=False)
    return figure


def _by_cost(label: str, runs: Runs, cost: Callable[[Line], float]) -> Curve:
    """Over the tests that all seeds have, at their mean cost up to there."""
    steps, accuracies = in_common(runs, accuracy_of(*runs.names[:1]))
    spent = np.zeros(len(steps))
    for run in runs:
        totals = accumulate(cost(line) for line in run.history)
        by_step = dict(zip(map(step_of, run.history), totals, strict=True))
        spent += [by_step[step] for step in steps]
    return Curve.of(label, (spent / len(runs)).tolist(), accuracies)

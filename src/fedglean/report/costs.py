"""Accuracy against what it costs: rounds, bytes and seconds side by side, a colour a method."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedglean.report.picture import COLOURS, Result

SENT = "MB per seed, down and up"
STYLES = ("-", "--", ":", "-.")
Line = Mapping[str, Any]


#: By panel: what a round costs, and in which unit it is drawn. A method's last touch after its
#: rounds costs one more.
COSTS: Mapping[str, Callable[[Line], float]] = {
    "rounds": lambda line: 1.0,
    SENT: lambda line: (line["bytes_down"] + line["bytes_up"]) / 1e6,
    "seconds per seed": lambda line: line["seconds"],
}


def cost_curves(
    runs: Mapping[str, Sequence[Result]], path: Path, title: str = "", alone: Collection[str] = ()
) -> Path:
    """Draw the panels into a PNG file."""
    cost_drawing(runs, title, alone).savefig(path, dpi=150)
    return path


def cost_drawing(
    runs: Mapping[str, Sequence[Result]], title: str = "", alone: Collection[str] = ()
) -> Figure:
    """The mean over a label's runs, a band from the worst to the best of them.

    What sends nothing is a dotted level in the panel of bytes, and so is what is no federation
    (`alone`).
    """
    rows = -(-len(runs) // 4)
    figure = Figure(figsize=(11, 4.2 + 0.22 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    for axes, (name, cost) in zip(panels, COSTS.items(), strict=True):
        for number, (label, results) in enumerate(runs.items()):
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
            }
            level = label in alone and name == SENT
            _draw(axes, label, results, (lambda line: 0.0) if level else cost, style)
        axes.set_xlabel(name)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(left=0)
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("test accuracy in %")
    several = any(len(results) > 1 for results in runs.values())
    told = title + ("  (line: mean of the seeds, band: worst to best)" if several else "")
    figure.suptitle(told, x=0.01, ha="left", parse_math=False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=4, frameon=False)
    return figure


def _draw(
    axes: Axes,
    label: str,
    results: Sequence[Result],
    cost: Callable[[Line], float],
    style: dict[str, Any],
) -> None:
    spent, accuracy = _curves(results, cost)
    if not len(spent):
        return
    if spent[-1] == 0:
        axes.axhline(accuracy[:, -1].mean(), color=style["color"], linestyle=":", label=label)
        return
    axes.plot(
        spent,
        accuracy.mean(0),
        linewidth=1.8,
        marker="o" if len(spent) == 1 else "",
        label=label,
        **style,
    )
    if len(results) > 1:
        axes.fill_between(
            spent, accuracy.min(0), accuracy.max(0), color=style["color"], alpha=0.15, linewidth=0
        )


def _curves(
    results: Sequence[Result], cost: Callable[[Line], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean cost up to each test, and the accuracies, seeds x tests, over the rounds in which
    all were tested.
    """
    seeds = []
    for result in results:
        totals = accumulate(cost(line) for line in result.history)
        seeds.append(
            {
                (line["round"], bool(line.get("final"))): (
                    total,
                    100 * line["accuracy"][result.names[0]],
                )
                for line, total in zip(result.history, totals, strict=True)
                if "accuracy" in line
            }
        )
    tests = sorted(set.intersection(*(set(seed) for seed in seeds)))
    table = np.array([[seed[test] for test in tests] for seed in seeds], float).reshape(
        len(seeds), len(tests), 2
    )
    return table[..., 0].mean(0), table[..., 1]

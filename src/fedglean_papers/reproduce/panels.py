"""What a figure is made of: panels of lines, drawn into a picture, told as a table and kept as
numbers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from textwrap import fill
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, NullLocator
from rich.markup import escape
from rich.table import Table

from fedglean.report.plots import ACCURACY, Curve, Read, colour_of, in_common, new_figure, tidy_axes
from fedglean.report.terminal import screen
from fedglean.runs.run import Runs
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.made_by import made_by
from fedglean_papers.reproduce.trainings import Training, one_of, trained

Number = float | str
GREY = "#555555"


@dataclass(frozen=True)
class Line:
    """Means over the seeds with the worst and the best of them; `published` are (x, y) that the
    paper prints.

    Where those are of each run's best round, `best` has ours: of a curve one number, else one for
    each x.
    """

    label: str
    x: list[Number]
    mean: list[float]
    low: list[float]
    high: list[float]
    published: list[tuple[Number, float]] = field(default_factory=list)
    best: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Level:
    """A horizontal line: the best round of something that is not varied."""

    label: str
    value: float
    published: float | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    levels: list[Level] = field(default_factory=list)
    log_x: bool = False


@dataclass(frozen=True)
class Trace:
    """A line to be read off a training, round by round."""

    training: Training
    read: Read
    published: Mapping[Number, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """A point to be read off a training when it is done: the accuracy of a predictor, by default
    the first.
    """

    training: Training
    predictor: str | None = None

    def values(self, asked: StudyOptions) -> tuple[list[float], list[float]]:
        """In the last and in the best round of every seed."""
        scores = [
            result.score(self.predictor or result.names[0])
            for result in trained(self.training, asked)
        ]
        return [100 * last.accuracy for last, _ in scores], [
            100 * best.accuracy for _, best in scores
        ]

    @property
    def published(self) -> float | None:
        known = self.training.published
        return known.get(self.predictor or "best", known.get("round 100"))


def pseudo(measure: str, unit: float = 100) -> Read:
    def read(line: Mapping[str, Any]) -> float | None:
        value = line.get("pseudo", {}).get(measure)
        return None if value is None else unit * value

    return read


def report(name: str) -> Read:
    return lambda line: line["report"].get(name)


class Declared(Protocol):
    """A panel that is still to be made."""

    def trainings(self) -> list[Training]: ...
    def made(self, asked: StudyOptions) -> Panel: ...


@dataclass(frozen=True)
class Curves:
    """A panel over rounds."""

    title: str
    traces: Mapping[str, Trace]
    levels: Mapping[str, Point] = field(default_factory=dict)
    y_label: str = ACCURACY

    def trainings(self) -> list[Training]:
        return [trace.training for trace in self.traces.values()] + [
            level.training for level in self.levels.values()
        ]

    def made(self, asked: StudyOptions) -> Panel:
        lines = [
            by_round(label, trained(trace.training, asked), trace)
            for label, trace in self.traces.items()
        ]
        if self.y_label != ACCURACY:
            lines = [replace(line, best=[]) for line in lines]
        levels = [_level(label, point, asked) for label, point in self.levels.items()]
        return Panel(self.title, "round", self.y_label, lines, levels)


@dataclass(frozen=True)
class Points:
    """A panel over something that is varied from training to training: last rounds, and the best as
    HASSLE prints.
    """

    title: str
    x_label: str
    lines: Mapping[str, Mapping[Number, Point]]
    log_x: bool = False

    def trainings(self) -> list[Training]:
        return [point.training for row in self.lines.values() for point in row.values()]

    def made(self, asked: StudyOptions) -> Panel:
        lines = [_over(label, row, asked) for label, row in self.lines.items()]
        return Panel(self.title, self.x_label, ACCURACY, lines, log_x=self.log_x)


def by_round(label: str, results: Runs, trace: Trace) -> Line:
    """Rounds in which every seed has the number."""
    rounds, values = in_common(results, trace.read)
    line = line_of(label, rounds, list(zip(*values, strict=True)), list(trace.published.items()))
    return replace(line, best=[float(np.mean([max(seed) for seed in values]))] if rounds else [])


def line_of(
    label: str,
    x: Sequence[Number],
    seeds: Sequence[Sequence[float]],
    published: Sequence[tuple[Number, float]] = (),
) -> Line:
    """From the seeds' values at each x."""
    means = [float(np.mean(values)) for values in seeds]
    return Line(
        label, list(x), means, [min(v) for v in seeds], [max(v) for v in seeds], list(published)
    )


def _over(label: str, row: Mapping[Number, Point], asked: StudyOptions) -> Line:
    values = [point.values(asked) for point in row.values()]
    printed = [(x, y) for x, point in row.items() if (y := point.published) is not None]
    line = line_of(label, list(row), [last for last, _ in values], printed)
    # Fed-SHVR prints the last one.
    by_best = any(point.training.preset.startswith("hassle/") for point in row.values())
    return replace(line, best=[float(np.mean(best)) for _, best in values]) if by_best else line


def _level(label: str, point: Point, asked: StudyOptions) -> Level:
    return Level(f"{label}, best round", float(np.mean(point.values(asked)[1])), point.published)


@dataclass(frozen=True)
class Figure:
    """A figure of a paper: its panels by cell, and what the paper says about it."""

    title: str
    panels: Mapping[str, Declared]
    claims: tuple[str, ...] = ()

    def study(self) -> Study:
        return Study(self.title, tuple(self.panels), partial(_run, self))


def _run(figure: Figure, asked: StudyOptions) -> None:
    panels = [figure.panels[cell].made(asked) for cell in one_of(asked.cell, tuple(figure.panels))]
    title = shown_title(figure.title, asked)
    make_folder(asked.out)
    drawing(panels, title).savefig(asked.file("figure.png"), dpi=130)
    keep(asked, title, figure.claims, {"panels": [asdict(panel) for panel in panels]})
    tell(panels, title, figure.claims, comparable=asked.is_comparable)


def shown_title(title: str, asked: StudyOptions) -> str:
    """Says what differs from the paper's experiment."""
    changes = [] if asked.scale == 1 else [f"rounds x {asked.scale:g}"]
    changes += [f"{key}={value}" for key, value in asked.options]
    return title + (f"\n{fill('[' + ', '.join(changes) + ']', 100)}" if changes else "")


def keep(
    asked: StudyOptions, title: str, claims: Sequence[str], numbers: Mapping[str, Any]
) -> None:
    """Everything that is drawn, in `result.json`; of one part alone in a file of its own."""
    facts = {
        **made_by(),
        "title": title,
        "scale": asked.scale,
        "seeds": asked.seeds,
        "options": dict(asked.options),
    }
    content = {**facts, "cell": asked.cell, "claims": list(claims), **numbers}
    write_whole(asked.file("result.json"), json.dumps(content, indent=1).encode())


def tell(
    panels: Sequence[Panel], title: str, claims: Sequence[str], comparable: bool = True
) -> None:
    """Last and best values next to what was published; no difference where the data is not the
    paper's.
    """
    table = Table(title=escape(title), title_justify="left")
    for heading in ("panel", "line", "at", "ours", "published", "difference"):
        table.add_column(heading, justify="left" if heading in ("panel", "line") else "right")
    for panel in panels:
        name = panel.title if panel.y_label == ACCURACY else f"{panel.title}: {panel.y_label}"
        for line in panel.lines:
            for place, ours, theirs in rows_of(panel, line):
                table.add_row(
                    name, line.label, place, f"{ours:.4g}", *_beside(ours, theirs, comparable)
                )
        for level in panel.levels:
            table.add_row(
                name,
                level.label,
                "",
                f"{level.value:.4g}",
                *_beside(level.value, level.published, comparable),
            )
    console = screen()
    console.print(table)
    for claim in claims:
        console.print(f"the paper says: {claim}")


def rows_of(panel: Panel, line: Line) -> list[tuple[str, float, float | None]]:
    """What is worth a row: each published point that we have, else the last and the best of a
    curve, or every point.
    """
    ours, theirs = dict(zip(line.x, line.mean, strict=True)), dict(line.published)
    if panel.x_label != "round":
        if not line.best:
            return [(f"{x}", y, theirs.get(x)) for x, y in ours.items()]
        pairs = zip(line.x, line.mean, line.best, strict=True)
        both = [
            [(f"{x}, last", last, None), (f"{x}, best", best, theirs.get(x))]
            for x, last, best in pairs
        ]
        return [row for rows in both for row in rows]
    rows: list[tuple[str, float, float | None]] = [
        (f"round {x}", ours[x], y) for x, y in theirs.items() if x in ours
    ]
    if line.x and line.x[-1] not in theirs:
        rows.append((f"last, {line.x[-1]}", line.mean[-1], None))
    if line.x and panel.y_label == ACCURACY:
        rows.append(("best round", line.best[0], theirs.get("best")))
    return rows


def _beside(ours: float, theirs: float | None, comparable: bool) -> tuple[str, str]:
    return (
        ("", "")
        if theirs is None
        else (f"{theirs:.4g}", f"{ours - theirs:+.2f}" if comparable else "")
    )


def drawing(panels: Sequence[Panel], title: str) -> Canvas:
    """Up to three panels in a row. Published numbers are crosses in their line's colour, best
    rounds at the edge.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    canvas = new_figure(max(8.0, 1.0 + 4.6 * columns), 0.6 + 3.6 * rows)
    canvas.suptitle(title, x=0.01, ha="left", fontsize=10)
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return canvas


def _draw(axes: Axes, panel: Panel) -> None:
    marks = dict.fromkeys(x for line in panel.lines for x in line.x)
    words = any(isinstance(x, str) for x in marks)
    order = {x: float(place if words else x) for place, x in enumerate(marks)}
    for number, line in enumerate(panel.lines):
        _draw_line(axes, panel, line, number, order)
    for number, level in enumerate(panel.levels):
        look: dict[str, Any] = {
            "color": GREY,
            "linestyle": ("--", ":")[number % 2],
            "linewidth": 1.2,
        }
        axes.axhline(level.value, label=level.label, **look)
        if level.published is not None:
            _mark_edge(axes, level.published, GREY)
    if panel.log_x:
        axes.set_xscale("log")
    if words or panel.log_x:
        axes.set_xticks(list(order.values()), [str(x) for x in order])
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.x_label == "round":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    _dress(axes, panel)


def _draw_line(
    axes: Axes, panel: Panel, line: Line, number: int, order: Mapping[Number, float]
) -> None:
    """With what was published of it: points, and its best round at the edge."""
    colour, x = colour_of(number), [order[each] for each in line.x]
    Curve(line.label, x, line.mean, line.low, line.high).draw(axes, number, dots_below=12)
    if panel.x_label != "round" and line.best:
        axes.plot(x, line.best, "--", color=colour, linewidth=1)
    known = [(order.get(each, each), y) for each, y in line.published if _has_place(each, x, order)]
    axes.plot([place for place, _ in known], [y for _, y in known], "x", color=colour, ms=6)
    best = dict(line.published).get("best")
    if best is not None:
        _mark_edge(axes, best, colour)


def _has_place(x: Number, places: Sequence[float], order: Mapping[Number, float]) -> bool:
    return x in order or (not isinstance(x, str) and x <= max(places, default=0))


def _mark_edge(axes: Axes, y: float, colour: str) -> None:
    axes.plot(1, y, "<", color=colour, ms=6, transform=axes.get_yaxis_transform(), clip_on=False)


def _dress(axes: Axes, panel: Panel) -> None:
    """Titles, the legend, and what the marks mean that are there."""
    xs = {x for line in panel.lines for x, _ in line.published}
    edge = "best" in xs or any(level.published is not None for level in panel.levels)
    dashed = panel.x_label != "round" and any(line.best for line in panel.lines)
    marks = ["dashed: best round"] * dashed + [f"x: published{' best round' * dashed}"] * bool(
        xs - {"best"}
    )
    marks += ["<: published best round"] * edge
    tidy_axes(axes, panel.title + (f"  ({', '.join(marks)})" if marks else ""))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.legend(fontsize=8, framealpha=0.6)

"""What a figure is made of: panels of lines that are drawn, printed and kept as numbers."""

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
from fedglean_papers.reproduce.provenance import provenance
from fedglean_papers.reproduce.trainings import Training, choose, train

Number = float | str
GREY = "#555555"


@dataclass(frozen=True)
class Line:
    """Means over the seeds with the worst and the best of them; `published` is what is printed.

    Where that is of each run's best round, `best` has ours: of a curve one number, else one for
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
    """The accuracy of a training's predictor, by default the first."""

    training: Training
    predictor: str | None = None

    def values(self, asked: StudyOptions) -> tuple[list[float], list[float]]:
        """In the last and in the best round of every seed."""
        lasts, bests = [], []
        for result in train(self.training, asked):
            last, best = result.score(self.predictor or result.names[0])
            lasts.append(100 * last.accuracy)
            bests.append(100 * best.accuracy)
        return lasts, bests

    @property
    def published(self) -> float | None:
        known = self.training.published
        return known.get(self.predictor or "best", known.get("round 100"))


#: Points by what is varied.
Row = Mapping[Number, Point]


def row_of(presets: Mapping[Number, str], predictor: str | None = None) -> Row:
    return {x: Point(Training(preset), predictor) for x, preset in presets.items()}


def pseudo(measure: str, unit: float = 100) -> Read:
    def read(line: Mapping[str, Any]) -> float | None:
        value = line.get("pseudo", {}).get(measure)
        return None if value is None else unit * value

    return read


def report(name: str) -> Read:
    return lambda line: line["report"].get(name)


class PanelPlan(Protocol):
    """A panel that is still to be made."""

    def make(self, asked: StudyOptions) -> Panel: ...


@dataclass(frozen=True)
class Curves:
    """A panel over rounds."""

    title: str
    traces: Mapping[str, Trace]
    levels: Mapping[str, Point] = field(default_factory=dict)
    y_label: str = ACCURACY

    def make(self, asked: StudyOptions) -> Panel:
        lines, levels = [], []
        for label, trace in self.traces.items():
            line = by_round(label, train(trace.training, asked), trace)
            lines.append(line if self.y_label == ACCURACY else replace(line, best=[]))
        for label, point in self.levels.items():
            _, best = point.values(asked)
            levels.append(Level(f"{label}, best round", float(np.mean(best)), point.published))
        return Panel(self.title, "round", self.y_label, lines, levels)


@dataclass(frozen=True)
class Points:
    """A panel over what is varied from training to training: last rounds, and HASSLE's best."""

    title: str
    x_label: str
    lines: Mapping[str, Row]
    log_x: bool = False

    def make(self, asked: StudyOptions) -> Panel:
        lines = [_over(label, row, asked) for label, row in self.lines.items()]
        return Panel(self.title, self.x_label, ACCURACY, lines, log_x=self.log_x)


def by_round(label: str, results: Runs, trace: Trace) -> Line:
    """Rounds in which every seed has the number."""
    rounds, values = in_common(results, trace.read)
    line = line_of(label, rounds, list(zip(*values, strict=True)), list(trace.published.items()))
    if not rounds:
        return line
    return replace(line, best=[float(np.mean([max(seed) for seed in values]))])


def line_of(
    label: str,
    x: Sequence[Number],
    seeds: Sequence[Sequence[float]],
    published: Sequence[tuple[Number, float]] = (),
) -> Line:
    """From the seeds' values at each x."""
    means = [float(np.mean(values)) for values in seeds]
    low, high = [min(values) for values in seeds], [max(values) for values in seeds]
    return Line(label, list(x), means, low, high, list(published))


def _over(label: str, row: Row, asked: StudyOptions) -> Line:
    lasts, bests, printed = [], [], []
    for x, point in row.items():
        last, best = point.values(asked)
        lasts.append(last)
        # Fed-SHVR prints the last one.
        if point.training.preset.startswith("hassle/"):
            bests.append(float(np.mean(best)))
        if point.published is not None:
            printed.append((x, point.published))
    return replace(line_of(label, list(row), lasts, printed), best=bests)


@dataclass(frozen=True)
class Figure:
    """A figure of a paper: its panels by cell, and what the paper says about it."""

    title: str
    panels: Mapping[str, PanelPlan]
    claims: tuple[str, ...] = ()

    def study(self) -> Study:
        return Study(self.title, tuple(self.panels), partial(_run, self))


def _run(figure: Figure, asked: StudyOptions) -> None:
    panels = [figure.panels[cell].make(asked) for cell in choose(asked.cell, list(figure.panels))]
    title = full_title(figure.title, asked)
    numbers = {"panels": [asdict(panel) for panel in panels]}
    keep(asked, title, draw(panels, title), numbers, figure.claims)
    print_table(panels, title, figure.claims, asked.is_comparable)


def full_title(title: str, asked: StudyOptions) -> str:
    """Says what differs from the paper's experiment."""
    changes = [f"{key}={value}" for key, value in asked.options]
    if asked.scale != 1:
        changes.insert(0, f"rounds x {asked.scale:g}")
    return f"{title}\n{fill('[' + ', '.join(changes) + ']', 100)}" if changes else title


def new_canvas(width: float, height: float, title: str) -> Canvas:
    canvas = new_figure(width, height)
    canvas.suptitle(title, x=0.01, ha="left", fontsize=10)
    return canvas


def keep(
    asked: StudyOptions,
    title: str,
    canvas: Canvas,
    numbers: Mapping[str, Any],
    claims: Sequence[str] = (),
) -> None:
    """The picture and `result.json`, which has all that is drawn; of one part files of its own."""
    make_folder(asked.out)
    canvas.savefig(asked.file("figure.png"), dpi=130)
    content = {
        **provenance(),
        "title": title,
        "scale": asked.scale,
        "seeds": asked.seeds,
        "options": dict(asked.options),
        "cell": asked.cell,
        "claims": list(claims),
        **numbers,
    }
    write_whole(asked.file("result.json"), json.dumps(content, indent=1).encode())


def print_table(
    panels: Sequence[Panel], title: str, claims: Sequence[str], is_comparable: bool
) -> None:
    """Ours beside what was published; no difference where the data is not the paper's."""
    table = Table(title=escape(title), title_justify="left")
    for heading in ("panel", "line", "at", "ours", "published", "difference"):
        table.add_column(heading, justify="left" if heading in ("panel", "line") else "right")
    for panel in panels:
        name = panel.title if panel.y_label == ACCURACY else f"{panel.title}: {panel.y_label}"
        rows = [(line.label, *row) for line in panel.lines for row in rows_of(panel, line)]
        rows += [(level.label, "", level.value, level.published) for level in panel.levels]
        for label, place, ours, theirs in rows:
            published = difference = ""
            if theirs is not None:
                published = f"{theirs:.4g}"
            if theirs is not None and is_comparable:
                difference = f"{ours - theirs:+.2f}"
            table.add_row(name, label, place, f"{ours:.4g}", published, difference)
    console = screen()
    console.print(table)
    for claim in claims:
        console.print(f"the paper says: {claim}")


def rows_of(panel: Panel, line: Line) -> list[tuple[str, float, float | None]]:
    """Of a curve each published round that we have, the last and the best; else every point."""
    theirs = dict(line.published)
    rows: list[tuple[str, float, float | None]] = []
    if panel.x_label == "round":
        ours = dict(zip(line.x, line.mean, strict=True))
        rows += [(f"round {x}", ours[x], y) for x, y in theirs.items() if x in ours]
        if line.x and line.x[-1] not in theirs:
            rows.append((f"last, {line.x[-1]}", line.mean[-1], None))
        if line.x and panel.y_label == ACCURACY:
            rows.append(("best round", line.best[0], theirs.get("best")))
    elif not line.best:
        for x, last in zip(line.x, line.mean, strict=True):
            rows.append((f"{x}", last, theirs.get(x)))
    else:
        for x, last, best in zip(line.x, line.mean, line.best, strict=True):
            rows += [(f"{x}, last", last, None), (f"{x}, best", best, theirs.get(x))]
    return rows


def draw(panels: Sequence[Panel], title: str) -> Canvas:
    """Up to three panels in a row.

    Published numbers are crosses in their line's colour, best rounds stand at the edge.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    canvas = new_canvas(max(8.0, 1.0 + 4.6 * columns), 0.6 + 3.6 * rows, title)
    places = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return canvas


def _draw_panel(axes: Axes, panel: Panel) -> None:
    marks = dict.fromkeys(x for line in panel.lines for x in line.x)
    has_words = any(isinstance(x, str) for x in marks)
    order = {x: float(place if has_words else x) for place, x in enumerate(marks)}
    for number, line in enumerate(panel.lines):
        _draw_line(axes, panel, line, number, order)
    for number, level in enumerate(panel.levels):
        look: dict[str, Any] = {"color": GREY, "linestyle": ("--", ":")[number % 2]}
        axes.axhline(level.value, label=level.label, linewidth=1.2, **look)
        if level.published is not None:
            _mark_edge(axes, level.published, GREY)
    if panel.log_x:
        axes.set_xscale("log")
    if has_words or panel.log_x:
        axes.set_xticks(list(order.values()), [str(x) for x in order])
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.x_label == "round":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    _label(axes, panel)


def _draw_line(
    axes: Axes, panel: Panel, line: Line, number: int, order: Mapping[Number, float]
) -> None:
    """With what was published of it: points, and its best round at the edge."""
    colour, x = colour_of(number), [order[each] for each in line.x]
    Curve(line.label, x, line.mean, line.low, line.high).draw(axes, number, dots_below=12)
    if panel.x_label != "round" and line.best:
        axes.plot(x, line.best, "--", color=colour, linewidth=1)
    known: list[tuple[Number, float]] = []
    for place, y in line.published:
        is_within = not isinstance(place, str) and place <= max(x, default=0)
        if place in order or is_within:
            known.append((order.get(place, place), y))
    axes.plot([place for place, _ in known], [y for _, y in known], "x", color=colour, ms=6)
    best = dict(line.published).get("best")
    if best is not None:
        _mark_edge(axes, best, colour)


def _mark_edge(axes: Axes, y: float, colour: str) -> None:
    axes.plot(1, y, "<", color=colour, ms=6, transform=axes.get_yaxis_transform(), clip_on=False)


def _label(axes: Axes, panel: Panel) -> None:
    """Titles, the legend, and what the marks mean that are there."""
    published = {x for line in panel.lines for x, _ in line.published}
    has_best = panel.x_label != "round" and any(line.best for line in panel.lines)
    marks = []
    if has_best:
        marks.append("dashed: best round")
    if published - {"best"}:
        marks.append("x: published best round" if has_best else "x: published")
    if "best" in published or any(level.published is not None for level in panel.levels):
        marks.append("<: published best round")
    tidy_axes(axes, panel.title + (f"  ({', '.join(marks)})" if marks else ""))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.legend(fontsize=8, framealpha=0.6)

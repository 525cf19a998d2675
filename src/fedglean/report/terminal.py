"""What a run looks like in a terminal: one live line while it trains, tables when it is done.

Where nobody watches (a pipe, a log file) the live line becomes a few plain ones.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import torch
from rich.box import ROUNDED
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedglean.report.tracker import Lines
from fedglean.runs.run import Line, Runs, Spread

#: Where nobody watches: lines per run, and the silence in seconds that is broken by one more.
PLAIN_LINES, PLAIN_SECONDS = 5, 60.0


def screen() -> Console:
    """Standard output; wide where no terminal folds it, for `grep` and log files."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=160, highlight=False)


class Terminal:
    """A tracker that shows rounds while they are trained, on standard error."""

    def __init__(self, label: str | None = None, console: Console | None = None) -> None:
        self.label = label
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None

    def begin(self, runs: Runs) -> None:
        engine = runs.config.engine
        compiles = engine.compile and engine.device != "cpu" and torch.cuda.is_available()
        start = "compiling, which takes minutes" if compiles else "starting"
        if self.label is None:
            self.label = runs.name + (f", {len(runs)} seeds" if len(runs) > 1 else "")
        self.rounds = runs.config.rounds
        self.began = self.shown = time.monotonic()
        self.words = RoundWords(self.rounds)
        if self.console.is_terminal:
            self.bar = _bar(self.console)
            self.bar.start()
            self.bar.add_task(self.label, total=self.rounds, state=start)
        elif compiles:
            self._print(start)

    def round(self, lines: Lines) -> None:
        line = mean_line(list(lines.values()))
        state = self.words.of(line)
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=line["round"], state=state)
            return
        now = time.monotonic()
        is_final = bool(line.get("final"))
        is_due = line["round"] in self._due() or now - self.shown >= PLAIN_SECONDS
        if is_due or is_final:
            where = "after the last round" if is_final else f"round {line['round']}/{self.rounds}"
            self._print(f"{where}, {state}, {duration(now - self.began)} so far")
            self.shown = now

    def end(self, runs: Runs) -> None:
        if self.bar is not None:
            if not self.bar.tasks[0].completed:  # it was finished before
                self.bar.remove_task(self.bar.tasks[0].id)
            self.bar.stop()

    def _due(self) -> set[int]:
        parts = range(1, PLAIN_LINES + 1)
        return {max(1, self.rounds * part // PLAIN_LINES) for part in parts}

    def _print(self, text: str) -> None:
        self.console.print(f"{self.label}: {text}", highlight=False, soft_wrap=True)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(20),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    )


class RoundWords:
    """Puts rounds into words; remembers the last accuracy for those without a test.

    Time left follows from the median of the last rounds: the first ones may compile for minutes.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.latest = time.monotonic()
        self.seconds = deque[float](maxlen=20)
        self.accuracy = ""

    def of(self, line: Line) -> str:
        now = time.monotonic()
        self.seconds.append(now - self.latest)
        self.latest = now
        if line.get("accuracy"):
            self.accuracy = f"accuracy {percent(next(iter(line['accuracy'].values())))}"
        words = [self.accuracy]
        share = line.get("pseudo", {}).get("confident_share")
        if share is not None:
            words.append(f"confident {percent(share)}")
        if line["round"] < self.rounds:
            left = median(self.seconds) * (self.rounds - line["round"])
            words.append(f"{duration(left)} left")
        return ", ".join(filter(None, words))


def mean_line(lines: Sequence[Line]) -> Line:
    """A round of several seeds as one line: the means over them."""
    if len(lines) == 1:
        return lines[0]
    merged: dict[str, Any] = {"round": lines[0]["round"], "final": lines[0].get("final", False)}
    for part in ("accuracy", "pseudo"):
        tables = [line[part] for line in lines if line.get(part)]
        for name in tables[0] if tables else ():
            values = [table[name] for table in tables if name in table]
            merged.setdefault(part, {})[name] = fmean(values)
    return merged


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def size(count: int) -> str:
    """Bytes as people say them."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def results_table(runs: Runs) -> Table:
    """A row a predictor: the last round and the best one in columns of their own; of several seeds
    mean and standard deviation, the worst and the best seed in brackets.
    """
    if len(runs) > 1:
        table = _table(runs.title, "predictor", "last >", "best >")
        for name in runs.names:
            last, best = runs.score(name)
            table.add_row(name, _with_deviation(last.spread), _with_deviation(best.spread))
        table.caption = f"{duration(runs.seconds)} for {len(runs)} seeds"
        return table
    table = _table(runs.title, "predictor", "last >", "best >", "in round >")
    for name in runs.names:
        last, best = runs.score(name)
        table.add_row(name, percent(last.accuracy), percent(best.accuracy), str(best.round))
    down, up = runs.bytes_sent
    sent = f"{size(down)} down, {size(up)} up" if down or up else "nothing sent"
    table.caption = f"{duration(runs.seconds)}, {sent}"
    if refused := sum(len(line.get("refused", ())) for line in runs.history):
        table.caption += f", {refused} uploads refused"
    return table


def demo_table(results: Mapping[str, Runs], title: str) -> Table:
    """A row a label; over several seeds the mean, with the worst and the best seed in brackets."""
    table = _table(title, "", "last >", "best >", "seconds >")
    for label, runs in results.items():
        cells = [_with_range(score.spread, len(runs)) for score in (runs.last, runs.best)]
        table.add_row(label, *cells, f"{runs.seconds / len(runs):.1f}")
    return table


def _with_deviation(spread: Spread) -> str:
    mean, deviation = 100 * spread.mean, 100 * spread.deviation
    return f"{mean:.1f} ± {deviation:.1f} % ({_range(spread)})"


def _with_range(spread: Spread, seeds: int) -> str:
    return percent(spread.mean) + (f" ({_range(spread)})" if seeds > 1 else "")


def _range(spread: Spread) -> str:
    return f"{100 * spread.worst:.1f}-{100 * spread.best:.1f}"


def names_table(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """Names with a line each, without a frame, so that `grep` finds whole lines; a name is never
    folded.
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        padding=(0, 2, 0, 0),
    )
    for place, row in enumerate(rows):
        if place == 0:
            for column in range(len(row)):
                table.add_column(no_wrap=column == 0)
        table.add_row(*map(escape, row))
    return table


def _table(title: str, *headings: str) -> Table:
    """A heading that ends in ">" is of a column of numbers."""
    table = Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=ROUNDED,
    )
    for heading in headings:
        right = heading.endswith(" >")
        table.add_column(
            heading.removesuffix(" >"), justify="right" if right else "left", no_wrap=right
        )
    return table

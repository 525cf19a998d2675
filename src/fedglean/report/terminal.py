"""What a run looks like in a terminal: one live line while it trains, tables when it is done.

Where nobody watches (a pipe, a log file) the live line becomes a few plain ones.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import torch
from rich.box import ROUNDED, Box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedglean.report.tracker import Lines
from fedglean.runs.run import Line, Runs, Spread

#: Where nobody watches: lines per run, and the silence in seconds that is broken by one more.
PLAIN_LINES, PLAIN_SECONDS = 5, 60.0


def screen() -> Console:
    """Standard output."""
    console = Console(highlight=False)
    return console if console.is_terminal else Plain(width=160, highlight=False)


class Plain(Console):
    """For `grep` and log files: wide, because no terminal folds it, and no line ends in blanks."""

    def print(self, *things: Any, **options: Any) -> None:
        with self.capture() as printed:
            super().print(*things, **options)
        for line in printed.get().splitlines():
            print(line.rstrip())


class Terminal:
    """A tracker that shows rounds while they are trained, on standard error.

    Time left follows from the median of the last rounds: the first ones may compile for minutes.
    """

    def __init__(self, label: str | None = None, console: Console | None = None) -> None:
        self.label = label
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None
        self.seconds = deque[float](maxlen=20)
        self.accuracy = ""

    def begin(self, runs: Runs) -> None:
        engine = runs.config.engine
        compiles = engine.compile and engine.device != "cpu" and torch.cuda.is_available()
        state = "compiling, which takes minutes" if compiles else "starting"
        if self.label is None:
            self.label = runs.name + (f", {len(runs)} seeds" if len(runs) > 1 else "")
        self.rounds = runs.config.rounds
        parts = range(1, PLAIN_LINES + 1)
        self.due = {max(1, self.rounds * part // PLAIN_LINES) for part in parts}
        self.began = self.latest = self.shown = time.monotonic()
        if self.console.is_terminal:
            self.bar = _bar(self.console)
            self.bar.start()
            self.bar.add_task(self.label, total=self.rounds, state=state)
        elif compiles:
            self._print(state)

    def round(self, lines: Lines) -> None:
        line = mean_line(list(lines.values()))
        now = time.monotonic()
        self.seconds.append(now - self.latest)
        self.latest = now
        state = self._words(line)
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=line["round"], state=state)
            return
        is_final = bool(line.get("final"))
        is_due = line["round"] in self.due or now - self.shown >= PLAIN_SECONDS
        if is_due or is_final:
            where = "after the last round" if is_final else f"round {line['round']}/{self.rounds}"
            self._print(f"{where}, {state}, {duration(now - self.began)} so far")
            self.shown = now

    def end(self, runs: Runs) -> None:
        if self.bar is not None:
            if not self.bar.tasks[0].completed:  # it was finished before
                self.bar.remove_task(self.bar.tasks[0].id)
            self.bar.stop()

    def _words(self, line: Line) -> str:
        """What is told of a round; of one without a test, the accuracy of the last one."""
        if line.get("accuracy"):
            self.accuracy = f"accuracy {percent(next(iter(line['accuracy'].values())))}"
        words = [self.accuracy] if self.accuracy else []
        share = line.get("pseudo", {}).get("confident_share")
        if share is not None:
            words.append(f"confident {percent(share)}")
        if line["round"] < self.rounds:
            left = median(self.seconds) * (self.rounds - line["round"])
            words.append(f"{duration(left)} left")
        return ", ".join(words)

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
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: int) -> str:
    """Bytes as people say them."""
    if count < 1000:
        return f"{count} B"
    value = count / 1000
    for unit in ("kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def results_table(runs: Runs) -> Table:
    """A row a predictor: the last round and the best one in columns of their own."""
    several = len(runs) > 1
    headings = ["predictor", "last >", "best >"]
    if not several:
        headings.append("in round >")
    table = _table(runs.title, *headings)
    for name in runs.names:
        last, best = runs.score(name)
        cells = [spread_text(score.spread, len(runs), " %") for score in (last, best)]
        if not several:
            cells.append(str(best.round))
        table.add_row(name, *cells)
    if several:
        table.caption = f"{duration(runs.seconds)} for {len(runs)} seeds"
        return table
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
        cells = []
        for spread in (runs.last.spread, runs.best.spread):
            cells.append(percent(spread.mean) + (f" ({_range(spread)})" if len(runs) > 1 else ""))
        table.add_row(label, *cells, f"{runs.seconds / len(runs):.1f}")
    return table


def spread_text(spread: Spread, seeds: int, unit: str = "") -> str:
    """In per cent; of several seeds mean, deviation, and the worst and the best in brackets."""
    mean = f"{100 * spread.mean:.1f}"
    if seeds == 1:
        return f"{mean}{unit}"
    return f"{mean} ± {100 * spread.deviation:.1f}{unit} ({_range(spread)})"


def _range(spread: Spread) -> str:
    return f"{100 * spread.worst:.1f}-{100 * spread.best:.1f}"


def names_table(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """Names with a line each, so that `grep` finds whole lines; a name is never folded."""
    table = new_table(title, box=None)
    table.show_header, table.padding = False, (0, 2, 0, 0)
    for row in rows:
        while len(table.columns) < len(row):
            table.add_column(no_wrap=not table.columns)
        table.add_row(*map(escape, row))
    return table


def _table(title: str, *headings: str) -> Table:
    """A heading that ends in ">" is of a column of numbers."""
    table = new_table(title)
    for heading in headings:
        name = heading.removesuffix(" >")
        is_number = name != heading
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def new_table(title: str, box: Box | None = ROUNDED) -> Table:
    """With its title on the left above it."""
    look: dict[str, Any] = {"title_justify": "left", "caption_justify": "left", "box": box}
    return Table(title=escape(title), title_style="bold", **look)

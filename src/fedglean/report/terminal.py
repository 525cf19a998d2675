"""What a run looks like in a terminal: one live line while it trains, tables when it is done.

Where nobody watches (a pipe, a log file) the live line becomes a few plain ones.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, median, stdev
from typing import Any, Protocol

import torch
from rich.box import ROUNDED
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedglean.runs.config import Config
from fedglean.runs.rounds import OnRound, OnRounds

Line = Mapping[str, Any]
#: Where nobody watches: lines per run, and the silence in seconds that is broken by one more.
PLAIN_LINES, PLAIN_SECONDS = 5, 60.0


class Score(Protocol):
    """An accuracy and the round it was reached in."""

    @property
    def round(self) -> int: ...
    @property
    def accuracy(self) -> float: ...


class Result(Protocol):
    """What is shown of a run."""

    @property
    def history(self) -> Sequence[Line]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bytes_sent(self) -> tuple[int, int]: ...
    def score(self, name: str) -> tuple[Score, Score]: ...


def screen() -> Console:
    """Standard output; wide where no terminal folds it, for `grep` and log files."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=160, highlight=False)


@contextmanager
def progress(
    console: Console, label: str, config: Config, quiet: bool = False
) -> Iterator[OnRound]:
    """A function to call after each round, which shows it for as long as the context lasts."""
    compiles = config.engine.compile and config.engine.device != "cpu" and torch.cuda.is_available()
    start = "compiling, which takes minutes" if compiles else "starting"
    if quiet:
        yield lambda line: None
    elif console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(label, total=config.rounds, state=start)
            yield _live(bar, task, config.rounds)
            if not bar.tasks[0].completed:  # it was finished before
                bar.remove_task(task)
    else:
        if compiles:
            console.print(f"{label}: {start}", highlight=False, soft_wrap=True)
        yield _plain(console, label, config.rounds)


@contextmanager
def rounds_shown(label: str, config: Config, seeds: int, quiet: bool) -> Iterator[OnRounds]:
    """`progress` of several seeds, on standard error."""
    name = label + (f", {seeds} seeds" if seeds > 1 else "")
    with progress(Console(stderr=True), name, config, quiet) as on_round:
        yield means(on_round)


def means(on_round: OnRound) -> OnRounds:
    return lambda lines: on_round(mean_line(lines) if len(lines) > 1 else lines[0])


def _bar(console: Console) -> Progress:
    columns = ("[bold]{task.description}", "{task.completed}/{task.total}")
    texts = [TextColumn(column) for column in columns]
    return Progress(
        texts[0],
        BarColumn(20),
        texts[1],
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    )


def _live(bar: Progress, task: TaskID, rounds: int) -> OnRound:
    told = _teller(rounds)

    def on_round(line: dict[str, Any]) -> None:
        bar.update(task, completed=line["round"], state=told(line))

    return on_round


def _plain(console: Console, label: str, rounds: int) -> OnRound:
    due = {max(1, rounds * part // PLAIN_LINES) for part in range(1, PLAIN_LINES + 1)}
    told, began = _teller(rounds), time.monotonic()
    shown = began

    def on_round(line: dict[str, Any]) -> None:
        nonlocal shown
        state, now = told(line), time.monotonic()
        final = line.get("final")
        if line["round"] in due or final or now - shown >= PLAIN_SECONDS:
            where = "after the last round" if final else f"round {line['round']}/{rounds}"
            console.print(
                f"{label}: {where}, {state}, {duration(now - began)} so far",
                highlight=False,
                soft_wrap=True,
            )
            shown = now

    return on_round


def _teller(rounds: int) -> Callable[[Line], str]:
    """Puts a round into words; remembers the last accuracy for rounds without a test.

    Time left follows from the median of the last rounds: the first ones may compile for minutes.
    """
    began, accuracy, taken = time.monotonic(), "", deque[float](maxlen=20)

    def tell(line: Line) -> str:
        nonlocal began, accuracy
        now = time.monotonic()
        taken.append(now - began)
        began = now
        if line.get("accuracy"):
            accuracy = f"accuracy {percent(next(iter(line['accuracy'].values())))}"
        share = line.get("pseudo", {}).get("confident_share")
        confident = "" if share is None else f"confident {percent(share)}"
        left = median(taken) * (rounds - line["round"])
        remaining = f"{duration(left)} left" if line["round"] < rounds else ""
        return ", ".join(filter(None, (accuracy, confident, remaining)))

    return tell


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


def result_table(result: Result, title: str) -> Table:
    """A row a predictor: the last round and the best one in columns of their own."""
    table = _table(title, "predictor", "last >", "best >", "in round >")
    for name in result.names:
        last, best = result.score(name)
        table.add_row(name, percent(last.accuracy), percent(best.accuracy), str(best.round))
    down, up = result.bytes_sent
    refused = sum(len(line.get("refused", ())) for line in result.history)
    sent = f"{size(down)} down, {size(up)} up" if down or up else "nothing sent"
    table.caption = f"{duration(result.seconds)}, {sent}" + (
        f", {refused} uploads refused" if refused else ""
    )
    return table


def mean_line(lines: Sequence[Line]) -> dict[str, Any]:
    """A round of several seeds as one line: the means over them."""
    merged: dict[str, Any] = {"round": lines[0]["round"], "final": lines[0].get("final", False)}
    for part in ("accuracy", "pseudo"):
        tables = [line[part] for line in lines if line.get(part)]
        if tables:
            merged[part] = {
                name: fmean(table[name] for table in tables if name in table) for name in tables[0]
            }
    return merged


def seeds_table(results: Sequence[Result], title: str) -> Table:
    """A row a predictor: mean and standard deviation over the seeds, the worst and the best seed in
    brackets.
    """
    table = _table(title, "predictor", "last >", "best >")
    for name in results[0].names:
        scores = [result.score(name) for result in results]
        last, best = ([score.accuracy for score in part] for part in zip(*scores, strict=True))
        table.add_row(name, _with_deviation(last), _with_deviation(best))
    table.caption = (
        f"{duration(sum(result.seconds for result in results))} for {len(results)} seeds"
    )
    return table


def _with_deviation(values: Sequence[float]) -> str:
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.1f}{spread} % ({100 * min(values):.1f}-{100 * max(values):.1f})"


def comparison(runs: Mapping[str, Sequence[Result]], title: str) -> Table:
    """A row a label; over several seeds the mean, with the worst and the best seed in brackets."""
    table = _table(title, "", "last >", "best >", "seconds >")
    for label, results in runs.items():
        scores = [result.score(result.names[0]) for result in results]
        last, best = ([score.accuracy for score in part] for part in zip(*scores, strict=True))
        seconds = fmean(result.seconds for result in results)
        table.add_row(label, _spread(last), _spread(best), f"{seconds:.1f}")
    return table


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return percent(values[0])
    return f"{percent(fmean(values))} ({100 * min(values):.1f}-{100 * max(values):.1f})"


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

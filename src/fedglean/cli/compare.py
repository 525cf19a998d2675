"""The command that compares: several methods, one split a seed, one table."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedglean.cli.options import assignment, complete, configured_for_all
from fedglean.cli.shared import Quiet, Seeds, Track, app, resumable, with_terminal
from fedglean.errors import ConfigError, RoundError
from fedglean.names import Names
from fedglean.report.terminal import duration, new_table, screen, size, spread_text
from fedglean.runs.compare import Comparison, carry_out
from fedglean.runs.plan import make_plan
from fedglean.runs.verdict import Row, taken_over
from fedglean.sealed import digest

#: Columns beside the label, dropped from the right on a narrow screen.
COLUMNS = ("last round", "best round", "against the best", "sent per seed", "time per seed")


@app.command()
@configured_for_all
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Methods or presets, each with its own settings if wanted, as in "
            "semifl:threshold=0.8,epochs=2.",
            autocompletion=complete("METHODS", "PRESETS"),
        ),
    ],
    options: dict[str, Any],
    seeds: Seeds = 3,
    out: Annotated[
        Path | None, typer.Option(help="Where the runs go; by default a folder in runs/.")
    ] = None,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same splits, and say which is best.

    It also says whether the unlabelled clients helped. If it is interrupted, the same command
    continues where it stopped.
    """
    plan = make_plan(_settings_of_each(methods, options.get("use")), seeds, options)
    mark = digest(plan.mark().encode())[:8]
    folder = out or Path("runs", f"compare-{plan.shared.data.name}-{mark}")
    for note in plan.notes:
        print(f"note: {note}", flush=True)
    with resumable(folder):
        show_comparison(carry_out(plan, folder, with_terminal(track, quiet)))


def _settings_of_each(words: list[str], use: Path | None) -> dict[str, dict[str, Any]]:
    presets = Names.of(use).tables["PRESETS"]
    named: dict[str, dict[str, Any]] = {}
    for word in words:
        if word in named:
            how = f"give one of the two its own setting, as in {word}:rate=0.1"
            raise ConfigError(f"'{word}' is named twice; {how}")
        name, colon, settings = word.partition(":")
        if colon and "=" not in settings.partition(",")[0]:
            how = f"write it as {name}:threshold=0.8,epochs=2"
            raise ConfigError(f"'{word}' names a setting without a value; {how}")
        kind = "preset" if name in presets else "method"
        named[word] = {kind: name, **dict(map(assignment, _assignments(settings)))}
    return named


def _assignments(text: str) -> list[str]:
    """`a=1,b=2`; a piece without `=` belongs to the value before it, which may be a list."""
    parts: list[str] = []
    for piece in filter(None, text.split(",")):
        if "=" in piece or not parts:
            parts.append(piece)
        else:
            parts[-1] += f",{piece}"
    return parts


def show_comparison(found: Comparison) -> None:
    paper = screen()
    paper.print(_table(found, paper.width))
    for label, reason in found.failed.items():
        print(f"{label} did not finish: {reason}")
    paper.print(found.answer, markup=False, soft_wrap=not paper.is_terminal)
    if found.folder is not None:
        print(f"runs:    {found.folder}/*/seed-*\npicture: {found.folder / 'curves.png'}")
        if (page := found.folder / "report.html").exists():
            print(f"report:  {page}")
    if found.failed:
        raise typer.Exit(RoundError.exit_code)


def _table(found: Comparison, width: int) -> Table:
    """The last and the best round in columns of their own.

    On a narrow screen the brackets move to a second line, and columns are dropped.
    """
    longest = max(len(row.label) for row in found.rows)
    is_narrow = width < longest + 110
    columns = COLUMNS[: _fitting(width)]
    table = new_table(_headline(found), SIMPLE_HEAD if is_narrow else ROUNDED)
    table.add_column("", overflow="fold", min_width=min(12, longest))
    for heading in columns:
        if is_narrow:
            heading = heading.replace(" ", "\n", 1)
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        cells = _cells(found, row)[: len(columns)]
        if is_narrow:
            cells = [cell.replace(" (", "\n(") for cell in cells]
        name = escape(row.label)
        table.add_row(f"[bold]{name}[/bold]" if row.label == found.best else name, *cells)
    table.caption = "test accuracy in %"
    if len(found.plan.seeds) > 1:
        table.caption += ", mean ± deviation (worst-best)"
    gaps = [row.against_best for row in found.rows if row.against_best]
    if gaps and "against the best" in columns:
        table.caption += f"; differences with 95 % intervals over {taken_over(gaps)}"
    return table


def _fitting(width: int) -> int:
    """How many columns there is room for."""
    for least, columns in ((90, 5), (66, 3), (46, 2)):
        if width >= least:
            return columns
    return 1


def _cells(found: Comparison, row: Row) -> list[str]:
    seeds = len(found.plan.seeds)
    gap = "the best" if row.label == found.best else str(row.against_best)
    sent = size(round(row.bytes_sent)) if row.bytes_sent else "nothing"
    if not all(each.federated for each in found.plan.entries if each.label == row.label):
        sent = "-"
    last, best = spread_text(row.last, seeds), spread_text(row.best, seeds)
    return [last, best, gap, sent, duration(row.seconds)]


def _headline(found: Comparison) -> str:
    seeds = len(found.plan.seeds)
    rounds = sorted({entry.config.rounds for entry in found.plan.entries})
    played = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
    return f"{found.plan.title}; {seeds} seed{'s' if seeds > 1 else ''}, {played} rounds"

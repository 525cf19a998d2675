"""The command that compares: several methods, one split a seed, one table."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedglean.cli.options import assignment, configured_for_all
from fedglean.cli.shared import Quiet, Track, app, resumable, with_terminal
from fedglean.errors import ConfigError, RoundError
from fedglean.names import Names
from fedglean.report.terminal import duration, screen, size
from fedglean.report.tracker import Trackers, trackers_of
from fedglean.runs.compare import Comparison, carry_out
from fedglean.runs.plan import Plan, make_plan, read_record
from fedglean.runs.run import Spread
from fedglean.runs.verdict import taken_over
from fedglean.sealed import digest


@app.command()
@configured_for_all
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="Methods or presets, each with its own settings if wanted, as in "
            "semifl:threshold=0.8,epochs=2."
        ),
    ],
    options: dict[str, Any],
    seeds: Annotated[
        int,
        typer.Option(min=1, help="How many seeds to train side by side, counting up from --seed."),
    ] = 3,
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
    plan = make_plan(_named(methods, options.get("use")), seeds, options)
    mark = digest(plan.mark().encode())[:8]
    folder = out or Path("runs", f"compare-{plan.shared.data.name}-{mark}")
    for note in plan.notes:
        print(f"note: {note}", flush=True)
    with resumable(folder):
        show_comparison(_carried_out(plan, folder, track, quiet))


def go_on_comparing(folder: Path, track: str | None, quiet: bool) -> None:
    """Continue a comparison for `fedglean resume`."""
    with resumable(folder):
        show_comparison(_carried_out(read_record(folder).plan(), folder, track, quiet))


def _carried_out(plan: Plan, folder: Path, track: str | None, quiet: bool) -> Comparison:
    def make_trackers() -> Trackers:
        return Trackers(trackers_of(with_terminal(track, quiet), plan.shared.names))

    return carry_out(plan, folder, make_trackers)


def _named(words: list[str], use: Path | None) -> dict[str, dict[str, Any]]:
    presets = Names.of(use).tables["PRESETS"]
    named: dict[str, dict[str, Any]] = {}
    for word in words:
        if word in named:
            raise ConfigError(
                f"'{word}' is named twice; give one of the two its own setting, as in "
                f"{word}:rate=0.1"
            )
        name, colon, settings = word.partition(":")
        if colon and "=" not in settings.partition(",")[0]:
            raise ConfigError(
                f"'{word}' names a setting without a value; write it as "
                f"{name}:threshold=0.8,epochs=2"
            )
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
    """The last and the best round in columns of their own; the best method is chosen by its last
    round.

    On a narrow screen the brackets move to a second line, and columns are dropped from the right.
    """
    seeds = len(found.plan.seeds)
    narrow = width < max(len(row.label) for row in found.rows) + 110
    box = SIMPLE_HEAD if narrow else ROUNDED
    table = Table(
        title=escape(_headline(found)),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box,
    )
    table.add_column(
        "", overflow="fold", min_width=min(12, max(len(row.label) for row in found.rows))
    )
    shown = 5 if width >= 90 else 3 if width >= 66 else 2 if width >= 46 else 1
    for heading in (
        "last round",
        "best round",
        "against the best",
        "sent per seed",
        "time per seed",
    )[:shown]:
        table.add_column(
            heading.replace(" ", "\n", 1) if narrow else heading, justify="right", no_wrap=True
        )
    apart = [each.label for each in found.plan.entries if not each.federated]
    for row in found.rows:
        gap = "the best" if row.label == found.best else str(row.against_best)
        name = f"[bold]{escape(row.label)}[/bold]" if row.label == found.best else escape(row.label)
        sent = (
            "-"
            if row.label in apart
            else size(round(row.bytes_sent))
            if row.bytes_sent
            else "nothing"
        )
        cells = [
            _spread(row.last, seeds),
            _spread(row.best, seeds),
            gap,
            sent,
            duration(row.seconds),
        ][:shown]
        table.add_row(name, *(cell.replace(" (", "\n(") for cell in cells) if narrow else cells)
    over = taken_over(row.against_best for row in found.rows if row.against_best and shown > 2)
    how = ", mean ± deviation (worst-best)" if seeds > 1 else ""
    table.caption = f"test accuracy in %{how}" + (
        f"; differences with 95 % intervals over {over}" if over else ""
    )
    return table


def _headline(found: Comparison) -> str:
    seeds = len(found.plan.seeds)
    rounds = sorted({entry.config.rounds for entry in found.plan.entries})
    played = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{rounds[0]}"
    return f"{found.plan.title}; {seeds} seed{'s' if seeds > 1 else ''}, {played} rounds"


def _spread(spread: Spread, seeds: int) -> str:
    if seeds == 1:
        return f"{100 * spread.mean:.1f}"
    low, high = 100 * spread.worst, 100 * spread.best
    return f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f} ({low:.1f}-{high:.1f})"

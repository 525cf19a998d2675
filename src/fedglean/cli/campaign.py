"""The command for many runs: from one file, several at a time, as far as the time goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import ROUNDED
from rich.markup import escape
from rich.table import Table

from fedglean.cli.options import assignment
from fedglean.cli.shared import INTERRUPTED, DataRoot, SetForAll, Trust, app, ended, say
from fedglean.errors import RoundError
from fedglean.report.terminal import duration, percent, screen
from fedglean.runs.campaign import PlannedRun, carry_out, plan_runs, read_campaign, write_results


@app.command()
def campaign(
    file: Annotated[
        Path, typer.Argument(help="The campaign in TOML; docs/howto/campaign.md has one.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the runs go; by default runs/NAME of the file.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="How many runs at a time; the file says it, too.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so long; 0 shows how far it is.")
    ] = None,
    data_root: DataRoot = None,
    set: SetForAll = None,
    trust: Trust = False,
) -> None:
    """Train many presets or methods and seeds, and write what came out into one table.

    The most worth for its time is trained first. The same command goes on with what is left.
    """
    plan = read_campaign(file)
    folder = out or Path("runs", file.stem)
    options = dict(map(assignment, set or []))
    if data_root is not None:
        options["data.root"] = str(data_root)
    planned = plan_runs(plan, folder, options, trust)
    try:
        failures = carry_out(planned, parallel or plan.parallel, minutes, say)
    except KeyboardInterrupt as error:
        raise ended("stopped; the same command continues it", INTERRUPTED) from error
    finally:
        write_results(planned, folder / "runs.csv")
    screen().print(_table(planned))
    for failure in failures:
        say(f"failed: {failure.entry.name}: {failure.said} (all it said: {failure.entry.log})")
    if (folder / "runs.csv").exists():
        say(f"results: {folder / 'runs.csv'}")
    if failures:
        raise typer.Exit(RoundError.exit_code)


def _table(planned: Sequence[PlannedRun]) -> Table:
    """How far each run is; in the title what all of that comes to."""
    table = Table(box=ROUNDED, title_justify="left", title_style="bold")
    table.add_column("run", overflow="fold")
    for heading in ("rounds", "last", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    done, begun, minutes_left = 0, 0, 0.0
    for entry in planned:
        run, rounds = entry.run(), entry.config.rounds
        played = run.history[-1]["round"] if run and run.history else 0
        if run is not None and run.finished:
            done += 1
        else:
            begun += played > 0
            minutes_left += entry.cell.minutes * (1 - played / rounds)
        shown = ["", ""]
        if run is not None and run.tested:
            shown = [percent(score.accuracy) for score in run.score()]
        table.add_row(escape(entry.name), f"{played}/{rounds}", *shown)
    table.title = f"{done} of {len(planned)} runs are done, {begun} have begun"
    if done < len(planned):
        table.title += f"; by the file's minutes {duration(60 * minutes_left)} of runs are left"
    return table

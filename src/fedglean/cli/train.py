"""Commands that train: run, resume, demo."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedglean.cli.compare import go_on_comparing
from fedglean.cli.deploy import resume_hub
from fedglean.cli.options import configured
from fedglean.cli.shared import Quiet, Trust, app, free, resumable
from fedglean.errors import StorageError
from fedglean.report.picture import curves
from fedglean.report.terminal import (
    comparison,
    means,
    progress,
    result_table,
    rounds_shown,
    screen,
    seeds_table,
)
from fedglean.runs.api import resume as go_on
from fedglean.runs.api import resume_seeds as go_on_seeds
from fedglean.runs.api import train, train_seeds
from fedglean.runs.config import configure
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, check_holds_no_several, kind_of
from fedglean.runs.result import Result
from fedglean.runs.seeds import SeedsResult, members
from fedglean.runs.verdict import heard
from fedglean.sealed import make_folder, write_whole
from fedglean.trust import allow

DEMO: dict[str, dict[str, Any]] = {
    "labels only": {"method": "hub-only", "labels": "hub:20"},
    "SemiFL": {"method": "semifl", "labels": "hub:20"},
    "all labels": {"method": "hub-all", "labels": "all-hub", "batch": 50, "epochs": 1},
}


@app.command()
@configured
def run(
    options: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option(help="The run folder; by default a new one in runs/.")
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="How many seeds to train side by side, counting up from --seed."),
    ] = 1,
    quiet: Quiet = False,
) -> None:
    """Train a method; configuration, metrics, model and picture go into a run folder."""
    config = configure(**options)
    if seeds > 1:
        folder = out or free(Path("runs", f"{config.method}-{config.data.name}-{seeds}-seeds"))
        with resumable(folder), rounds_shown(config.method, config, seeds, quiet) as on_rounds:
            group = train_seeds(config, seeds, folder, on_rounds)
        _show_seeds(group)
        return
    folder = out or free(Path("runs", f"{config.method}-{config.data.name}-seed{config.seed}"))
    with resumable(folder), rounds_shown(config.method, config, 1, quiet) as on_rounds:
        result = train(config, folder, lambda line: on_rounds([line]))
    _show(result)


@app.command()
def resume(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of a run, of several seeds, of a comparison or of a hub."),
    ],
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run, or show the result of a finished one."""
    if trust:
        allow(folder)
    kind = kind_of(folder)
    if kind is Kind.FEDERATION:
        raise typer.Exit(resume_hub(folder))
    if kind is Kind.COMPARISON:
        go_on_comparing(folder, quiet)
        return
    several = kind is Kind.SEEDS
    places = members(folder) if several else [folder]
    config = RunFolder(places[0]).config()
    played = 0
    with resumable(folder), rounds_shown(config.method, config, len(places), quiet) as on_rounds:

        def count(lines: list[dict[str, Any]]) -> None:
            nonlocal played
            played += 1
            on_rounds(lines)

        outcome = (
            go_on_seeds(folder, count) if several else go_on(folder, lambda line: count([line]))
        )
    if not played:
        print(f"{folder} is already finished")
    _show(outcome) if isinstance(outcome, Result) else _show_seeds(outcome)


def _show(result: Result) -> None:
    screen().print(result_table(result, result.title))
    _show_silence([result])
    if result.folder is not None:
        _show_places("run folder:", f"{result.folder}", result.folder)


def _show_seeds(group: SeedsResult) -> None:
    screen().print(seeds_table(group.results, group.title))
    _show_silence(group.results)
    if group.folder is not None:
        _show_places("run folders:", f"{group.folder}/seed-*", group.folder)


def _show_silence(results: Sequence[Result]) -> None:
    if not any(heard(each.history) for each in results):
        print(
            "note: no client ever sent an update; either none had anything to train on, or the "
            "method returns no Upload"
        )


def _show_places(heading: str, runs: str, folder: Path) -> None:
    print(heading, runs)
    if (picture := folder / "curves.png").is_file():  # which may have been impossible to write
        print("picture:".ljust(len(heading)), picture)


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to train.")] = 3,
    out: Annotated[
        Path, typer.Option(help="Where the runs go; an earlier demo there is replaced.")
    ] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Compare SemiFL on digits and 20 labels with those labels alone, and with all labels."""
    _cleared(out)
    runs: dict[str, list[Result]] = {}
    for label, options in DEMO.items():
        # Stacked, for then the seeds run side by side, and the numbers do not depend on what `auto`
        # finds.
        config = configure(data="digits", clients=20, executor="stack", **options)
        with progress(Console(stderr=True), f"{label:<11}", config, quiet) as on_round:
            runs[label] = train_seeds(config, seeds, out / config.method, means(on_round)).results
    title = "Test accuracy on digits" + (
        f", mean of {seeds} seeds (worst-best)" if seeds > 1 else ""
    )
    screen().print(comparison(runs, title))
    print(
        "picture: "
        f"{curves(runs, out / 'curves.png', '20 labels at the hub, 20 clients without any')}"
    )


def _cleared(out: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    places, mark = [out / options["method"] for options in DEMO.values()], out / "demo.json"
    if not mark.exists() and (any(map(Path.exists, places)) or kind_of(out) is Kind.RUN):
        raise StorageError(
            f"{out} holds runs that are not from a demo; choose another folder with --out"
        )
    check_holds_no_several(out)
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    make_folder(out)
    write_whole(mark, b"{}\n")

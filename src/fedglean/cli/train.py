"""Commands that train: run, resume, demo."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from fedglean.cli.compare import show_comparison
from fedglean.cli.deploy import resume_hub
from fedglean.cli.options import configured
from fedglean.cli.shared import Quiet, Seeds, Track, Trust, app, resumable, with_terminal
from fedglean.errors import StorageError
from fedglean.report.plots import learning_curves
from fedglean.report.terminal import Terminal, demo_table, results_table, screen
from fedglean.report.tracker import Lines, Trackers
from fedglean.runs.api import resume as go_on
from fedglean.runs.api import run as train
from fedglean.runs.config import configure
from fedglean.runs.kinds import Kind, check_holds_no_several, kind_of
from fedglean.runs.run import Runs
from fedglean.runs.seeds import train_seeds
from fedglean.runs.verdict import has_sent
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
    seeds: Seeds = 1,
    track: Track = None,
    quiet: Quiet = False,
) -> None:
    """Train a method; configuration, metrics, model and picture go into a run folder."""
    config = configure(**options)
    which = f"{seeds}-seeds" if seeds > 1 else f"seed{config.seed}"
    folder = out or _free(Path("runs", f"{config.method}-{config.data.name}-{which}"))
    with resumable(folder):
        runs = train(seeds=seeds, config=config, out=folder, track=with_terminal(track, quiet))
    _show(runs)


def _free(folder: Path) -> Path:
    """The folder itself, or with a number behind its name if it exists."""
    number, place = 1, folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place


@app.command()
def resume(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder of a run, of several seeds, of a comparison or of a hub."),
    ],
    track: Track = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run, or show the result of a finished one."""
    if trust:
        allow(folder)
    if kind_of(folder) is Kind.FEDERATION:
        raise typer.Exit(resume_hub(folder))
    rounds: list[Lines] = []
    with resumable(folder):
        found = go_on(folder, rounds.append, with_terminal(track, quiet))
    if isinstance(found, Runs):
        if not rounds:
            print(f"{folder} is already finished")
        _show(found)
    else:
        show_comparison(found)


def _show(runs: Runs) -> None:
    screen().print(results_table(runs))
    if not any(has_sent(run.history) for run in runs):
        print(
            "note: no client ever sent an update; either none had anything to train on, or the "
            "method returns no Upload"
        )
    assert runs.folder is not None, "commands write folders"
    heading, places = "run folder:", f"{runs.folder}"
    if len(runs) > 1:
        heading, places = "run folders:", f"{runs.folder}/seed-*"
    print(heading, places)
    picture = runs.folder / "curves.png"
    if picture.is_file():  # which may have been impossible to write
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
    _clear(out)
    results: dict[str, Runs] = {}
    for label, options in DEMO.items():
        # Stacked: then seeds run side by side, and numbers do not depend on what `auto` finds.
        config = configure(data="digits", clients=20, executor="stack", **options)
        shown = Trackers([] if quiet else [Terminal(f"{label:<11}")])
        results[label] = train_seeds(config, seeds, out / config.method, shown)
    several = f", mean of {seeds} seeds (worst-best)" if seeds > 1 else ""
    screen().print(demo_table(results, f"Test accuracy on digits{several}"))
    title = "20 labels at the hub, 20 clients without any"
    print(f"picture: {learning_curves(results, out / 'curves.png', title)}")


def _clear(out: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    places, mark = [out / options["method"] for options in DEMO.values()], out / "demo.json"
    if not mark.exists() and (any(map(Path.exists, places)) or kind_of(out) is Kind.RUN):
        told = f"{out} holds runs that are not from a demo"
        raise StorageError(f"{told}; choose another folder with --out")
    check_holds_no_several(out)
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    make_folder(out)
    write_whole(mark, b"{}\n")

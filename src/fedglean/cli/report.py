"""Commands that show runs to people: report, watch, tensorboard."""

from pathlib import Path
from typing import Annotated

import typer

from fedglean.cli.shared import app, say
from fedglean.report.events import write_events
from fedglean.report.page import write_page
from fedglean.report.watch import watch as serve

Folders = Annotated[list[Path], typer.Argument(help="Run folders, groups of seeds, or comparisons.")]


@app.command()
def report(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="The page; else report.html in the first folder.")] = None,
    title: Annotated[str | None, typer.Option(help="What the page is called.")] = None,
) -> None:
    """Write one HTML page about runs, which needs nothing but a browser."""
    print(f"page: {write_page(folders, out or folders[0] / 'report.html', title)}")


@app.command()
def watch(
    folders: Folders,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 is any free one.")] = 0,
) -> None:
    """Show the page of runs while they go on, in a browser on this machine."""
    serve(folders, port, say)


@app.command()
def tensorboard(
    folders: Folders,
    out: Annotated[Path | None, typer.Option(help="Where they go; else tensorboard/ in the first folder.")] = None,
) -> None:
    """Write the histories of runs as event files of TensorBoard."""
    place = write_events(folders, out or folders[0] / "tensorboard")
    print(f"event files: {place} (tensorboard --logdir {place})")

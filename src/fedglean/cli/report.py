"""Commands that show runs to people: report, watch, tensorboard."""

from pathlib import Path
from typing import Annotated

import typer

from fedglean.cli.shared import Trust, app, say
from fedglean.report.loggers import write_events
from fedglean.report.page import write_page
from fedglean.report.watch import watch as serve
from fedglean.trust import allow

Folders = Annotated[
    list[Path], typer.Argument(help="Folders of runs, of several seeds or of comparisons.")
]


@app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write; by default report.html in the first folder."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
    trust: Trust = False,
) -> None:
    """Write a report of one or more runs as one HTML page that needs nothing but a browser."""
    place = write_page(folders, out or folders[0] / "report.html", title, trust)
    print(f"page: {place}")


@app.command()
def watch(
    folders: Folders,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 takes any free one.")
    ] = 0,
    trust: Trust = False,
) -> None:
    """Serve the report of runs while they train, for a browser on this machine."""
    for folder in folders if trust else ():
        allow(folder)
    serve(folders, port, say)


@app.command()
def tensorboard(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; by default tensorboard/ in the first folder."),
    ] = None,
) -> None:
    """Write the histories of runs as event files for TensorBoard."""
    place = write_events(folders, out or folders[0] / "tensorboard")
    print(f"event files: {place} (tensorboard --logdir {place})")

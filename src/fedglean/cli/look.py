"""Commands that show what there is: list, config, partition, predict."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedglean.cli.options import configured
from fedglean.cli.shared import Use, app
from fedglean.data.split_file import fitted, save_split
from fedglean.errors import unknown
from fedglean.methods import METHODS
from fedglean.models import NORMS
from fedglean.names import TABLES, activate, brought_by
from fedglean.report.bubbles import bubble_chart, check_drawable, split_table
from fedglean.report.terminal import names_table, percent, screen
from fedglean.runs.config import configure, to_toml
from fedglean.runs.experiment import dataset_of, divide_up
from fedglean.runs.predict import predict as judge
from fedglean_papers.presets import PRESETS


@app.command("config")
@configured
def show_config(options: dict[str, Any]) -> None:
    """Print the whole configuration of a run as TOML."""
    print(to_toml(configure(**options)), end="")


@app.command()
@configured
def partition(
    options: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option(help="Draw who holds what as a bubble chart in this file.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the split in this file, for --split-file.")
    ] = None,
) -> None:
    """Show which client holds how many images of each class, and which of them are labelled."""
    if out is not None:
        check_drawable(out)
    if not {"method", "preset", "file"} & options.keys():
        options["method"] = "semifl"  # any method will do
    config = configure(**options)
    dataset = dataset_of(config.data)
    split = fitted(divide_up(config, dataset), dataset)
    screen().print(split_table(split, dataset.train_labels, dataset.classes))
    if leaked := dataset.leaked():
        print(
            f"{leaked} of {len(dataset.test_images)} test images are among the training images "
            "too, pixel for pixel"
        )
    if out is not None:
        bubble_chart(split, dataset.train_labels, dataset.classes, out)
        print(f"picture: {out}")
    if save is not None:
        save_split(save, split)
        print(f"split:   {save}")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    images: Annotated[list[Path], typer.Argument(help="The images to label.")],
) -> None:
    """Label images with the model of a finished run."""
    found = judge(folder, images, partial(print, file=sys.stderr))
    rows = [(str(each.path), each.label, percent(each.probability)) for each in found]
    screen().print(names_table("", rows))


def _lines(table: str) -> dict[str, str]:
    """The summaries of a table; a name that the package does not bring also shows who brought
    it.
    """
    lines = {}
    for name, row in TABLES[table].known.items():
        holder = brought_by(table, name)
        lines[name] = (
            row.summary if holder is None else f"{row.summary} [{Path(holder.title).name}]".strip()
        )
    return lines


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": partial(_lines, "METHODS"),
    "data": partial(_lines, "DATASETS"),
    "models": lambda: {
        **_lines("MODELS"),
        **{f"norm {name}": text for name, text in dict(NORMS).items()},
    },
    "partitions": partial(_lines, "PARTITIONS"),
    "labels": partial(_lines, "LAYOUTS"),
    "views": lambda: {
        **_lines("VIEWS"),
        **{f"strong = {name}": text for name, text in _lines("STRONG").items()},
    },
}


@app.command("list")
def show_list(
    what: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(LISTS)}, presets, or a method for its settings."),
    ] = None,
    use: Use = None,
) -> None:
    """List methods, data sets, models and everything else that can be named, or the settings of a
    method.
    """
    activate(None if use is None else str(use))
    if what is not None and what not in (*LISTS, *METHODS, "presets"):
        raise unknown("list or method", what, [*LISTS, *METHODS, "presets"])
    paper = screen()
    for name in LISTS if what is None else [what] if what in LISTS else []:
        paper.print(names_table(name, LISTS[name]().items()))
    if what in METHODS:
        paper.print(_settings_table(what))
    for table in _preset_tables() if what == "presets" else ():
        paper.print(table)
    if what is None:
        print(
            f"'fedglean list presets' shows {len(PRESETS)} presets, 'fedglean list METHOD' the "
            "settings of a method."
        )


def _settings_table(method: str) -> Table:
    shown = METHODS[method].defaults.get("settings", {})
    rows = [
        (field.name, str(shown.get(field.name, field.default)), field.metadata.get("help", ""))
        for field in fields(METHODS[method].method)  # type: ignore[arg-type]
    ]
    return names_table(f"settings of {method}: --set NAME=VALUE", rows)


def _preset_tables() -> Iterator[Table]:
    for paper in dict.fromkeys(name.partition("/")[0] for name in PRESETS):
        rows = [
            (
                name,
                ", ".join(f"{key} {number}" for key, number in (preset.published or {}).items()),
                preset.summary,
            )
            for name, preset in PRESETS.items()
            if name.startswith(f"{paper}/")
        ]
        yield names_table(f"{paper}: --preset NAME, published accuracy in %", rows)

"""Commands that show what there is: list, config, partition, predict."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedglean.cli.options import complete, configured
from fedglean.cli.shared import Trust, Use, app
from fedglean.data.split_file import fitted, save_split
from fedglean.errors import unknown
from fedglean.methods import Entry
from fedglean.models import NORMS
from fedglean.names import Names
from fedglean.report.bubbles import bubble_chart, check_drawable, split_table
from fedglean.report.terminal import names_table, percent, screen
from fedglean.runs.config import configure, to_toml
from fedglean.runs.experiment import dataset_of, divide_up
from fedglean.runs.predict import predict as judge
from fedglean.schema import fields_of
from fedglean.studies import Preset


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
    dataset = dataset_of(config)
    split = fitted(divide_up(config, dataset), dataset)
    screen().print(split_table(split, dataset.train_labels, dataset.classes))
    if leaked := dataset.leaked():
        tests = len(dataset.test_images)
        print(f"{leaked} of {tests} test images are among the training images too, pixel for pixel")
    if out is not None:
        bubble_chart(split, dataset.train_labels, dataset.classes, out)
        print(f"picture: {out}")
    if save is not None:
        save_split(save, split)
        print(f"split:   {save}")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, finished or not.")],
    images: Annotated[list[Path], typer.Argument(help="The images to label.")],
    trust: Trust = False,
) -> None:
    """Label images with the model of a run, one line an image; in a pipe, tabs part the values."""
    found = judge(folder, images, partial(print, file=sys.stderr), trust)
    rows = [(str(each.path), each.label, percent(each.probability)) for each in found]
    paper = screen()
    if paper.is_terminal:
        paper.print(names_table("", rows))
        return
    for row in rows:
        print(*row, sep="\t")


#: Lists by name, and the tables that they show.
LISTS: Mapping[str, Sequence[str]] = {
    "methods": ("METHODS",),
    "data": ("DATASETS",),
    "models": ("MODELS",),
    "partitions": ("PARTITIONS",),
    "labels": ("LAYOUTS",),
    "views": ("VIEWS", "STRONG"),
    "trackers": ("TRACKERS",),
}


@app.command("list")
def show_list(
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(LISTS)}, presets, or a method for its settings.",
            autocompletion=complete("METHODS"),
        ),
    ] = None,
    use: Use = None,
) -> None:
    """List methods, data sets, models and all else that has a name, or a method's settings."""
    names = Names.of(use)
    methods, presets = names.tables["METHODS"], names.tables["PRESETS"]
    tables = []
    if what is None:
        tables = [names_table(name, lines_of(names, name)) for name in LISTS]
    elif what in LISTS:
        tables = [names_table(what, lines_of(names, what))]
    elif what in methods:
        tables = [_settings_table(what, methods[what])]
    elif what == "presets":
        tables = _preset_tables(presets)
    else:
        raise unknown("list or method", what, [*LISTS, *methods, "presets"])
    paper = screen()
    for table in tables:
        paper.print(table)
    if what is None:
        print(
            f"'fedglean list presets' shows {len(presets)} presets, 'fedglean list METHOD' the "
            "settings of a method."
        )


def lines_of(names: Names, name: str) -> list[tuple[str, str]]:
    """The summaries of a list, and who brought a name that the package does not."""
    lines = []
    for table in LISTS[name]:
        for key, row in names.tables[table].items():
            holder = names.holder(table, key)
            by = "" if holder is None or not holder.digest else f" [{Path(holder.title).name}]"
            word = f"strong = {key}" if table == "STRONG" else key
            lines.append((word, f"{row.summary}{by}".strip()))
    if name == "models":
        lines += [(f"norm {key}", text) for key, text in NORMS.items()]
    return lines


def _settings_table(method: str, entry: Entry) -> Table:
    shown = entry.defaults.get("settings", {})
    rows = []
    for name, (field, _) in fields_of(entry.method).items():
        rows.append((name, str(shown.get(name, field.default)), field.metadata.get("help", "")))
    return names_table(f"settings of {method}: --set NAME=VALUE", rows)


def _preset_tables(presets: Mapping[str, Preset]) -> list[Table]:
    papers: dict[str, list[tuple[str, str, str]]] = {}
    for name, preset in presets.items():
        paper, _, _ = name.partition("/")
        numbers = ", ".join(f"{key} {number}" for key, number in (preset.published or {}).items())
        papers.setdefault(paper, []).append((name, numbers, preset.summary))
    heading = "--preset NAME, published accuracy in %"
    return [names_table(f"{paper}: {heading}", rows) for paper, rows in papers.items()]

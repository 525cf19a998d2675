"""Commands that show what there is: list, config, partition, predict."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedglean.augment import STRONG, VIEWS
from fedglean.cli.shared import app, configured, screen
from fedglean.config import Config, to_toml
from fedglean.data.catalogue import PUBLISHED
from fedglean.data.labels import LAYOUTS
from fedglean.data.partition import PARTITIONS
from fedglean.data.sources import load
from fedglean.data.split_file import save_split
from fedglean.errors import unknown
from fedglean.experiment import divide_up
from fedglean.methods import METHODS
from fedglean.models import MODELS, NORMS
from fedglean.predict import predict as judge
from fedglean.presets import PRESETS
from fedglean.report.bubbles import bubble_chart, split_table
from fedglean.report.terminal import names_table, percent


@app.command("config")
@configured
def show_config(config: Config) -> None:
    """Print the resolved configuration as TOML."""
    print(to_toml(config), end="")


@app.command()
@partial(configured, otherwise="semifl")
def partition(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="Draw the bubble chart into this file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the split to this file, for --split-file.")] = None,
) -> None:
    """Show who holds what."""
    root = config.data.root
    dataset = load(config.data.name, Path(root) if root else None, config.data.allow_partial)
    split = divide_up(config, dataset)
    screen().print(split_table(split, dataset.train_labels, dataset.classes))
    if out is not None:
        bubble_chart(split, dataset.train_labels, dataset.classes, out)
        print(f"picture: {out}")
    if save is not None:
        save_split(save, split)
        print(f"split:   {save}")


@app.command()
def predict(folder: Path, images: list[Path]) -> None:
    """Label images with the model of a finished run."""
    rows = [(str(each.path), each.label, percent(each.probability)) for each in judge(folder, images)]
    screen().print(names_table("", rows))


def _data_lines() -> dict[str, str]:
    known = {
        name: f"{sum(each.sizes):,} images of {len(each.classes)} classes, from disk; get it with {each.fetch}"
        for name, each in PUBLISHED.items()
    }
    return {
        "digits": "scikit-learn's 1,797 images of 8 x 8 pixels, built in",
        **known,
        "folder": "your own: hub/CLASS/*.png, clients/NAME/** or clients/NAME/CLASS/*",
        "npz": "your own arrays in one .npz file",
    }


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": lambda: {name: entry.summary for name, entry in METHODS.items()},
    "data": _data_lines,
    "models": lambda: {**MODELS, **{f"norm {name}": text for name, text in dict(NORMS).items()}},
    "partitions": lambda: dict(PARTITIONS),
    "labels": lambda: dict(LAYOUTS),
    "views": lambda: {**VIEWS, **{f"strong = {name}": text for name, text in STRONG.items()}},
}


@app.command("list")
def show_list(
    what: Annotated[
        str | None, typer.Argument(help=f"{', '.join(LISTS)}, presets, or a method for its settings.")
    ] = None,
) -> None:
    """Show what there is, a line each."""
    if what is not None and what not in (*LISTS, *METHODS, "presets"):
        raise unknown("list", what, [*LISTS, *METHODS, "presets"])
    paper = screen()
    for name in LISTS if what is None else [what] if what in LISTS else []:
        paper.print(names_table(name, LISTS[name]().items()))
    if what in METHODS:
        paper.print(_settings_table(what))
    for table in _preset_tables() if what == "presets" else ():
        paper.print(table)
    if what is None:
        print(f"{len(PRESETS)} presets: fedglean list presets. Settings of a method: fedglean list METHOD")


def _settings_table(method: str) -> Table:
    shown = METHODS[method].defaults.get("settings", {})
    rows = [
        (field.name, str(shown.get(field.name, field.default)), field.metadata["help"])
        for field in fields(METHODS[method].method)  # type: ignore[arg-type]
    ]
    return names_table(f"settings of {method}: --set NAME=VALUE", rows)


def _preset_tables() -> Iterator[Table]:
    for paper in dict.fromkeys(name.partition("/")[0] for name in PRESETS):
        rows = [
            (name, ", ".join(f"{key} {number}" for key, number in (preset.published or {}).items()), preset.summary)
            for name, preset in PRESETS.items()
            if name.startswith(f"{paper}/")
        ]
        yield names_table(f"{paper}: --preset NAME, published accuracy in %", rows)

"""The command that repeats the papers: their tables, figures and theorems."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedglean.cli.options import assignment, complete
from fedglean.cli.shared import INTERRUPTED, DataRoot, Quiet, SetForAll, Trust, app, ended
from fedglean.errors import UNREADABLE, ConfigError, StorageError, unknown
from fedglean.names import Names
from fedglean.report.terminal import names_table, screen
from fedglean.runs.config import FLAT, INDIFFERENT
from fedglean.studies import Study, StudyOptions
from fedglean.trust import allow


@app.command()
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A table, figure or theorem; without one, all are listed.",
            autocompletion=complete("STUDIES"),
        ),
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            help="Only this part of it, or a pattern such as 'fed*-cifar10-10'; 'list' names all "
            "parts."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to train side by side.")] = 1,
    scale: Annotated[
        float, typer.Option(help="The share of the rounds to train, for a first look.")
    ] = 1.0,
    data_root: DataRoot = None,
    set: SetForAll = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the runs go; by default a folder in runs/reproduce/.")
    ] = None,
    render: Annotated[
        Path | None,
        typer.Option(help="Print this result.json of a table as Markdown and train nothing."),
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a paper's table, figure or theorem, and print our numbers beside the published ones.

    If it is interrupted, the same command continues where it stopped.
    """
    studies = Names.of().tables["STUDIES"]
    if render is not None:
        print(_page(render, studies), end="")
        return
    if what is None:
        _list_studies(studies, cell)
        return
    study = _find(studies, what, cell)
    if cell == "list":
        print("\n".join(study.cells))
        return
    options = tuple(map(assignment, set or []))
    _refuse_senseless(what, study, seeds, scale, options)
    folder = out or Path("runs", "reproduce", _folder(what, seeds, scale, options))
    if trust:
        allow(folder)
    asked = StudyOptions(folder, seeds, scale, cell, data_root, options, quiet)
    try:
        study.run(asked)
    except KeyboardInterrupt as error:
        raise ended("stopped; the same command continues it", INTERRUPTED) from error
    numbers, picture = asked.file("result.json"), asked.file("figure.png")
    print(f"numbers: {numbers if numbers.exists() else folder / 'result.json'}")
    if picture.exists():
        print(f"picture: {picture}")


def _page(path: Path, studies: Mapping[str, Study]) -> str:
    try:
        study = studies.get(json.loads(path.read_bytes())["study"])
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except UNREADABLE:
        study = None
    if study is None or study.page is None:
        raise StorageError(f"{path} is not the result of a table; name a table's result.json")
    return study.page(path)


def _list_studies(studies: Mapping[str, Study], cell: str | None) -> None:
    if cell is not None:
        raise ConfigError(
            "--cell needs the name of the table, figure or theorem that it is a part of; give both"
        )
    rows = []
    for name, study in studies.items():
        parts = f"{len(study.cells)} cells" if len(study.cells) > 1 else ""
        rows.append((name, parts, study.title))
    title = "fedglean reproduce NAME (fedglean reproduce NAME --cell list shows its parts)"
    screen().print(names_table(title, rows))


def _find(studies: Mapping[str, Study], what: str, cell: str | None) -> Study:
    if what not in studies:
        raise unknown("table, figure or theorem", what, studies)
    if cell is not None and not studies[what].cells:
        raise ConfigError(f"{what} has no parts to choose from; leave out --cell")
    return studies[what]


def _refuse_senseless(
    what: str, study: Study, seeds: int, scale: float, options: Sequence[tuple[str, Any]]
) -> None:
    if not 0 < scale <= 1:
        raise ConfigError(f"--scale must be above 0 and at most 1, not {scale:g}")
    given = {"--seeds": seeds != 1, "--scale": scale != 1, "--set": bool(options)}
    idle = [word for word, is_given in given.items() if is_given and word not in study.takes]
    if idle:
        raise ConfigError(f"{what} does not use {' and '.join(idle)}; leave that out")


def _folder(what: str, seeds: int, scale: float, options: Sequence[tuple[str, Any]]) -> str:
    """Runs that cannot go on from each other are apart; other options are not in the name."""
    words = [what]
    if scale != 1:
        words.append(f"scale{scale:g}")
    if seeds != 1:
        words.append(f"seeds{seeds}")
    for key, value in options:
        if FLAT.get(key, key) not in INDIFFERENT:
            words.append(f"{key}={value}")
    return re.sub(r"[^\w.=-]+", "-", "-".join(words))

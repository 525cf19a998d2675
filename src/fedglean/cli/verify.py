"""fedglean verify: a finished run, or a line of a campaign's table, trained once more."""

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from fedglean.cli.options import assignment
from fedglean.cli.shared import DataRoot, Quiet, Trust, app, say, with_terminal
from fedglean.errors import ConfigError, RoundError, StorageError
from fedglean.runs.api import run as train
from fedglean.runs.config import Config, configure
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.run import Run
from fedglean.sealed import digest
from fedglean.trust import allow


@dataclass(frozen=True)
class ToReplay:
    """What is trained again, the final model's digest, and the last accuracy in per cent."""

    config: Config
    digest: str
    last: float


@app.command()
def verify(
    path: Annotated[
        Path, typer.Argument(help="The folder of a finished run, or the runs.csv of a campaign.")
    ],
    cell: Annotated[str | None, typer.Option(help="Which cell of the table.")] = None,
    seed: Annotated[int, typer.Option(help="Which of the cell's seeds.")] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Points that the last round may be off elsewhere.")
    ] = 1.0,
    data_root: DataRoot = None,
    set: Annotated[
        list[str] | None, typer.Option(help="What is to be different here, such as device=cpu.")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Train a finished run once more and compare the models, bit for bit.

    The same machine, versions and options give the same bits. Others round differently, and the
    last round's accuracy may be off by the tolerance.
    """
    if trust:
        allow(path)
    changes = dict(map(assignment, set or []))
    if data_root is not None:
        changes["data.root"] = str(data_root)
    if path.is_file():
        if cell is None:
            raise ConfigError(f"{path} is a table; name one of its cells with --cell")
        entry = _entry_of_table(path, cell, seed, changes, trust)
    else:
        entry = _entry_of_run(path, changes)
    with TemporaryDirectory(prefix="fedglean-verify-") as scratch:
        folder = Path(scratch, "run")
        runs = train(config=entry.config, out=folder, track=with_terminal(None, quiet))
        if _digest_of_model(folder) == entry.digest:
            say("the same model, bit for bit")
            return
    last = 100 * runs.last.accuracy
    say(f"not the same bits: {last:.2f} % in the last round, {entry.last:.2f} % before")
    if abs(last - entry.last) > tolerance:
        say(f"that is more than {tolerance:g} points apart")
        raise typer.Exit(RoundError.exit_code)


def _entry_of_run(folder: Path, changes: Mapping[str, Any]) -> ToReplay:
    """A run as it stands, but for the changes."""
    if kind_of(folder) is not Kind.RUN:
        raise StorageError(f"{folder} is no run folder; name one, or the runs.csv of a campaign")
    run = Run.of(folder)
    if not run.finished:
        raise StorageError(f"{folder} is not finished; 'fedglean resume {folder}' continues it")
    config = run.config
    if changes:
        config = configure(file=folder / "config.toml", **changes)
    return ToReplay(config, _digest_of_model(folder), 100 * run.last.accuracy)


def _entry_of_table(
    path: Path, cell: str, seed: int, changes: Mapping[str, Any], trust: bool
) -> ToReplay:
    """A line of a campaign's table, which may be anybody's: code that it names is not trusted."""
    row = _row(path, cell, seed)
    try:
        method, preset, options = _parts(shlex.split(row["command"]))
        expected = row["digest"], float(row["last"])
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise StorageError(f"{path}: the line of {cell}, seed {seed} is damaged") from error
    config = configure(method, preset, is_own=trust, **{**options, **changes})
    return ToReplay(config, *expected)


def _digest_of_model(folder: Path) -> str:
    return digest(RunFolder(folder).model_path.read_bytes())


def _row(path: Path, cell: str, seed: int) -> Mapping[str, str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StorageError(f"{path} cannot be read as a table ({error})") from error
    for row in rows:
        if (row.get("cell"), row.get("seed")) == (cell, str(seed)):
            return row
    known = ", ".join(sorted({row.get("cell") or "" for row in rows}))
    raise ConfigError(f"{path} has no cell '{cell}' with seed {seed}; it has {known}")


def _parts(words: Sequence[str]) -> tuple[str | None, str | None, dict[str, Any]]:
    """Method, preset and options of a command that a campaign noted."""
    if list(words[:2]) != ["fedglean", "run"]:
        raise ValueError("not a command that trains")
    method, preset = None, None
    options: dict[str, Any] = {}
    left = iter(words[2:])
    for word in left:
        if word == "--preset":
            preset = next(left)
        elif word == "--seed":
            options["seed"] = int(next(left))
        elif word == "--use":
            options["use"] = next(left)
        elif word == "--set":
            key, value = assignment(next(left))
            options[key] = value
        elif word.startswith("-"):
            raise ValueError(f"no option of a campaign's command: {word}")
        else:
            method = word
    return method, preset, options

"""A campaign: many runs from one file, several at a time, stopped in time and gone on with later.

    CELL/seed-K/        the run folder of a seed of a cell
    CELL/seed-K.json    the command that trains it, the machine and the version
    CELL/seed-K.log     what that command said last
    runs.csv            what came out, a line for each number

Each run is a process of its own, started with the command line that a person would use.
"""

import csv
import io
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from fedglean.errors import UNREADABLE, ConfigError, UntrustedError, unknown
from fedglean.names import Names
from fedglean.runs.config import Config, configure, read_toml
from fedglean.runs.kinds import kind_of
from fedglean.runs.run import Run
from fedglean.schema import read, setting
from fedglean.sealed import digest, make_folder, write_whole
from fedglean.version import __version__

#: Seconds in which a run that is told to stop must have done so.
PATIENCE = 60.0
#: Rounds over which results swing less than from one to the next.
LAST = 20


@dataclass(frozen=True)
class Cell:
    """An experiment: a preset or a method with its options, and the seeds to train.

    `value` is what a result is worth and `minutes` what a run is thought to take. A preset may be a
    pattern, such as 'hassle/*-fmnist-5'; each preset that fits is a cell.
    """

    preset: str | None = None
    method: str | None = None
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    value: float = setting(1.0, "what a result is worth", low=0)
    minutes: float = setting(1.0, "how long a run is thought to take", low=0.001)


@dataclass(frozen=True)
class Campaign:
    """What a campaign's file says; `options` are every run's."""

    cells: tuple[Cell, ...]
    options: dict[str, Any] = field(default_factory=dict)
    parallel: int = setting(1, "how many runs at a time", low=1)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a campaign."""

    cell: Cell
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.config.seed}"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def record(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.json")

    def run(self) -> Run | None:
        """As far as it has come."""
        return Run.of(self.folder) if kind_of(self.folder) else None

    def recipe(self) -> list[str]:
        """What follows `fedglean` on a command line that trains the same, wherever it goes."""
        words = ["run", *([self.cell.method] if self.cell.method else [])]
        if self.cell.preset:
            words += ["--preset", self.cell.preset]
        if "use" in self.cell.options:
            words += ["--use", str(self.cell.options["use"])]
        words += ["--seed", str(self.config.seed)]
        for key, value in self.cell.options.items():
            if key != "use":
                words += ["--set", f"{key}={_as_toml(value)}"]
        return words

    def words(self) -> list[str]:
        """What is run: it begins, or goes on in its folder."""
        if kind_of(self.folder):
            return ["resume", str(self.folder), "--quiet"]
        return [*self.recipe(), "--out", str(self.folder), "--quiet"]


@dataclass
class FailedRun:
    """A run that ended with an error, and the last line that it said."""

    entry: PlannedRun
    said: str


def read_campaign(path: Path) -> Campaign:
    try:
        return read(Campaign, read_toml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def plan_runs(
    campaign: Campaign, folder: Path, options: Mapping[str, Any], trust: bool = False
) -> list[PlannedRun]:
    """All runs, the most worth for their time first, and nobody's second seed before every first.

    `options` go before the file's. Every configuration is made here, so that a mistake is told
    before anything trains. The file may be somebody else's: code that it names is not run unless
    `trust` says so, or this user has run it before.
    """
    ranked = []
    seen: set[Path] = set()
    for cell in _cells(campaign, options):
        for turn, seed in enumerate(cell.seeds):
            entry = PlannedRun(
                cell, _configure(cell, seed, trust), folder / cell.name / f"seed-{seed}"
            )
            if entry.folder in seen:
                raise ConfigError(
                    f"there is more than one {entry.name}; give each a name of its own"
                )
            seen.add(entry.folder)
            ranked.append((turn, -cell.value / cell.minutes, entry))
    ranked.sort(key=lambda each: each[:2])
    return [entry for _, _, entry in ranked]


def carry_out(
    planned: Sequence[PlannedRun],
    parallel: int,
    minutes: float | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[FailedRun]:
    """Train what is left, so many runs at a time.

    Whatever ends this early, time or Ctrl-C, stops the runs; each can go on from its last
    checkpoint.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    left = [entry for entry in planned if not _is_finished(entry)]
    running: list[tuple[PlannedRun, subprocess.Popen[bytes]]] = []
    failures: list[FailedRun] = []
    try:
        while left or running:
            if end is not None and time.monotonic() >= end:
                break
            while left and len(running) < parallel:
                entry = left.pop(0)
                running.append((entry, _start(entry)))
                tell(f"started: {entry.name}")
            time.sleep(0.1)
            for pair in list(running):
                entry, process = pair
                if process.poll() is None:
                    continue
                running.remove(pair)
                if process.returncode:
                    failures.append(FailedRun(entry, _last_line(entry.log)))
                tell(f"{'failed' if process.returncode else 'done'}: {entry.name}")
    finally:
        _stop([process for _, process in running])
    return failures


def write_results(planned: Sequence[PlannedRun], path: Path) -> None:
    """A line for each number that finished runs have, and what was published for it."""
    lines: list[dict[str, Any]] = []
    for entry in planned:
        if _is_finished(entry):
            lines += _lines(entry)
    if not lines:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_whole(path, text.getvalue().encode())


def _cells(campaign: Campaign, options: Mapping[str, Any]) -> Iterator[Cell]:
    """One for each preset, with a name for its folder and all options."""
    if not campaign.cells:
        raise ConfigError("the campaign has no cells")
    for cell in campaign.cells:
        own = {**campaign.options, **cell.options, **options}
        for preset in _presets(cell.preset):
            name = cell.name or preset or cell.method
            if name is None:
                raise ConfigError("a cell names neither a preset nor a method")
            if name in (".", ".."):
                raise ConfigError(f"a cell's name is its folder's, which '{name}' cannot be")
            if cell.name and preset != cell.preset:
                name = f"{cell.name}-{preset}"
            yield replace(cell, preset=preset, name=name.replace("/", "-"), options=own)


def _presets(wanted: str | None) -> list[str | None]:
    """What fits a pattern; what is none is taken as it is."""
    if wanted is None or not set("*?[") & set(wanted):
        return [wanted]
    presets = Names.of().tables["PRESETS"]
    fitting: list[str | None] = [name for name in presets if fnmatchcase(name, wanted)]
    if not fitting:
        raise unknown("preset", wanted, presets)
    return fitting


def _configure(cell: Cell, seed: int, trust: bool) -> Config:
    options = {**cell.options, "seed": seed}
    try:
        config = configure(cell.method, cell.preset, is_own=trust, **options)
    except ConfigError as error:
        raise ConfigError(f"cell {cell.name}: {error}") from error
    if config.names.closed is not None:
        raise UntrustedError(
            f"cell {cell.name} uses {config.use}, which you have not run as it is now; read it, "
            "then allow it with --trust"
        )
    return config


def _as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_finished(entry: PlannedRun) -> bool:
    run = entry.run()
    return run is not None and run.finished


def _start(entry: PlannedRun) -> subprocess.Popen[bytes]:
    """In a session of its own: of Ctrl-C it hears from us alone, and once."""
    make_folder(entry.folder.parent)
    if kind_of(entry.folder) is None or not entry.record.exists():
        about = {
            "command": entry.recipe(),
            "machine": machine(entry.config),
            "version": __version__,
        }
        write_whole(entry.record, json.dumps(about).encode())
    with entry.log.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fedglean", *entry.words()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": str(entry.config.engine.threads)},
            start_new_session=True,
        )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    end = time.monotonic() + PATIENCE
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def machine(config: Config) -> str:
    """Where a run trains, as a table says it."""
    where = platform.processor() or platform.machine()
    if config.engine.device != "cpu" and torch.cuda.is_available():
        where = torch.cuda.get_device_name()
    return f"{where}, torch {torch.__version__}"


def _lines(entry: PlannedRun) -> Iterator[dict[str, Any]]:
    run = Run.of(entry.folder)
    about = _record(entry)
    down, up = run.bytes_sent
    shared = {
        "cell": entry.cell.name,
        "method": run.config.method,
        **_setting(run.config),
        "seed": run.seed,
        "rounds": run.config.rounds,
    }
    costs = {
        "confident_share": run.history[-1].get("pseudo", {}).get("confident_share", ""),
        "bytes_down": down,
        "bytes_up": up,
        "seconds": round(run.seconds, 1),
        "digest": digest((entry.folder / "model.safetensors").read_bytes()),
        "version": about.get("version", ""),
        "machine": about.get("machine", ""),
        "command": shlex.join(["fedglean", *about.get("command", ())]),
    }
    for predictor in run.names:
        last, best = run.score(predictor)
        accuracies = {
            "predictor": predictor,
            "last": _percent(last.accuracy),
            "best": _percent(best.accuracy),
            "best_round": best.round,
            f"mean_of_last_{LAST}": _percent(run.mean_of_last(LAST, predictor)),
        }
        for compared in _comparisons(entry, run, predictor):
            yield {**shared, **accuracies, **compared, **costs}


def _setting(config: Config) -> dict[str, Any]:
    """What methods must have in common to be compared."""
    return {
        "data": config.data.name,
        "model": config.model.name,
        "partition": config.split.partition,
        "labels": config.split.labels,
        "clients": config.split.clients,
    }


def _comparisons(entry: PlannedRun, run: Run, predictor: str) -> Iterator[dict[str, Any]]:
    """Each published number for this predictor beside ours, or one line without any."""
    published: Mapping[str, float] = {}
    if entry.cell.preset is not None:
        published = entry.config.names.find("PRESETS", entry.cell.preset).published or {}
    found = False
    for what, number in published.items():
        measured = _measurement(run, predictor, what)
        if measured is None:
            continue
        found = True
        yield {
            "compared": what,
            "ours": _percent(measured),
            "published": number,
            "difference": round(100 * measured - number, 2),
        }
    if not found:
        yield {"compared": "", "ours": "", "published": "", "difference": ""}


def _measurement(run: Run, predictor: str, what: str) -> float | None:
    """What answers to a published number; None if that is another predictor's."""
    if what == predictor or (what == "best" and predictor == run.names[0]):
        return run.score(predictor)[1].accuracy
    if what.startswith("round ") and predictor == run.names[0]:
        number = int(what.removeprefix("round "))
        for line in run.tested:
            if line["round"] == number:
                accuracy: float = line["accuracy"][predictor]
                return accuracy
    return None


def _record(entry: PlannedRun) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(entry.record.read_bytes())
    except UNREADABLE:
        return {}
    return found


def _percent(accuracy: float) -> float:
    return round(100 * accuracy, 2)

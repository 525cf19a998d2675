"""The functions of `import fedglean`: the same runs as on the command line."""

from pathlib import Path
from typing import Any

from fedglean.report.picture import curves
from fedglean.runs.config import Config, configure
from fedglean.runs.result import Result
from fedglean.runs.rounds import OnRound, OnRounds
from fedglean.runs.rounds import resume as _resume
from fedglean.runs.rounds import run as _run
from fedglean.runs.seeds import SeedsResult
from fedglean.runs.seeds import resume_seeds as _resume_seeds
from fedglean.runs.seeds import run_seeds as _run_seeds
from fedglean.trust import allow


def run(
    method: str | None = None,
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    **options: Any,
) -> Result:
    """Train a method: `fedglean.run("semifl", data="digits", labels="hub:20", rounds=40,
    out="runs/first")`.

    The options are those of `fedglean run`, including the method's settings. With `out` the run can
    be resumed.
    """
    return train(configure(method, preset, file, **options), out, on_round)


def train(config: Config, out: Path | str | None = None, on_round: OnRound | None = None) -> Result:
    """Train with a configuration; with `out`, write a run folder, including a picture of the
    curves.
    """
    return _pictured(_run(config, None if out is None else Path(out), on_round))


def resume(folder: Path | str, on_round: OnRound | None = None, trust: bool = False) -> Result:
    """Continue an interrupted run, or return the result of a finished one. With `trust`, code that
    the folder names may run.
    """
    if trust:
        allow(folder)
    return _pictured(_resume(Path(folder), on_round))


def run_seeds(
    method: str | None = None,
    seeds: int = 3,
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    out: Path | str | None = None,
    on_rounds: OnRounds = lambda lines: None,
    **options: Any,
) -> SeedsResult:
    """`run` with several seeds side by side, counting up from option `seed`: `run_seeds("semifl",
    4).last().mean`.
    """
    return train_seeds(configure(method, preset, file, **options), seeds, out, on_rounds)


def train_seeds(
    config: Config,
    seeds: int,
    out: Path | str | None = None,
    on_rounds: OnRounds = lambda lines: None,
) -> SeedsResult:
    """`train` with several seeds; `out` gets a run folder for each and a picture of all."""
    return _group_pictured(_run_seeds(config, seeds, None if out is None else Path(out), on_rounds))


def resume_seeds(
    folder: Path | str, on_rounds: OnRounds = lambda lines: None, trust: bool = False
) -> SeedsResult:
    """Continue an interrupted group of seeds, or return the results of a finished one."""
    if trust:
        allow(folder)
    return _group_pictured(_resume_seeds(Path(folder), on_rounds))


def _group_pictured(group: SeedsResult) -> SeedsResult:
    for result in group.results:
        _pictured(result)
    if group.folder is not None:
        curves(
            {group.results[0].config.method: group.results},
            group.folder / "curves.png",
            group.title,
        )
    return group


def _pictured(result: Result) -> Result:
    if result.folder is not None:
        curves({result.config.method: [result]}, result.folder / "curves.png", result.title)
    return result

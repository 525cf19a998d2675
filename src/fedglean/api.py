"""What `import fedglean` offers: the same runs as the command line's, as functions."""

from pathlib import Path
from typing import Any

from fedglean.config import Config, configure
from fedglean.report.picture import curves
from fedglean.result import Result
from fedglean.run import OnRound, OnRounds
from fedglean.run import resume as _resume
from fedglean.run import run as _run
from fedglean.seeds import SeedsResult
from fedglean.seeds import resume_seeds as _resume_seeds
from fedglean.seeds import run_seeds as _run_seeds


def run(
    method: str | None = None,
    *,
    preset: str | None = None,
    file: Path | str | None = None,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    **options: Any,
) -> Result:
    """Train: `fedglean.run("semifl", data="digits", labels="hub:20", rounds=40, out="runs/first")`.

    Options are those of `fedglean run`, settings of the method among them. With `out` the run can be resumed.
    """
    return train(configure(method, preset, file, **options), out, on_round)


def train(config: Config, out: Path | str | None = None, on_round: OnRound | None = None) -> Result:
    """Train by a configuration; with `out`, a folder with everything about it, the picture of its curves included."""
    return _pictured(_run(config, None if out is None else Path(out), on_round))


def resume(folder: Path | str, on_round: OnRound | None = None) -> Result:
    """Go on with an interrupted run, or get the result of a finished one."""
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
    """`run` with several seeds side by side, from the option `seed` on: `run_seeds("semifl", 4).last().mean`."""
    return train_seeds(configure(method, preset, file, **options), seeds, out, on_rounds)


def train_seeds(
    config: Config, seeds: int, out: Path | str | None = None, on_rounds: OnRounds = lambda lines: None
) -> SeedsResult:
    """`train` with several seeds; below `out`, a run folder each and a picture of all."""
    return _group_pictured(_run_seeds(config, seeds, None if out is None else Path(out), on_rounds))


def resume_seeds(folder: Path | str, on_rounds: OnRounds = lambda lines: None) -> SeedsResult:
    """Go on with an interrupted group of seeds, or get the results of a finished one."""
    return _group_pictured(_resume_seeds(Path(folder), on_rounds))


def _group_pictured(group: SeedsResult) -> SeedsResult:
    for result in group.results:
        _pictured(result)
    if group.folder is not None:
        curves({group.results[0].config.method: group.results}, group.folder / "curves.png", group.title)
    return group


def _pictured(result: Result) -> Result:
    if result.folder is not None:
        curves({result.config.method: [result]}, result.folder / "curves.png", result.title)
    return result

"""What `import fedglean` offers: the same runs as the command line's, as functions."""

from pathlib import Path
from typing import Any

from fedglean.config import Config, configure
from fedglean.report.picture import curves
from fedglean.result import Result
from fedglean.run import OnRound
from fedglean.run import resume as _resume
from fedglean.run import run as _run


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


def _pictured(result: Result) -> Result:
    if result.folder is not None:
        config = result.config
        title = f"{config.method} on {config.data.name}, seed {config.seed}, {config.rounds} rounds"
        curves({config.method: [result]}, result.folder / "curves.png", title)
    return result

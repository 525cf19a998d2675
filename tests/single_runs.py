"""One seed at a time, for tests that read the result of one and its lines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedglean.report.tracker import Lines, Trackers
from fedglean.runs import seeds
from fedglean.runs.config import Config
from fedglean.runs.run import Run

OnRound = Callable[[dict[str, Any]], None]


def run(config: Config, out: Path | None = None, on_round: OnRound | None = None) -> Run:
    return seeds.train(config, out, _trackers(on_round))[0]


def resume(folder: Path, on_round: OnRound | None = None) -> Run:
    return seeds.resume(folder, _trackers(on_round))[0]


def _trackers(on_round: OnRound | None) -> Trackers:
    def tell(lines: Lines) -> None:
        if on_round is not None:
            on_round(*lines.values())

    return Trackers(on_round=tell)

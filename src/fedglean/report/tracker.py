"""The door for trackers: what a run tells to the outside.

The terminal, the page, TensorBoard, MLflow and Weights & Biases are trackers like anybody's. None
can end a run: one that fails is told of in a sentence and hears no more.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from fedglean.errors import FedgleanError

if TYPE_CHECKING:
    from fedglean.names import Names
    from fedglean.runs.run import Runs

#: The lines of a round by seed, as metrics.jsonl has them.
Lines = Mapping[int, Mapping[str, Any]]
OnRound = Callable[[Lines], None]


class Tracker(Protocol):
    """Hears of one experiment, of which several seeds may train side by side."""

    def begin(self, runs: "Runs") -> None:
        """Before the first round, or before the next one: a resumed run has a history.

        A FedgleanError refuses the run, for what the user can mend.
        """

    def round(self, lines: Lines) -> None:
        """After a round is safe; of all seeds, or of one where they train one after the other."""

    def end(self, runs: "Runs") -> None:
        """After the last round, or where the runs stopped: they are not `finished` then."""


class Trackers:
    """All that hear of runs with a label, and a callback, whose errors end them."""

    def __init__(
        self, trackers: Sequence[Tracker] = (), on_round: OnRound | None = None, label: str = ""
    ) -> None:
        self.trackers = list(trackers)
        self.on_round = on_round
        self.label = label
        self._lengths: dict[int, int] = {}

    def begin(self, runs: "Runs") -> None:
        self._lengths = {run.seed: len(run.history) for run in runs}
        waiting, self.trackers = self.trackers, []
        for tracker in waiting:
            try:
                tracker.begin(runs)
                self.trackers.append(tracker)
            except FedgleanError:
                self.end(runs)
                raise
            except Exception as error:
                _warn(tracker, error)

    def round(self, runs: "Runs") -> None:
        """Tell what the histories have gained."""
        lines = {}
        for run in runs:
            if len(run.history) > self._lengths[run.seed]:
                lines[run.seed] = run.history[-1]
                self._lengths[run.seed] = len(run.history)
        self._tell(lambda tracker: tracker.round(lines))
        if self.on_round is not None:
            self.on_round(lines)

    def end(self, runs: "Runs") -> None:
        self._tell(lambda tracker: tracker.end(runs))

    def _tell(self, event: Callable[[Tracker], None]) -> None:
        for tracker in tuple(self.trackers):
            try:
                event(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                _warn(tracker, error)


def _warn(tracker: Tracker, error: Exception) -> None:
    told = "the tracker %s failed and hears no more of the run: %s"
    logging.getLogger(__name__).warning(told, type(tracker).__name__, error)


@dataclass(frozen=True)
class TrackerKind:
    """Makes a tracker, a fresh one for each experiment."""

    make: Callable[[], Tracker]
    summary: str = ""


def _make(module: str, name: str) -> Tracker:
    tracker: Tracker = getattr(import_module(f"fedglean.report.{module}"), name)()
    return tracker


#: By the names that --track takes. Their modules are imported when they are used.
TRACKERS: Mapping[str, TrackerKind] = {
    "terminal": TrackerKind(partial(_make, "terminal", "Terminal"), "the progress line"),
    "page": TrackerKind(partial(_make, "page", "Page"), "report.html, kept up to date"),
    "tensorboard": TrackerKind(partial(_make, "loggers", "TensorBoard"), "event files"),
    "mlflow": TrackerKind(partial(_make, "loggers", "MLflow"), "a run a seed in MLflow"),
    "wandb": TrackerKind(partial(_make, "loggers", "WandB"), "Weights & Biases, offline"),
}

Track = str | Sequence[str | Tracker]


def trackers_of(track: Track, names: "Names") -> list[Tracker]:
    """Fresh ones for names, `"tensorboard,wandb"` or a list of them; others as they are."""
    trackers: list[Tracker] = []
    for each in track.split(",") if isinstance(track, str) else track:
        if not isinstance(each, str):
            trackers.append(each)
        elif name := each.strip():
            kind = names.importing("TRACKERS", name).find("TRACKERS", name)
            trackers.append(kind.make())
    return trackers

"""The door for trackers: what a run tells to the outside.

The terminal, the page, TensorBoard, MLflow and Weights & Biases are trackers like anybody's. None
can end a run: one that fails is told of in a sentence and hears no more.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fedglean.errors import FedgleanError
from fedglean.runs.run import Line, Runs

#: The lines of a round by seed, as metrics.jsonl has them.
Lines = Mapping[int, Line]
OnRound = Callable[[Lines], None]


class Tracker(Protocol):
    """Hears of one experiment, of which several seeds may train side by side."""

    def begin(self, runs: Runs) -> None:
        """Before the first round, or before the next one: a resumed run has a history. A
        FedgleanError refuses the run, for what the user can mend.
        """

    def round(self, lines: Lines) -> None:
        """After a round is safe; of all seeds, or of one where they train one after the other."""

    def end(self, runs: Runs) -> None:
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

    def begin(self, runs: Runs) -> None:
        self._lengths = {run.seed: len(run.history) for run in runs}
        self._call("begin", runs)

    def round(self, runs: Runs) -> None:
        """Tell what the histories have gained."""
        lines = {}
        for run in runs:
            if len(run.history) > self._lengths[run.seed]:
                lines[run.seed] = run.history[-1]
                self._lengths[run.seed] = len(run.history)
        self._call("round", lines)
        if self.on_round is not None:
            self.on_round(lines)

    def end(self, runs: Runs) -> None:
        self._call("end", runs)

    def _call(self, event: str, what: Any) -> None:
        for tracker in tuple(self.trackers):
            try:
                getattr(tracker, event)(what)
            except Exception as error:
                if event == "begin" and isinstance(error, FedgleanError):
                    raise
                self.trackers.remove(tracker)
                name = type(tracker).__name__
                logging.getLogger(__name__).warning(
                    "the tracker %s failed and hears no more of the run: %s", name, error
                )

"""The result of a run. The last round and the best one are different numbers and are kept apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglean.errors import ConfigError, unknown
from fedglean.runs.config import Config
from fedglean.runs.evaluate import Predictor


@dataclass(frozen=True)
class Score:
    """A test accuracy and its round. The best round is chosen on the test set: report it as such,
    or not at all.
    """

    name: str
    round: int
    accuracy: float


@dataclass(frozen=True)
class Result:
    """The result of a run: its history (one dictionary per round, as in metrics.jsonl), predictors
    and folder.
    """

    config: Config
    history: list[dict[str, Any]]
    predictors: Mapping[str, Predictor]
    classes: tuple[str, ...]
    folder: Path | None = None

    @property
    def title(self) -> str:
        config = self.config
        return f"{config.method} on {config.data.title}, seed {config.seed}, {config.rounds} rounds"

    @property
    def names(self) -> list[str]:
        return list(self.predictors)

    @property
    def seconds(self) -> float:
        return float(sum(line["seconds"] for line in self.history))

    @property
    def last(self) -> Score:
        return self.score(self.names[0])[0]

    @property
    def best(self) -> Score:
        return self.score(self.names[0])[1]

    def score(self, name: str) -> tuple[Score, Score]:
        """(last, best) score of one predictor."""
        name = self._known(name)
        scores = [
            Score(name, line["round"], line["accuracy"][name])
            for line in self.history
            if "accuracy" in line
        ]
        return scores[-1], max(scores, key=lambda score: score.accuracy)

    def mean_of_last(self, rounds: int, name: str | None = None) -> float:
        """Mean accuracy over the last evaluated rounds, where single rounds swing."""
        name = self._known(name)
        if rounds < 1:
            raise ConfigError(
                f"the mean of the last {rounds} rounds does not exist; ask for 1 or more"
            )
        tail = [line["accuracy"][name] for line in self.history if "accuracy" in line][-rounds:]
        return float(sum(tail) / len(tail))

    def rounds_to(self, accuracy: float, name: str | None = None) -> int | None:
        """The first round whose test accuracy reached the target, or None."""
        name = self._known(name)
        reached = [
            line["round"]
            for line in self.history
            if line.get("accuracy", {}).get(name, -1.0) >= accuracy
        ]
        return reached[0] if reached else None

    def _known(self, name: str | None) -> str:
        if name is not None and name not in self.predictors:
            raise unknown("predictor", name, self.predictors)
        return name or self.names[0]

    @property
    def bytes_sent(self) -> tuple[int, int]:
        """(down, up) over all rounds."""
        return sum(line["bytes_down"] for line in self.history), sum(
            line["bytes_up"] for line in self.history
        )

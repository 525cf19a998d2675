"""A run and the seeds of one experiment, in memory or in a folder, finished or not.

This is what the terminal, the page, comparisons, trackers and notebooks read. The last round and
the best one are different numbers and are kept apart: the best round is chosen on the test set, so
report it as such or not at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from fedglean.data.partition import Split
from fedglean.errors import ConfigError, StorageError, UntrustedError, no_folder, unknown
from fedglean.runs.config import Config
from fedglean.runs.evaluate import Predictor
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, kind_of, seeds_in
from fedglean.runs.trained import ImageLabels, TrainedModel

#: A round, as metrics.jsonl has it.
Line = Mapping[str, Any]


def step_of(line: Line) -> int:
    """What a method does after its last round counts as one more round."""
    return int(line["round"]) + bool(line.get("final"))


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and how far they are apart; a single seed deviates by 0."""

    mean: float
    deviation: float
    worst: float
    best: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        deviation = stdev(values) if len(values) > 1 else 0.0
        return cls(fmean(values), deviation, min(values), max(values))


@dataclass(frozen=True)
class Score:
    """Test accuracies of one predictor, one for each seed, and the rounds that they are of."""

    name: str
    values: tuple[float, ...]
    rounds: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return fmean(self.values)

    @property
    def round(self) -> int:
        """The first seed's."""
        return self.rounds[0]

    @property
    def spread(self) -> Spread:
        return Spread.of(self.values)


@dataclass(frozen=True)
class Run:
    """One seed of an experiment. While it trains, its history grows."""

    config: Config
    history: list[dict[str, Any]]
    folder: Path | None = None
    split_in_memory: Split | None = field(default=None, repr=False)
    model_in_memory: TrainedModel | None = field(default=None, repr=False)

    @classmethod
    def of(cls, folder: Path) -> "Run":
        """As far as the folder says that it has come; reading changes nothing."""
        place = RunFolder(folder)
        return cls(place.config(), place.history(), folder)

    @property
    def seed(self) -> int:
        return self.config.seed

    @cached_property
    def finished(self) -> bool:
        if self.model_in_memory is not None:
            return True
        return self.folder is not None and RunFolder(self.folder).model_path.exists()

    @cached_property
    def split(self) -> Split:
        return self.split_in_memory or self._place.split()

    @cached_property
    def model(self) -> TrainedModel:
        return self.model_in_memory or self._place.model()

    @property
    def _place(self) -> RunFolder:
        if self.folder is None:
            raise StorageError("this run is not finished, and it has no folder")
        return RunFolder(self.folder)

    @property
    def predictors(self) -> Mapping[str, Predictor]:
        return self.model.predictors

    @property
    def classes(self) -> tuple[str, ...]:
        return self.model.classes

    @cached_property
    def names(self) -> list[str]:
        """Its predictors, the result first, as the final model knows even of an old run."""
        # A net of the user's own may have changed since, or may not run.
        with suppress(StorageError, UntrustedError):
            if self.finished:
                return list(self.predictors)
        return list(self.tested[0]["accuracy"]) if self.tested else []

    @property
    def tested(self) -> list[dict[str, Any]]:
        """The rounds with a test."""
        return [line for line in self.history if line.get("accuracy")]

    @property
    def seconds(self) -> float:
        return float(sum(line["seconds"] for line in self.history))

    @property
    def bytes_sent(self) -> tuple[int, int]:
        """(down, up) over all rounds."""
        down = sum(line["bytes_down"] for line in self.history)
        return down, sum(line["bytes_up"] for line in self.history)

    @property
    def last(self) -> Score:
        return self.score()[0]

    @property
    def best(self) -> Score:
        return self.score()[1]

    def score(self, name: str | None = None) -> tuple[Score, Score]:
        """(last, best) of one predictor, by default the first; of equally good rounds the first."""
        name = self._predictor(name)
        last = self.tested[-1]
        best = max(self.tested, key=lambda line: line["accuracy"][name])
        return _score_of(last, name), _score_of(best, name)

    def mean_of_last(self, rounds: int, name: str | None = None) -> float:
        """Mean accuracy over the last tested rounds, where single rounds swing."""
        name = self._predictor(name)
        if rounds < 1:
            raise ConfigError(f"there is no mean of the last {rounds} rounds; ask for 1 or more")
        return fmean(line["accuracy"][name] for line in self.tested[-rounds:])

    def rounds_to(self, accuracy: float, name: str | None = None) -> int | None:
        """The first round whose test accuracy reached the target, or None."""
        name = self._predictor(name)
        reached = (line["round"] for line in self.tested if line["accuracy"][name] >= accuracy)
        return next(reached, None)

    def _predictor(self, name: str | None) -> str:
        if not self.tested:
            raise StorageError("no round of this run has been tested yet")
        if name is not None and name not in self.names:
            raise unknown("predictor", name, self.names)
        return name or self.names[0]


@dataclass(frozen=True)
class Runs:
    """The seeds of one experiment; a lone run is several of length one.

    What belongs to one seed (`history`, `predictors`, `predict`) is the first seed's; the others
    are at `[1]`, `[2]` and so on. There are none as long as nothing has begun.
    """

    config: Config
    runs: Sequence[Run]
    folder: Path | None = None
    label: str = ""
    #: Why a comparison has no result of it.
    failed: str | None = None

    @classmethod
    def of(cls, folder: Path) -> "Runs":
        """A run's folder, or that of several seeds, as far as they have come."""
        kind = kind_of(folder)
        if not folder.is_dir():
            raise no_folder(folder)
        if kind is None or kind is Kind.COMPARISON:
            raise StorageError(f"{folder} holds {kind.value if kind else 'no run'}")
        folders = [folder]
        if kind is Kind.SEEDS:
            folders = [place for place in seeds_in(folder) if kind_of(place)]
        runs = [Run.of(place) for place in folders]
        if not runs:
            raise StorageError(f"{folder} holds no run yet")
        return cls(runs[0].config, runs, folder)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, place: int) -> Run:
        return self.runs[place]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    @property
    def name(self) -> str:
        return self.label or self.config.method

    @property
    def title(self) -> str:
        seeds = f"{len(self)} seeds" if len(self) > 1 else f"seed {self.config.seed}"
        where = self.config.data.title
        return f"{self.config.method} on {where}, {seeds}, {self.config.rounds} rounds"

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self)

    @property
    def tested(self) -> list[Run]:
        """The seeds of which a round has been tested."""
        return [run for run in self if run.tested]

    @property
    def names(self) -> list[str]:
        return self.tested[0].names if self.tested else []

    @property
    def history(self) -> list[dict[str, Any]]:
        return self[0].history

    @property
    def predictors(self) -> Mapping[str, Predictor]:
        return self[0].predictors

    @property
    def classes(self) -> tuple[str, ...]:
        return self[0].classes

    @property
    def seconds(self) -> float:
        """Of all seeds together."""
        return sum(run.seconds for run in self)

    @property
    def bytes_sent(self) -> tuple[int, int]:
        """(down, up), of all seeds together."""
        sent = [run.bytes_sent for run in self]
        return sum(down for down, _ in sent), sum(up for _, up in sent)

    @property
    def last(self) -> Score:
        """After the last round that was tested."""
        return self.score()[0]

    @property
    def best(self) -> Score:
        """In each seed's best round."""
        return self.score()[1]

    def score(self, name: str | None = None) -> tuple[Score, Score]:
        """(last, best) of one predictor, by default the first, over the seeds that were tested."""
        scores = [run.score(name) for run in self.tested]
        if not scores:
            raise StorageError(f"no round of {self.name} has been tested yet")
        return _together([last for last, _ in scores]), _together([best for _, best in scores])

    def predict(self, images: Tensor) -> ImageLabels:
        """Label uint8 images like those of the data set, n x channels x height x width."""
        return self[0].model.predict(images)


def _score_of(line: Line, name: str) -> Score:
    return Score(name, (line["accuracy"][name],), (line["round"],))


def _together(scores: Sequence[Score]) -> Score:
    values = tuple(score.accuracy for score in scores)
    return Score(scores[0].name, values, tuple(score.round for score in scores))

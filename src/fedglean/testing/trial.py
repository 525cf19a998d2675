"""A method on trial: its reference run, in float64 on the CPU, and what must be equal to it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

from fedglean.exchange.gate import Envelope
from fedglean.method import Method, Train
from fedglean.models.nets import NetKind
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress
from fedglean.testing.difference import difference
from fedglean.testing.engines import AsBytes, Backwards, RequestLog, TwoLanes, UploadLog, variant
from fedglean.testing.play import FinalState, play, restarted
from fedglean.testing.random_generators import untouched_generators
from fedglean.testing.small_federation import (
    small_experiment,
    with_false_labels,
    with_false_test_set,
    with_own_stores,
)

ROUNDING = 1e-10


@dataclass(frozen=True)
class Reference:
    """A run under observation.

    `first` is where it stood after round 1; `trainings` are those of clients.
    """

    first: Progress
    final: FinalState
    uploads: list[Envelope]
    requests: list[Any]
    trainings: list[Train]


@dataclass(frozen=True, eq=False)
class Trial:
    """A method on the small federation, and the runs that several checks need, played once.

    `kind` is the model where it has no name, `shape` that of images which are larger than digits.
    """

    method: Method
    model: str = "cnn"
    norm: str = "static"
    rounds: int = 3
    use: Path | str | None = None
    kind: NetKind | None = None
    shape: tuple[int, int, int] | None = None

    @cached_property
    def experiment(self) -> Experiment:
        of_model = self.model, self.norm, self.rounds, self.use, self.kind, self.shape
        return small_experiment(self.method, *of_model)

    @cached_property
    def first_run(self) -> Reference | AssertionError:
        """The reference run, or why there is none."""
        try:
            return play_reference(self.experiment)
        except AssertionError as error:
            return error

    @property
    def reference(self) -> Reference:
        if isinstance(self.first_run, AssertionError):
            raise SkipTest("the method does not run on the small federation")
        return self.first_run

    @cached_property
    def mixed_run(self) -> AssertionError | None:
        """What is wrong where all that must not matter is changed at once, in two runs."""
        disguised = with_false_test_set(with_false_labels(self.experiment))
        everything = variant(disguised, Backwards, AsBytes, record_after=2)
        lifted = variant(with_own_stores(self.experiment), TwoLanes, block=3)
        try:
            with untouched_generators(2):
                restart = partial(restarted, self.experiment)
                same(self, everything, "the result is not reproducible", between=restart)
            close(self, lifted, "the engine changes the result by more than rounding")
        except AssertionError as error:
            return error
        return None


def play_reference(experiment: Experiment) -> Reference:
    """One run under observation: what is lent out must come back as it was."""
    observed = variant(experiment, RequestLog, UploadLog)
    settings = dict(vars(experiment.method))
    passed: list[Progress] = []

    def note(progress: Progress) -> Progress:
        passed.append(restarted(experiment, progress))
        return progress

    with untouched_generators(1):
        final = play(observed, between=note)
    assert vars(experiment.method) == settings, (
        "the method object changed during a run; what changes belongs in the state"
    )
    placement = observed.placement
    assert isinstance(placement, UploadLog) and isinstance(observed.executor, RequestLog)
    executor = observed.executor
    return Reference(passed[0], final, placement.uploads, executor.requests, executor.trainings)


def same(trial: Trial, experiment: Experiment, broken: str, **options: Any) -> None:
    """Equal to the reference bit by bit."""
    compare(trial, partial(play, experiment, **options), broken, 0.0)


def close(trial: Trial, experiment: Experiment, broken: str) -> None:
    """Equal to the reference up to rounding."""
    compare(trial, partial(play, experiment), broken, ROUNDING)


def compare(trial: Trial, run: Callable[[], FinalState], broken: str, tolerance: float) -> None:
    expected = trial.reference.final.tree
    try:
        final = run()
    except AssertionError as error:
        raise AssertionError(f"{broken}: {error}") from error
    found = difference(expected, final.tree, tolerance)
    assert found is None, f"{broken} ({found})"

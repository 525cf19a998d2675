"""Several seeds of one experiment: their rounds run side by side, which on a stack costs less than
one by one.

    seeds.json      the seeds
    done.json       how many rounds all of them have done
    seed-K/         the run folder of seed K, as if it had been run alone

Every random choice of a seed is what it would have been alone. Its last bits may not be: a wider
stack may round differently. A round counts for all seeds or for none, so that a killed group
continues to the same bits.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from fedglean.data.partition import Split
from fedglean.data.split_file import split_digest
from fedglean.errors import UNREADABLE, ConfigError, StorageError
from fedglean.runs.config import Config, fingerprint
from fedglean.runs.experiment import prepare_seeds
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, check_holds_no_several, check_is_free, kind_of
from fedglean.runs.result import Result
from fedglean.runs.rounds import OnRounds, Run, play
from fedglean.sealed import locked, write_whole


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and how far they are apart: the sample's standard deviation, 0 for a single
    seed.
    """

    mean: float
    deviation: float
    worst: float
    best: float


@dataclass(frozen=True)
class SeedsResult:
    """The results by seed, and what they have in common."""

    results: list[Result]
    folder: Path | None = None

    @property
    def title(self) -> str:
        config = self.results[0].config
        return (
            f"{config.method} on {config.data.title}, {len(self.results)} seeds, {config.rounds} "
            "rounds"
        )

    def last(self, name: str | None = None) -> Spread:
        """Accuracy after the last round."""
        return _spread(
            [result.score(name or result.names[0])[0].accuracy for result in self.results]
        )

    def best(self, name: str | None = None) -> Spread:
        """Accuracy in each seed's best round, which is chosen on the test set."""
        return _spread(
            [result.score(name or result.names[0])[1].accuracy for result in self.results]
        )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(
        fmean(values), stdev(values) if len(values) > 1 else 0.0, min(values), max(values)
    )


def run_seeds(
    config: Config,
    count: int,
    out: Path | None = None,
    on_rounds: OnRounds = lambda lines: None,
    splits: Sequence[Split] | None = None,
) -> SeedsResult:
    """Train with the configuration's seed and the `count - 1` that follow it, on `splits` if they
    are given.
    """
    if count < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {count}")
    seeds = range(config.seed, config.seed + count)
    if seeds[-1] >= 2**63:
        raise ConfigError(
            f"the last of {count} seeds from {config.seed} on would be {seeds[-1]}, too large; use "
            "a smaller seed"
        )
    if out is not None:
        _check_free(out)
        for place in _places(out, seeds):
            _clear_if_cut_off(place)
    runs = [
        Run.new(each, out and out / f"seed-{each.config.seed}")
        for each in prepare_seeds(config, seeds, splits)
    ]
    if out is not None:
        write_whole(out / "seeds.json", json.dumps({"seeds": list(seeds)}).encode())
    return SeedsResult(_played(runs, on_rounds, out), out)


def resume_seeds(folder: Path, on_rounds: OnRounds = lambda lines: None) -> SeedsResult:
    """Continue a group that was interrupted; a finished one is returned as it is."""
    seeds, done = _group(folder)
    places = [RunFolder(place) for place in _places(folder, seeds)]
    for place in places:
        place.hold()
        place.checkpoints.settle(done)
    experiments = prepare_seeds(places[0].config(), seeds, [place.split() for place in places])
    runs = [
        Run.found(experiment, place) for experiment, place in zip(experiments, places, strict=True)
    ]
    return SeedsResult(_played(runs, on_rounds, folder), folder)


def _places(folder: Path, seeds: Iterable[int]) -> list[Path]:
    return [folder / f"seed-{seed}" for seed in seeds]


def _clear_if_cut_off(place: Path) -> None:
    """A run that was cut off before its first round was safe begins anew; one that is being played
    is left alone.
    """
    if not (place / "config.toml").exists():
        return
    with locked(place / "lock", place):
        if not (place / "checkpoint/current.json").exists():
            (place / "config.toml").unlink(missing_ok=True)  # another process may have been quicker


def ensure_seeds(
    config: Config,
    count: int,
    folder: Path,
    on_rounds: OnRounds = lambda lines: None,
    splits: Sequence[Split] | None = None,
) -> SeedsResult:
    """Do what is left: train, continue, or return what is finished. A folder of other runs is
    refused.
    """
    seeds = list(range(config.seed, config.seed + count))
    if kind_of(folder) is not Kind.SEEDS:
        return run_seeds(config, count, folder, on_rounds, splits)
    there, _ = _group(folder)
    found = RunFolder(folder / f"seed-{there[0]}").config()
    if config.engine.executor == "auto":
        found = replace(found, engine=replace(found.engine, executor="auto"))
    if there != seeds or fingerprint(found) != fingerprint(config):
        raise StorageError(
            f"{folder} holds runs with another configuration or other seeds; choose another folder "
            "with --out"
        )
    if splits is not None:
        for place, split in zip(_places(folder, seeds), splits, strict=True):
            if split_digest(RunFolder(place).split()) != split_digest(split):
                raise StorageError(
                    f"{place} was trained on another split; choose another folder with --out"
                )
    return resume_seeds(folder, on_rounds)


def _played(runs: list[Run], on_rounds: OnRounds, folder: Path | None) -> list[Result]:
    """Side by side in this process; where blocks go to workers, those are busy enough with one seed
    after the other.
    """
    if runs[0].experiment.config.engine.placement != "here":
        return [result for each in runs for result in play([each], on_rounds)]
    return play(runs, on_rounds, folder and folder / "done.json")


def members(folder: Path) -> list[Path]:
    """The run folders of a group; a copy that somebody put beside them is none."""
    return _places(folder, _group(folder)[0])


def _check_free(folder: Path) -> None:
    if kind_of(folder) in (Kind.SEEDS, Kind.RUN, Kind.FEDERATION):
        raise StorageError(f"{folder} already holds a run; 'fedglean resume {folder}' continues it")
    check_holds_no_several(folder)
    check_is_free(folder)


def _group(folder: Path) -> tuple[list[int], int]:
    if kind_of(folder) is not Kind.SEEDS:
        raise StorageError(
            f"{folder} does not hold the runs of several seeds; 'fedglean resume {folder}' "
            "continues any run"
        )
    try:
        seeds = [int(seed) for seed in json.loads((folder / "seeds.json").read_bytes())["seeds"]]
        marker = folder / "done.json"
        return seeds, int(json.loads(marker.read_bytes())["done"]) if marker.exists() else 0
    except UNREADABLE as error:
        raise StorageError(
            f"{folder} is damaged: its list of seeds cannot be read ({error})"
        ) from error

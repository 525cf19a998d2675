"""Train one seed of an experiment, or several side by side: on a stack that costs less.

    seeds.json      the seeds
    done.json       how many rounds all of them have done
    seed-K/         the run folder of seed K, as if it had been run alone

Every random choice of a seed is what it would have been alone. Its last bits may not be: a wider
stack may round differently. A round counts for all seeds or for none, so that killed seeds continue
to the same bits.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedglean.data.dataset import Dataset
from fedglean.data.partition import Split
from fedglean.data.split_file import split_digest
from fedglean.errors import ConfigError, StorageError
from fedglean.report.tracker import Trackers
from fedglean.runs import kinds
from fedglean.runs.config import AUTO, Config, fingerprint
from fedglean.runs.experiment import prepare, prepare_seeds, settled_for
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind
from fedglean.runs.rounds import LiveRun, play
from fedglean.runs.run import Run, Runs
from fedglean.sealed import locked, write_whole


def train(config: Config, out: Path | None = None, trackers: Trackers | None = None) -> Runs:
    """One seed; with `out`, every finished round is saved there, and `resume` goes on from it."""
    with settled_for(config):
        return _play([LiveRun.new(prepare(config), out)], out, trackers)


def resume(folder: Path, trackers: Trackers | None = None) -> Runs:
    """Go on with a run that was interrupted; a finished one is returned as it is."""
    place = RunFolder(folder)
    config = place.config()
    with settled_for(config):
        return _play([LiveRun.found(prepare(config, place.split()), place)], folder, trackers)


def train_seeds(
    config: Config,
    count: int,
    out: Path | None = None,
    trackers: Trackers | None = None,
    splits: Sequence[Split] | None = None,
    dataset: Dataset | None = None,
) -> Runs:
    """Train with the configuration's seed and the `count - 1` that follow it.

    `splits` and `dataset` are given where they are there already.
    """
    if count < 1:
        raise ConfigError(f"the number of seeds must be at least 1, not {count}")
    seeds = range(config.seed, config.seed + count)
    if seeds[-1] >= 2**63:
        what = f"the last of {count} seeds from {config.seed} on would be {seeds[-1]}, too large"
        raise ConfigError(f"{what}; use a smaller seed")
    if out is not None:
        if kinds.kind_of(out) in (Kind.SEEDS, Kind.RUN, Kind.FEDERATION):
            raise StorageError(f"{out} already holds a run; 'fedglean resume {out}' continues it")
        kinds.check_holds_no_several(out)
        kinds.check_is_free(out)
        for seed in seeds:
            _clear_if_cut_off(kinds.seed_folder(out, seed))
    live = []
    with settled_for(config):
        for each in prepare_seeds(config, seeds, splits, dataset):
            live.append(LiveRun.new(each, out and kinds.seed_folder(out, each.config.seed)))
        if out is not None:
            write_whole(out / "seeds.json", json.dumps({"seeds": list(seeds)}).encode())
        return _play(live, out, trackers)


def resume_seeds(
    folder: Path, trackers: Trackers | None = None, dataset: Dataset | None = None
) -> Runs:
    """Go on with seeds that were interrupted; finished ones are returned as they are."""
    if kinds.kind_of(folder) is not Kind.SEEDS:
        how = f"'fedglean resume {folder}' continues any run"
        raise StorageError(f"{folder} does not hold the runs of several seeds; {how}")
    seeds, done = kinds.seeds_of(folder), kinds.rounds_of_all(folder)
    places = [RunFolder(place) for place in kinds.seeds_in(folder)]
    for place in places:
        place.hold()
        place.checkpoints.settle(done)
    splits = [place.split() for place in places]
    config = places[0].config()
    with settled_for(config):
        experiments = prepare_seeds(config, seeds, splits, dataset)
        live = [LiveRun.found(each, place) for each, place in zip(experiments, places, strict=True)]
        return _play(live, folder, trackers)


def ensure_seeds(
    config: Config,
    count: int,
    folder: Path | None,
    trackers: Trackers | None = None,
    splits: Sequence[Split] | None = None,
    dataset: Dataset | None = None,
) -> Runs:
    """Train, go on, or return what is finished; another experiment's folder is refused."""
    if folder is None or kinds.kind_of(folder) is not Kind.SEEDS:
        return train_seeds(config, count, folder, trackers, splits, dataset)
    seeds = list(range(config.seed, config.seed + count))
    there = kinds.seeds_of(folder)
    found = RunFolder(kinds.seed_folder(folder, there[0])).config()
    if config.engine.executor == AUTO:
        found = replace(found, engine=replace(found.engine, executor=AUTO))
    if there != seeds or fingerprint(found) != fingerprint(config):
        what = f"{folder} holds runs with another configuration or other seeds"
        raise StorageError(f"{what}; choose another folder with --out")
    for place, split in zip(kinds.seeds_in(folder), splits or (), strict=False):
        if split_digest(RunFolder(place).split()) != split_digest(split):
            what = f"{place} was trained on another split"
            raise StorageError(f"{what}; choose another folder with --out")
    return resume_seeds(folder, trackers, dataset)


def _play(live: list[LiveRun], folder: Path | None, trackers: Trackers | None) -> Runs:
    """Side by side, or one seed after the other where workers are busy enough with one."""
    trackers = trackers or Trackers()
    config = live[0].experiment.config
    so_far = []
    for each in live:
        place = None if each.folder is None else each.folder.path
        split = each.experiment.split
        so_far.append(Run(each.experiment.config, each.progress.history, place, split))
    runs = Runs(config, so_far, folder, trackers.label)  # their histories grow
    marker = None
    if folder is not None and kinds.kind_of(folder) is Kind.SEEDS:
        marker = folder / "done.json"

    def tell(lines: object) -> None:
        trackers.round(runs)

    trackers.begin(runs)
    try:
        if config.engine.placement == "here":
            results = play(live, tell, marker)
        else:
            results = [play([each], tell)[0] for each in live]
        runs = replace(runs, runs=results)
    finally:
        trackers.end(runs)
    return runs


def _clear_if_cut_off(place: Path) -> None:
    """A run that was cut off before its first round was safe begins anew."""
    if kinds.kind_of(place) is None:
        return
    with locked(place / "lock", place):  # one that is being played is left alone
        if not (place / "checkpoint/current.json").exists():
            (place / "config.toml").unlink(missing_ok=True)  # another process may have been quicker

"""The verbs of `import fedglean`: the same runs as on the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedglean.errors import ConfigError, StorageError
from fedglean.report.plots import learning_curves
from fedglean.report.tracker import OnRound, Track, Trackers, trackers_of
from fedglean.runs.compare import Comparison, carry_out, named_methods
from fedglean.runs.config import Config, configure
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, kind_of, seeds_in
from fedglean.runs.plan import Named, make_plan, read_record
from fedglean.runs.run import Runs
from fedglean.runs.seeds import resume as resume_one
from fedglean.runs.seeds import resume_seeds, train, train_seeds
from fedglean.trust import allow


def run(
    method: str | None = None,
    seeds: int = 1,
    *,
    config: Config | None = None,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    track: Track = (),
    **options: Any,
) -> Runs:
    """Train a method: `fedglean.run("semifl", labels="hub:20", rounds=40, out="runs/first")`.

    The options are those of `fedglean run`, including the method's settings, `preset` and `file`;
    or give a whole `config`. Several seeds count up from option `seed` and train side by side. With
    `out` the runs can be resumed. After every round `on_round` gets its lines by seed, and so do
    trackers, such as "tensorboard".
    """
    if config is not None and (method is not None or options):
        raise ConfigError("give either a configuration or a method with options")
    config = config or configure(method, **options)
    folder = None if out is None else Path(out)
    trackers = Trackers(trackers_of(track, config.names), on_round)
    if seeds == 1:
        return _with_pictures(train(config, folder, trackers))
    return _with_pictures(train_seeds(config, seeds, folder, trackers))


def compare(
    methods: str | Iterable[str] | Named,
    seeds: int = 3,
    *,
    out: Path | str | None = None,
    on_round: OnRound | None = None,
    track: Track = (),
    **options: Any,
) -> Comparison:
    """Train methods on the same splits: `compare(["semifl", "fl2"], labels="hub:20").answer`.

    A dictionary gives a method its own settings or label: `{"semifl": {}, "eager": {"method":
    "semifl", "rate": 0.1}}`.
    """
    plan = make_plan(named_methods(methods), seeds, options)
    return carry_out(plan, None if out is None else Path(out), track, on_round)


def resume(
    folder: Path | str, on_round: OnRound | None = None, track: Track = (), trust: bool = False
) -> Runs | Comparison:
    """Go on with what was interrupted in a folder, or return the result of what is finished.

    That is a run, the runs of several seeds, or a comparison. With `trust`, code that the folder
    names may run.
    """
    folder = Path(folder)
    if trust:
        allow(folder)
    kind = kind_of(folder)
    if kind is Kind.COMPARISON:
        return carry_out(read_record(folder).plan(), folder, track, on_round)
    if kind is Kind.FEDERATION:
        how = f"'fedglean resume {folder}' starts its hub again"
        raise StorageError(f"{folder} holds {kind.value}; {how}")
    first = seeds_in(folder)[0] if kind is Kind.SEEDS else folder
    names = RunFolder(first).config().names
    trackers = Trackers(trackers_of(track, names), on_round)
    if kind is Kind.SEEDS:
        return _with_pictures(resume_seeds(folder, trackers))
    return _with_pictures(resume_one(folder, trackers))


def open(folder: Path | str, trust: bool = False) -> Runs | Comparison:
    """What a folder holds, finished or not, without training anything."""
    folder = Path(folder)
    if trust:
        allow(folder)
    return Comparison.of(folder) if kind_of(folder) is Kind.COMPARISON else Runs.of(folder)


def _with_pictures(runs: Runs) -> Runs:
    """The curves of each seed, and of all."""
    drawn = [Runs(each.config, [each], each.folder) for each in runs]
    if len(runs) > 1:
        drawn.append(runs)
    for each in drawn:
        if each.folder is not None:
            learning_curves({each.name: each}, each.folder / "curves.png", each.title)
    return runs

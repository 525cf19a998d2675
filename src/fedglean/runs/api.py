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
from fedglean.runs.plan import Named, Plan, make_plan, read_record
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
    """Train a method: `fedglean.run("semifl", data="digits", labels="hub:20", rounds=40,
    out="runs/first")`.

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
    """Train methods on the same splits: `compare(["semifl", "fl2"], labels="hub:20",
    out="runs/both").answer`.

    A dictionary gives a method its own settings or label: `{"semifl": {}, "eager": {"method":
    "semifl", "rate": 0.1}}`.
    """
    plan = make_plan(named_methods(methods), seeds, options)
    return _carried_out(plan, None if out is None else Path(out), on_round, track)


def resume(
    folder: Path | str, on_round: OnRound | None = None, track: Track = (), trust: bool = False
) -> Runs | Comparison:
    """Go on with whatever was interrupted in a folder, or return the result of what is finished: a
    run, the runs of several seeds, or a comparison. With `trust`, code that the folder names may
    run.
    """
    folder = Path(folder)
    if trust:
        allow(folder)
    kind = kind_of(folder)
    if kind is Kind.COMPARISON:
        return _carried_out(read_record(folder).plan(), folder, on_round, track)
    if kind is Kind.FEDERATION:
        raise StorageError(
            f"{folder} holds {kind.value}; 'fedglean resume {folder}' starts its hub again"
        )
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


def _carried_out(
    plan: Plan, folder: Path | None, on_round: OnRound | None, track: Track
) -> Comparison:
    names = plan.shared.names
    return carry_out(plan, folder, lambda: Trackers(trackers_of(track, names), on_round))


def _with_pictures(runs: Runs) -> Runs:
    """The curves of each seed, and of all."""
    for each in runs:
        _draw(Runs(each.config, [each], each.folder))
    if len(runs) > 1:
        _draw(runs)
    return runs


def _draw(runs: Runs) -> None:
    if runs.folder is not None:
        learning_curves({runs.name: runs}, runs.folder / "curves.png", runs.title)

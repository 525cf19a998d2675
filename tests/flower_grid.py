"""A small federation on a grid in this process, with a branch for each client of a simulation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedglean.engine.here import Kept
from fedglean.federation.branch import Branch
from fedglean.federation.flower import Flower
from fedglean.federation.local import LocalGrid
from fedglean.federation.post import Patience, Post, declared_of
from fedglean.federation.wire import Plan
from fedglean.runs.config import Config, configure
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import Run, play
from fedglean.testing.compare import difference

COMMON: dict[str, Any] = {
    "clients": 5,
    "block": 2,
    "rounds": 2,
    "epochs": 1,
    "device": "cpu",
    "executor": "loop",
    "dtype": "float64",
}
METHODS: dict[str, dict[str, Any]] = {
    "semifl": {
        "labels": "hub:100",
        "client_batch": 50,
        "hub_batch": 50,
        "threshold": 0.2,
        "active": 1.0,
    },
    "hassle": {"labels": "fraction:0.1", "residual_steps": 1, "active": 1.0, "batch": 100},
    "fed-shvr": {"labels": "fraction:0.1", "model": "cnn", "unlabelled_batch": 100},
}
QUICK = Patience(deadline=0.2, grace=0.1, gathering=0.3, poll=0.01)
ROUNDING = 1e-10


def small(method: str, **options: Any) -> Config:
    return configure(method, **COMMON | METHODS[method] | options)


def branches(experiment: Experiment, folder: Path) -> list[Branch]:
    """A branch for each client of a simulation, with its images and no others."""
    federation = experiment.federation

    def branch(number: int) -> Branch:
        held = federation.labelled[number], federation.unlabelled[number]
        return Branch(number, f"branch {number}", lambda classes: held, folder / str(number))

    return [branch(number) for number in range(len(federation.declared))]


def on_flower(
    experiment: Experiment, grid: LocalGrid, patience: Patience = QUICK, **changes: Any
) -> Experiment:
    dataset, federation = experiment.dataset, experiment.federation
    post = Post(
        grid,
        dataset.classes,
        len(federation.declared),
        list(dataset.train_images.shape[1:]),
        patience,
    )
    found = post.enrol()
    assert [declared_of(found[number]) for number in range(post.count)] == list(federation.declared)
    old = experiment.placement
    common = (federation, old.executor, old.block, changes.pop("quorum", old.quorum), old.stretch)
    plan = Plan.of(experiment.config, dataset)
    own = {"post": post, "method": experiment.method, "plan": plan, "run": "0123456789abcdef"}
    return replace(experiment, placement=Flower(*common, **own, **changes))


def played(
    experiment: Experiment, progress: Progress | None = None, rounds: int | None = None
) -> Progress:
    if rounds is not None:
        experiment = replace(experiment, config=replace(experiment.config, rounds=rounds))
    progress = progress or Progress(0, experiment.start(), Kept(), [])
    play([Run(experiment, progress)], lambda lines: None)
    return progress


def same(ours: Progress, theirs: Progress, tolerance: float = ROUNDING) -> bool:
    found = difference(dict(ours.state), dict(theirs.state), tolerance)
    assert found is None, found
    return True


def refusals(progress: Progress) -> list[tuple[int, str]]:
    return [
        (each["client"], each["reason"]) for line in progress.history for each in line["refused"]
    ]

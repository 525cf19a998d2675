"""The hub's side of a federation: the round loop of a simulation, with branches in the place of simulated clients.

What only a federation has lies in the run folder beside the rest: federation.json, with the run's name among branches
and what they declared. Started again with the same folder, the hub goes on from the last finished round.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from fedglean.checkpoint import make_folder, write_whole
from fedglean.config import Config, fingerprint, make_method, read_toml, resolve
from fedglean.data.federation import Federation
from fedglean.data.images import Images
from fedglean.deploy.flower import Flower
from fedglean.deploy.folders import HubImages, hub_images
from fedglean.deploy.post import Patience, Post
from fedglean.deploy.wire import Declaration, Plan
from fedglean.engines.loop import Loop
from fedglean.errors import FedgleanError, StorageError
from fedglean.evaluate import Evaluator
from fedglean.experiment import Experiment
from fedglean.folder import RunFolder
from fedglean.method import Declared
from fedglean.report.picture import curves
from fedglean.result import Result
from fedglean.run import Run, play

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Hosting:
    """All that the hub's app must know, as the command line wrote it down for it."""

    config: str
    images: str
    out: str
    branches: int
    deadline: float
    grace: float
    gathering: float

    @property
    def patience(self) -> Patience:
        return Patience(self.deadline, self.grace, self.gathering)


@dataclass
class Watch(Evaluator):
    """The hub's evaluator: it has no hidden label to compare with, and hears of pseudo-labels how many there were."""

    guesses: list[tuple[int, int]] = field(default_factory=list)

    def count(self, seen: int, trusted: int) -> None:
        self.guesses.append((seen, trusted))

    def pseudo(self) -> dict[str, float]:
        seen, trusted = (sum(column) for column in zip((0, 0), *self.guesses, strict=True))
        self.guesses.clear()
        return {"confident_share": trusted / seen} if seen else {}


def serve(grid: Grid, path: Path) -> None:
    """What Flower starts: a federation as the file says; what is to be told of it is appended to the journal beside."""
    journal = Journal(path.with_name("journal.jsonl"))
    try:
        hosting = Hosting(**json.loads(path.read_bytes()))
        result = federate(grid, hosting, journal.tell)
    except FedgleanError as error:
        journal.end(error.exit_code, f"error: {error}")
        raise
    except BaseException as error:
        journal.end(1, f"{type(error).__name__}: {error}; the SuperLink's log says where")
        raise
    journal.end(0, f"run folder: {result.folder}")


class Journal:
    """Lines for whoever watches: what is told, and in the end the exit code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tell(self, sentence: str) -> None:
        self._append({"told": sentence})

    def end(self, code: int, sentence: str) -> None:
        self._append({"told": sentence, "code": code})

    def _append(self, line: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def federate(grid: Grid, hosting: Hosting, tell: Tell) -> Result:
    """Train with the branches that the grid reaches; begins a run folder, or goes on with the one that is there."""
    layer = read_toml(Path(hosting.config))
    config = resolve(layer.get("method"), layer)
    engine = replace(config.engine, executor="loop", device="cpu", placement="here")
    config = replace(config, engine=engine, data=replace(config.data, name="folder", root=hosting.images))
    torch.set_num_threads(config.engine.threads)
    images, out = hub_images(Path(hosting.images)), Path(hosting.out)
    post = Post(grid, images.classes, hosting.patience, tell)
    if (out / "config.toml").exists():
        _check_same(out, config)
        name, declared = _known(out)
        post.declared = {each.number: Declared(each.labelled, each.unlabelled) for each in declared}
        run = Run.found(_experiment(config, images, declared, name, post), RunFolder(out))
        tell(f"going on after round {run.progress.done} of {config.rounds}")
    else:
        name, declared = _name(config), post.enrol(hosting.branches, images.shape)
        experiment = _experiment(config, images, declared, name, post)
        make_folder(out)
        note = {"run": name, "branches": [asdict(each) for each in declared]}
        write_whole(out / "federation.json", json.dumps(note, indent=1).encode())
        run = Run.new(experiment, out)
    tell(f"{len(declared)} branches, {config.rounds} rounds of {config.method}")
    result = play([run], lambda lines: tell(told(lines[0], config)))[0]
    curves({config.method: [result]}, out / "curves.png", f"{config.method}, {len(declared)} branches")
    return result


def _experiment(
    config: Config, images: HubImages, declared: Sequence[Declaration], name: str, post: Post
) -> Experiment:
    dataset, method = images.dataset(declared), make_method(config)
    split, plan = dataset.given, Plan.of(config, dataset)
    assert split is not None
    none = dataset.train_images[:0]
    federation = Federation(
        Images(dataset.train_images, split.hub, dataset.train_labels),
        tuple(Images(none, part) for part in split.labelled),
        tuple(Images(none, part) for part in split.unlabelled),
    )
    method.check(federation.declared, len(federation.hub))
    setting, gate = plan.setting(), config.gate
    evaluator = Watch(dataset.test_images, dataset.test_labels, None, setting)
    common = (federation, Loop(setting), config.engine.block, gate.quorum, gate.stretch)
    placement = Flower(*common, post=post, method=method, plan=plan, run=name, count=evaluator.count)
    return Experiment(config, method, dataset, split, federation, evaluator, placement)


def told(line: dict[str, Any], config: Config) -> str:
    """A round in a line for people."""
    parts = ["final" if line["final"] else f"round {line['round']:>3} of {config.rounds}"]
    if "accuracy" in line:
        parts.append("accuracy " + ", ".join(f"{name} {value:.1%}" for name, value in line["accuracy"].items()))
    if not line["final"]:
        parts.append(f"{line['answered']} trained, {line['abstained']} had nothing to say")
    if "confident_share" in line["pseudo"]:
        parts.append(f"{line['pseudo']['confident_share']:.0%} confident")
    parts.append(f"{line['bytes_down'] / 1e6:.2f} MB out, {line['bytes_up'] / 1e6:.2f} MB in, {line['seconds']:.0f} s")
    parts += [f"refused branch {each['client']}: {each['reason']}" for each in line["refused"]]
    return "; ".join(parts)


def _name(config: Config) -> str:
    """Of this run among those that a branch knows. Nothing random follows from it."""
    return hashlib.sha256(f"{fingerprint(config)} {time.time_ns()}".encode()).hexdigest()[:16]


def _known(out: Path) -> tuple[str, list[Declaration]]:
    try:
        note = json.loads((out / "federation.json").read_bytes())
        return str(note["run"]), [Declaration(**each) for each in note["branches"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{out} is no run of a federation: its federation.json cannot be read ({error})") from error


def _check_same(out: Path, config: Config) -> None:
    if fingerprint(RunFolder(out).config()) != fingerprint(config):
        raise StorageError(f"{out} holds a run of another configuration; choose another folder with --out")

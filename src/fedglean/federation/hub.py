"""The hub's side of a federation: the round loop of a simulation, with branches in the place of
simulated clients.

What only a federation has lies in the run folder beside the rest: federation.json, with the run's
name among branches and what they declared. Started again with the same folder, the hub goes on from
the last finished round.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from flwr.serverapp import Grid

from fedglean.data.federation import Federation
from fedglean.data.split_file import of_this
from fedglean.engine.device import chosen_device, settle
from fedglean.engine.loop import Loop
from fedglean.errors import UNREADABLE, FedgleanError, StorageError, plain
from fedglean.federation.flower import Flower
from fedglean.federation.folders import HubImages, hub_images
from fedglean.federation.post import Patience, Post, declared_of
from fedglean.federation.table import Row, row_of
from fedglean.federation.wire import Declaration, Plan
from fedglean.inputs.images import Images
from fedglean.method import Declared
from fedglean.report.picture import curves
from fedglean.runs.config import Config, fingerprint, make_method, read_toml, resolve
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import RunFolder
from fedglean.runs.result import Result
from fedglean.runs.rounds import Run, play
from fedglean.sealed import hold, make_folder, write_whole

Tell = Callable[[str], None]
OnRound = Callable[[Row], None]


@dataclass(frozen=True)
class Hosting:
    """All that the hub's app must know, as the command line wrote it down for it.

    `keys` are the branches' public keys by their numbers, None where there are none.
    """

    config: str
    images: str
    out: str
    branches: int
    deadline: float
    grace: float
    gathering: float
    keys: dict[str, str] | None = None

    @property
    def patience(self) -> Patience:
        return Patience(self.deadline, self.grace, self.gathering)


@dataclass(frozen=True)
class Roll:
    """Who takes part, as federation.json has it.

    A branch that had not come when the run began is there with no images. Once it comes it is among
    the `late`: what it has counts from then on, but not for the normalisation of images, which
    stays what it was.
    """

    run: str
    branches: tuple[Declaration, ...]
    late: dict[int, Declaration]

    @classmethod
    def begin(
        cls, run: str, count: int, shape: list[int], found: Mapping[int, Declaration]
    ) -> "Roll":
        none = [0] * shape[0]
        absent = (
            Declaration(number, f"branch {number}", 0, 0, shape, none, none)
            for number in range(count)
        )
        return cls(run, tuple(found.get(each.number, each) for each in absent), {})

    @classmethod
    def load(cls, out: Path) -> "Roll":
        try:
            note = json.loads((out / "federation.json").read_bytes())
            branches, late = (
                [Declaration(**each) for each in note[part]] for part in ("branches", "late")
            )
            return cls(str(note["run"]), tuple(branches), {each.number: each for each in late})
        except UNREADABLE as error:
            raise StorageError(
                f"{out} is not the run of a federation: its federation.json cannot be read "
                f"({error})"
            ) from error

    def save(self, out: Path) -> None:
        parts = {"branches": self.branches, "late": self.late.values()}
        note = {"run": self.run} | {
            name: [asdict(each) for each in part] for name, part in parts.items()
        }
        write_whole(out / "federation.json", json.dumps(note, indent=1).encode())

    @property
    def declared(self) -> tuple[Declared, ...]:
        return tuple(declared_of(self.late.get(each.number, each)) for each in self.branches)

    @property
    def present(self) -> dict[int, Declared]:
        """Those that have come: a branch without any image is turned away."""
        return {number: each for number, each in enumerate(self.declared) if each.total}


@dataclass(frozen=True)
class Enrolled(Federation):
    """What the hub holds, and who has enrolled by now."""

    roll: Roll

    @property
    def declared(self) -> tuple[Declared, ...]:
        return self.roll.declared


def serve(grid: Grid, path: Path) -> None:
    """What Flower starts: a federation as the file says; its messages are appended to the journal
    beside it.
    """
    with open(path.with_name("journal.jsonl"), "a", encoding="utf-8") as file:
        hold(file)
        journal = Journal(file)
        try:
            hosting = Hosting(**json.loads(path.read_bytes()))
            result = federate(grid, hosting, journal.tell, journal.row)
        except FedgleanError as error:
            journal.end(error.exit_code, f"error: {error}")
            raise
        except BaseException as error:
            journal.end(1, f"{type(error).__name__}: {error}; the SuperLink's log says where")
            raise
        journal.end(0, f"run folder: {result.folder}")


class Journal:
    """Lines for whoever watches: this process's number, what is told, rounds as rows of a table,
    the exit code.

    The file is the one that was there at the start. The app of a killed hub may outlive it, and its
    last words are not for the next hub, which ends it by that number and puts a new file into that
    place.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._append({"app": os.getpid()})

    def tell(self, sentence: str) -> None:
        self._append({"told": plain(sentence)})

    def row(self, row: Row) -> None:
        self._append({"row": [plain(cell) for cell in row]})

    def end(self, code: int, sentence: str) -> None:
        self._append({"told": plain(sentence), "code": code})

    def _append(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def federate(
    grid: Grid, hosting: Hosting, tell: Tell, on_round: OnRound = lambda row: None
) -> Result:
    """Train with the branches that the grid reaches; start a run folder, or continue the one that
    is there.
    """
    layer = read_toml(Path(hosting.config))
    config = hosted(resolve(layer.get("method"), layer), Path(hosting.images))
    device = torch.device(config.engine.device)
    settle(device, config.engine.threads, config.engine.deterministic)
    images, out = hub_images(Path(hosting.images)), Path(hosting.out)
    keys = (
        None
        if hosting.keys is None
        else {int(number): key.encode() for number, key in hosting.keys.items()}
    )
    post = Post(grid, images.classes, hosting.branches, images.shape, hosting.patience, tell, keys)
    if roll := known(out, config, hosting.branches):
        post.declared = roll.present
        experiment = _experiment(config, images.to(device), roll, post)
        of_this(RunFolder(out).split(), experiment.dataset)
        run = Run.found(experiment, RunFolder(out))
        tell(f"continuing after round {run.progress.done} of {config.rounds}")
    else:
        roll = Roll.begin(
            _name(config), hosting.branches, images.shape, post.enrol(config.gate.quorum)
        )
        experiment = _experiment(config, images.to(device), roll, post)
        make_folder(out)
        roll.save(out)
        run = Run.new(experiment, out)

    def welcome(declaration: Declaration) -> None:
        roll.late[declaration.number] = declaration
        roll.save(out)
        tell(f"branch {declaration.number} has joined, and takes part from now on")

    def show(lines: list[dict[str, Any]]) -> None:
        asked: set[int] = experiment.placement.asked  # type: ignore[attr-defined]
        on_round(row_of(lines[0], len(asked), config.rounds))
        asked.clear()

    post.welcome = welcome
    tell(
        f"{len(roll.present)} of {hosting.branches} branches, {config.rounds} rounds of "
        f"{config.method}"
    )
    result = play([run], show)[0]
    curves(
        {config.method: [result]},
        out / "curves.png",
        f"{config.method}, {hosting.branches} branches",
    )
    return result


def _experiment(config: Config, images: HubImages, roll: Roll, post: Post) -> Experiment:
    dataset, method = images.dataset(roll.branches), make_method(config)
    assert dataset.given is not None
    split, plan = of_this(dataset.given, dataset), Plan.of(config, dataset)
    none, device = dataset.train_images[:0], dataset.train_images.device
    federation = Enrolled(
        Images(dataset.train_images, split.hub.to(device), dataset.train_labels),
        tuple(Images(none, part) for part in split.labelled),
        tuple(Images(none, part) for part in split.unlabelled),
        roll,
    )
    method.check(federation.declared, len(federation.hub))
    setting, gate = plan.setting(), config.gate
    evaluator = Evaluator(dataset.test_images, dataset.test_labels, None, setting)
    common = (federation, Loop(setting), config.engine.block, gate.quorum, gate.stretch)
    placement = Flower(
        *common, post=post, method=method, plan=plan, run=roll.run, count=evaluator.count
    )
    return Experiment(config, method, dataset, split, federation, evaluator, placement)


def _name(config: Config) -> str:
    """Of this run among those that a branch knows. Nothing random follows from it."""
    return hashlib.sha256(f"{fingerprint(config)} {time.time_ns()}".encode()).hexdigest()[:16]


def hosted(config: Config, images: Path) -> Config:
    """The configuration as the hub has it: its part runs in a loop here, on its own images."""
    engine = replace(
        config.engine,
        executor="loop",
        device=chosen_device(config.engine.device).type,
        placement="here",
    )
    return replace(
        config, engine=engine, data=replace(config.data, name="folder", root=str(images.resolve()))
    )


def known(out: Path, config: Config, branches: int) -> Roll | None:
    """Who takes part in the run that the folder holds, if it holds one; it must be this one."""
    if not (out / "config.toml").exists():
        return None
    if fingerprint(RunFolder(out).config()) != fingerprint(config):
        raise StorageError(
            f"{out} holds a run with another configuration; choose another folder with --out"
        )
    roll = Roll.load(out)
    if len(roll.branches) != branches:
        count = len(roll.branches)
        raise StorageError(
            f"{out} is a run with {count} branches; use --branches {count}, or another --out"
        )
    return roll

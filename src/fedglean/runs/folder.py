"""The run folder as a whole: configuration, split, metrics, checkpoint, final model."""

import json
import os
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedglean import tree
from fedglean.data.partition import Split
from fedglean.data.split_file import load_split, save_split
from fedglean.errors import UNREADABLE, ConfigError, StorageError, no_folder
from fedglean.exchange.states import ClientStates
from fedglean.method import Mixture
from fedglean.runs.checkpoint import Checkpoints, damage
from fedglean.runs.config import Config, fingerprint, read_toml, resolve, to_toml
from fedglean.runs.evaluate import Predictor
from fedglean.runs.kinds import Kind, check_holds_no_several, check_is_free, kind_of
from fedglean.runs.trained import TrainedModel
from fedglean.sealed import digest, lock, make_folder, pack, unpack, write_whole
from fedglean.version import __version__


@dataclass
class Progress:
    """Where a run stands; `writing` is the seconds that it took to make the last round safe."""

    done: int
    state: Any
    kept: ClientStates
    history: list[dict[str, Any]]
    writing: float = 0.0


class RunFolder:
    """One run on disk; see `checkpoint` for what makes it whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoint")
        self._lock: weakref.finalize[..., Any] | None = None
        kind = kind_of(path)
        if kind in (Kind.SEEDS, Kind.COMPARISON):
            runs = sorted(each.parent for each in path.glob("**/seed-*/config.toml"))
            such = f", such as {runs[0]}" if runs else ""
            raise StorageError(f"{path} holds {kind.value}; name one of its runs{such}")
        if not path.exists():
            raise no_folder(path)
        if not (path / "config.toml").is_file():
            raise StorageError(f"{path} is not a run folder: it has no config.toml")

    @classmethod
    def create(cls, path: Path, config: Config, split: Split) -> "RunFolder":
        """A new folder, or an empty one; a folder that holds a run is never overwritten."""
        check_holds_no_several(path)
        _check_holds_no_run(path, config)
        check_is_free(path)
        make_folder(path)
        with ExitStack() as stack:
            # Two that begin at once would write into each other.
            stack.callback(lock(path / "lock", path))
            _check_holds_no_run(path, config)
            save_split(path / "split.json", split)
            write_whole(path / "metrics.jsonl", b"")
            write_whole(path / "config.toml", to_toml(config).encode())
            folder = cls(path)
            folder._lock = weakref.finalize(folder, stack.pop_all().close)
        return folder

    def hold(self) -> None:
        """Keep other processes from writing here, until `release`; a finished run is left."""
        if self._lock is None and not self.model_path.exists():
            self._lock = weakref.finalize(self, lock(self.path / "lock", self.path))

    def release(self) -> None:
        if self._lock is not None:
            self._lock()
            self._lock = None

    def config(self) -> Config:
        path = self.path / "config.toml"
        layer = read_toml(path)
        try:
            return resolve(None, layer, foreign=layer)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def split(self) -> Split:
        return load_split(self.path / "split.json")

    @cached_property
    def _split_seal(self) -> str:
        return digest((self.path / "split.json").read_bytes())

    def load(self, device: torch.device | None = None) -> Progress | None:
        """The last finished round, on the device that goes on with it, or None of none."""
        self.hold()
        if not self.checkpoints.current.exists():
            played = self._metrics().count(b"\n")
            if self.model_path.exists() or played > self.config().engine.checkpoint_every:
                what = f"the checkpoint of {self.path} is missing, so the run cannot continue"
                raise StorageError(f"{what}; 'fedglean report {self.path}' still shows it")
            write_whole(self._metrics_path, b"")
            return None
        self._check_version()
        config = self.config()
        done, state, clients, notes = self.checkpoints.load(config.names.net)
        self._check_unchanged(config, notes["config"])
        if notes.get("split", self._split_seal) != self._split_seal:  # runs of before have none
            what = f"{self.path}/split.json is not the one that the run started with"
            raise StorageError(f"{what}; restore that one")
        lines = self._metrics(notes["metrics"])
        self._check_history(lines, notes)
        if self._metrics_path.stat().st_size != len(lines):
            write_whole(self._metrics_path, lines)
        kept = ClientStates(tree.to_device(clients, device))
        history = [json.loads(line) for line in lines.splitlines()]
        return Progress(done, tree.to_device(state, device), kept, history)

    def history(self) -> list[dict[str, Any]]:
        """The rounds so far, for whoever looks on.

        The checkpoint vouches for all but the newest, which is left out where it is half written.
        """
        notes = self.checkpoints.notes()  # read first: a run at work only adds lines
        content = self._metrics()
        if notes:
            self._check_history(content[: notes["metrics"]], notes)
        whole, _, _ = content.rpartition(b"\n")
        damaged = f"{self._metrics_path} is damaged: line"
        lines = []
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                line = json.loads(text)
            except UNREADABLE as error:
                raise StorageError(f"{damaged} {number} is not JSON ({error})") from error
            if not isinstance(line, dict) or not isinstance(line.get("round"), int):
                raise StorageError(f"{damaged} {number} is not a round")
            lines.append(line)
        return lines

    def _check_history(self, lines: bytes, notes: Mapping[str, Any]) -> None:
        if digest(lines) != notes["metrics_sha256"]:
            raise damage(self._metrics_path)

    def _check_version(self) -> None:
        """What a method keeps from round to round is another since 0.2, which notes its version."""
        notes = self.checkpoints.notes()
        if notes and "version" not in notes and not self.model_path.exists():
            raise StorageError(
                f"{self.path} was begun by fedglean 0.1, and only that ends it: pip install "
                f"'fedglean<0.2', then 'fedglean resume {self.path}'; or start a new run"
            )

    def _check_unchanged(self, config: Config, seal: str) -> None:
        if config.names.is_closed_to("MODELS", config.model.name):
            return  # its file of weights, if it has one, cannot be told
        if seal != fingerprint(config):
            what = f"{self.path}/config.toml" + (f" or {config.use}" if config.use else "")
            raise StorageError(
                f"{what} was changed after the run started, or the run was started by another "
                "version of fedglean; restore it, or start a new run"
            )

    def stage(self, progress: Progress, config: Config) -> bool:
        """Write the round that was just played; whether there is a checkpoint to commit."""
        length = self._append(progress.history[-1])
        done, kept = progress.done, progress.kept
        if done < config.rounds and done % config.engine.checkpoint_every:
            return False
        notes = {
            "metrics": length,
            "metrics_sha256": digest(self._metrics(length)),
            "config": fingerprint(config),
            "split": self._split_seal,
            "version": __version__,
        }
        self.checkpoints.stage(done, progress.state, kept.states, kept.changed, notes)
        kept.changed.clear()
        return True

    def finish(self, model: TrainedModel, config: Config, rounds: int) -> None:
        """Write the final predictors, in the order in which the method names them."""
        parts = {name: _as_tree(predictor) for name, predictor in model.predictors.items()}
        notes = {
            "classes": model.classes,
            "mean": model.mean,
            "std": model.std,
            "rounds": rounds,
            "config": fingerprint(config),
        }
        write_whole(self.model_path, pack(parts, **notes))

    @property
    def model_path(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def _metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def model(self) -> TrainedModel:
        """The final predictors and what is to be known to use them."""
        if not self.model_path.exists():
            told = f"{self.path} has no final model yet"
            raise StorageError(f"{told}; 'fedglean resume {self.path}' finishes the run")
        try:
            content = self.model_path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {self.model_path}: {error.strerror}") from error
        config = self.config()  # what it uses may bring the net
        parts, notes = unpack(content, self.model_path, config.names.net)
        if config.use and config.names.holder("MODELS", config.model.name):
            self._check_unchanged(config, notes["config"])
        predictors = {name: _as_predictor(part) for name, part in parts.items()}
        classes, mean, std = (tuple(notes[name]) for name in ("classes", "mean", "std"))
        return TrainedModel(predictors, classes, mean, std, config.data.form)

    def state(self) -> tuple[int, Any] | None:
        """Rounds done and the hub's state after them, while the run may go on."""
        config = self.config()
        found = self.checkpoints.state(config.names.net)
        if found is None:
            return None
        done, state, notes = found
        self._check_unchanged(config, notes["config"])
        return done, state

    def _metrics(self, length: int | None = None) -> bytes:
        """The history so far; what follows belongs to rounds that were not finished."""
        try:
            return self._metrics_path.read_bytes()[:length]
        except OSError as error:
            raise StorageError(f"cannot read {self._metrics_path}: {error.strerror}") from error

    def _append(self, line: dict[str, Any]) -> int:
        try:
            with open(self._metrics_path, "ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise StorageError(f"cannot write {self._metrics_path}: {error.strerror}") from error


def _as_tree(predictor: Predictor) -> Any:
    if isinstance(predictor, Mixture):
        return {"models": list(predictor.models), "weights": list(predictor.weights)}
    return predictor


def _as_predictor(part: Any) -> Predictor:
    if isinstance(part, dict):
        return Mixture(tuple(part["models"]), tuple(part["weights"]))
    return part  # type: ignore[no-any-return]


def _check_holds_no_run(path: Path, config: Config) -> None:
    if not (path / "config.toml").exists():
        return
    check_same_run(path, config)
    how = f"'fedglean resume {path}' continues it or shows its result"
    raise StorageError(f"{path} already holds this very run; {how}")


def check_same_run(path: Path, config: Config) -> None:
    if fingerprint(RunFolder(path).config()) != fingerprint(config):
        what = f"{path} holds a run with another configuration"
        raise StorageError(f"{what}; choose another folder with --out")

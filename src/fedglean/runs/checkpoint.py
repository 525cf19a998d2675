"""A run folder: whole after every round, whatever happens in between.

    config.toml                 the resolved configuration
    split.json                  who holds what
    metrics.jsonl               a line a round
    model.safetensors           the final predictors
    checkpoint/current.json     names the files of the last finished round, with their SHA-256
    checkpoint/state-N…         the hub's state after round N
    checkpoint/client-K-N…      client K's own state as of round N

New files are written beside the old ones and fsynced, a new current.json among them under the name
next.json; its renaming is the one moment at which a round becomes done. What it does not name is
left over from a killed process and is removed. Several seeds that go side by side have one such
moment in common: see `rounds.commit`.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedglean.errors import UNREADABLE, StorageError
from fedglean.models.nets import NetKind, net_of
from fedglean.sealed import (
    digest,
    digest_of_json,
    make_folder,
    move,
    pack,
    unpack,
    write_whole,
    written_safely,
)
from fedglean.tree import Tree


class Checkpoints:
    """The folder `checkpoint/` of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, str]] = {}

    @property
    def current(self) -> Path:
        return self.folder / "current.json"

    @property
    def next(self) -> Path:
        return self.folder / "next.json"

    def stage(
        self,
        done: int,
        state: Tree,
        clients: Mapping[int, Tree],
        changed: set[int],
        notes: Mapping[str, Any],
    ) -> None:
        """Write `done` rounds beside what counts until `commit`; of clients, those that changed."""
        make_folder(self.folder)
        self._put("state", f"state-{done:06d}.safetensors", state)
        for client in sorted(changed):
            self._put(str(client), f"client-{client:06d}-{done:06d}.safetensors", clients[client])
        content = {"done": done, "files": self.files, **notes}
        sealed = {"content": content, "sha256": digest_of_json(content)}
        write_whole(self.next, json.dumps(sealed, indent=1).encode())

    def commit(self) -> None:
        """The one moment at which what was staged becomes the state of the run."""
        with written_safely(self.current):
            move(self.next, self.current)
        self._tidy()

    def settle(self, done: int) -> None:
        """Commit what was staged when the process ended, if those rounds are known to be done."""
        if self.next.exists() and self._read(self.next)["done"] <= done:
            with written_safely(self.current):
                move(self.next, self.current)

    def load(
        self, net: Callable[[str], NetKind] = net_of
    ) -> tuple[int, Tree, dict[int, Tree], dict[str, Any]]:
        """(rounds done, hub state, clients' states, notes) of the last finished round."""
        content = self._read(self.current)
        self.files = content["files"]
        self._tidy()
        trees = {name: self._get(entry, net) for name, entry in self.files.items()}
        state = trees.pop("state")
        notes = {name: value for name, value in content.items() if name not in ("done", "files")}
        return content["done"], state, {int(name): kept for name, kept in trees.items()}, notes

    def state(
        self, net: Callable[[str], NetKind] = net_of
    ) -> tuple[int, Tree, dict[str, Any]] | None:
        """(rounds done, hub state, notes) for whoever looks on, while a run may be at work."""
        while self.current.exists():
            content = self._read(self.current)
            try:
                return content["done"], self._get(content["files"]["state"], net), content
            except StorageError:
                if self._read(self.current) == content:  # else another round was finished
                    raise
        return None

    def notes(self) -> dict[str, Any]:
        """What was noted with the last finished round, as far as that can be read."""
        with suppress(StorageError):
            return self._read(self.current)
        return {}

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            sealed = json.loads(path.read_bytes())
            content: dict[str, Any] = sealed["content"]
            is_sound = sealed["sha256"] == digest_of_json(content)
        except UNREADABLE as error:
            raise damage(path, f" and cannot be read ({error})") from error
        if not is_sound:
            raise damage(path)
        return content

    def _put(self, name: str, file: str, content: Tree) -> None:
        packed = pack(content)
        write_whole(self.folder / file, packed)
        self.files[name] = {"file": file, "sha256": digest(packed)}

    def _get(self, entry: Mapping[str, str], net: Callable[[str], NetKind]) -> Tree:
        path = self.folder / entry["file"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if digest(content) != entry["sha256"]:
            raise damage(path)
        return unpack(content, path, net)[0]

    def _tidy(self) -> None:
        named = {entry["file"] for entry in self.files.values()} | {self.current.name}
        with suppress(OSError):  # the round is safe by now; what cannot be removed does no harm
            for path in self.folder.iterdir():
                if path.name not in named:
                    path.unlink(missing_ok=True)


def damage(path: Path, how: str = ": its checksum does not match") -> StorageError:
    return StorageError(f"{path} is damaged{how}; restore it, or start a new run")

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
moment in common: see `folder.commit`.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedglean import tree
from fedglean.errors import UNREADABLE, StorageError
from fedglean.tree import Tree

try:
    import fcntl
except ImportError:  # not on Windows: there two processes can be given one folder
    fcntl = None  # type: ignore[assignment]


def write_whole(path: Path, content: bytes) -> None:
    """Either all of the content is at `path` afterwards, or what was there before."""
    if not path.name or path.is_dir():
        raise StorageError(f"{path} is a folder; name a file in it")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with _safely(path):
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _moved(temporary, path)
    except StorageError:
        with suppress(OSError):
            temporary.unlink()  # a disk that is full should not stay so
        raise


def _moved(new: Path, path: Path) -> None:
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _safely(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; nothing that was there is lost"
        ) from error


def lock(place: Path, folder: Path) -> Callable[[], Any]:
    """Keep other processes from working in a folder, until the result is called or this one ends,
    even by kill -9.

    This kind of lock is not handed on to forked workers, which may outlive this process.
    """
    if fcntl is None:
        return lambda: None
    try:
        file = os.open(place, os.O_WRONLY | os.O_CREAT)
    except OSError as error:
        raise StorageError(f"cannot write {place}: {error.strerror}") from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(file)
        raise StorageError(
            f"another process is working in {folder}; wait until it ends, or stop it"
        ) from None
    except OSError:
        pass  # a file system that knows no locks
    return partial(os.close, file)


@contextmanager
def locked(place: Path, folder: Path) -> Iterator[None]:
    release = lock(place, folder)
    try:
        yield
    finally:
        release()


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create the folder {path}: {error.strerror}") from error


def pack(content: Tree, **notes: Any) -> bytes:
    """A tree as one safetensors file, its shape and a checksum of all that matters in the
    header.
    """
    spec, tensors = tree.encode(content)
    # A tensor may be a view into another one; a file wants its own copy.
    own = {name: leaf.cpu().clone() for name, leaf in tensors.items()}
    texts = {"tree": json.dumps(spec), "notes": json.dumps(notes)}
    # One entry alone: safetensors writes several in an order that changes from process to process.
    return save(own, metadata={"fedglean": json.dumps({**texts, "sha256": _seal(texts, own)})})


def _seal(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over texts and tensors: safetensors itself would not see a flipped bit."""
    seal = hashlib.sha256(f"{texts['tree']}\n{texts['notes']}".encode())
    for name in sorted(tensors):
        leaf = tensors[name]
        seal.update(f"\n{name} {leaf.dtype} {list(leaf.shape)}\n".encode())
        seal.update(leaf.reshape(-1).view(torch.uint8).numpy().tobytes())
    return seal.hexdigest()


def unpack(content: bytes, source: Path) -> tuple[Tree, dict[str, Any]]:
    """The tree and the notes of `pack`."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["fedglean"])
        tensors = load(content)
        if header["sha256"] != _seal(header, tensors):
            raise ValueError("its checksum does not match")
        return tree.decode(json.loads(header["tree"]), tensors), json.loads(header["notes"])
    except (SafetensorError, *UNREADABLE) as error:
        raise StorageError(f"{source} is damaged and cannot be read ({error})") from error


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
        """Write `done` rounds beside what counts until `commit`; only clients that changed are
        written anew.
        """
        make_folder(self.folder)
        self._put("state", f"state-{done:06d}.safetensors", state)
        for client in sorted(changed):
            self._put(str(client), f"client-{client:06d}-{done:06d}.safetensors", clients[client])
        content = {"done": done, "files": self.files, **notes}
        sealed = {
            "content": content,
            "sha256": digest(json.dumps(content, sort_keys=True).encode()),
        }
        write_whole(self.next, json.dumps(sealed, indent=1).encode())

    def commit(self) -> None:
        """The one moment at which what was staged becomes the state of the run."""
        with _safely(self.current):
            _moved(self.next, self.current)
        self._tidy()

    def settle(self, done: int) -> None:
        """Commit what was staged when the process ended, if it belongs to rounds that are known to
        be done.
        """
        if self.next.exists() and self._read(self.next)["done"] <= done:
            with _safely(self.current):
                _moved(self.next, self.current)

    def load(self) -> tuple[int, Tree, dict[int, Tree], dict[str, Any]]:
        """(rounds done, hub state, clients' states, notes) of the last finished round."""
        content = self._read(self.current)
        self.files = content["files"]
        self._tidy()
        trees = {name: self._get(entry) for name, entry in self.files.items()}
        state = trees.pop("state")
        notes = {name: value for name, value in content.items() if name not in ("done", "files")}
        return content["done"], state, {int(name): kept for name, kept in trees.items()}, notes

    def notes(self) -> dict[str, Any]:
        """What was noted with the last finished round; nothing where no round was, or where that
        cannot be read.
        """
        with suppress(StorageError):
            return self._read(self.current)
        return {}

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            sealed = json.loads(path.read_bytes())
            content: dict[str, Any] = sealed["content"]
            sound = sealed["sha256"] == digest(json.dumps(content, sort_keys=True).encode())
        except UNREADABLE as error:
            raise StorageError(
                f"{path} is damaged and cannot be read ({error}); restore it, or start a new run"
            ) from error
        if not sound:
            raise StorageError(
                f"{path} is damaged: its checksum does not match; restore it, or start a new run"
            )
        return content

    def _put(self, name: str, file: str, content: Tree) -> None:
        packed = pack(content)
        write_whole(self.folder / file, packed)
        self.files[name] = {"file": file, "sha256": digest(packed)}

    def _get(self, entry: Mapping[str, str]) -> Tree:
        path = self.folder / entry["file"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        if digest(content) != entry["sha256"]:
            raise StorageError(
                f"{path} is damaged: its checksum does not match; restore it, or start a new run"
            )
        return unpack(content, path)[0]

    def _tidy(self) -> None:
        named = {entry["file"] for entry in self.files.values()} | {self.current.name}
        with suppress(OSError):  # the round is safe by now; what cannot be removed does no harm
            for path in self.folder.iterdir():
                if path.name not in named:
                    path.unlink(missing_ok=True)

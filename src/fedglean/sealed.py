"""Files that are whole, unchanged and written by one process at a time.

Whole: `whole` and `write_whole` write beside the file and rename. Unchanged: a digest goes with
what is written and is compared when it is read. One process at a time: two kinds of lock, because
they say different things.

|         | `lock` (lockf)                     | `hold` and `is_held` (flock)               |
|---------|------------------------------------|--------------------------------------------|
| says    | nobody else may work in the folder | somebody still works on the file           |
| held by | one process                        | any number of them                         |
| forked  | a worker does not inherit it: it   | is asked of the open file, and not of what |
|         | may outlive the one that locked    | has its name by now                        |

Both end with the process, even by kill -9. Where there is no `fcntl`, as on Windows, none locks.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedglean import tree
from fedglean.errors import UNREADABLE, StorageError
from fedglean.models.nets import NetKind, net_of
from fedglean.tree import Tree

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

COMPACT = (",", ":")


def cache_folder() -> Path:
    """$FEDGLEAN_CACHE, else $XDG_CACHE_HOME/fedglean, else ~/.cache/fedglean."""
    own = os.environ.get("FEDGLEAN_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fedglean"


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create the folder {path}: {error.strerror}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Either all of the content is at `path` afterwards, or what was there before."""
    with whole(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of `path` once it is written."""
    if not path.name or path.is_dir():
        raise StorageError(f"{path} is a folder; name a file in it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with written_safely(path):
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            move(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # a disk that is full should not stay so


def move(new: Path, path: Path) -> None:
    """Rename a file that was written, so that the name lasts too."""
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def written_safely(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; nothing that was there is lost"
        ) from error


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of_json(content: Any, separators: tuple[str, str] | None = None) -> str:
    return digest(json.dumps(content, separators=separators, sort_keys=True).encode())


def pack(content: Tree, **notes: Any) -> bytes:
    """A tree as one safetensors file, its shape and a checksum in the header."""
    spec, tensors = tree.encode(content)
    # A tensor may be a view into another one; a file wants its own copy.
    own = {name: leaf.cpu().clone() for name, leaf in tensors.items()}
    texts = {"tree": json.dumps(spec), "notes": json.dumps(notes)}
    # One entry alone: safetensors writes several in an order that changes from process to process.
    return save(own, metadata={"fedglean": json.dumps({**texts, "sha256": _seal(texts, own)})})


def unpack(
    content: bytes, source: Path, net: Callable[[str], NetKind] = net_of
) -> tuple[Tree, dict[str, Any]]:
    """The tree and the notes of `pack`; `net` is what a model's name stands for."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["fedglean"])
        tensors = load(content)
        if header["sha256"] != _seal(header, tensors):
            raise ValueError("its checksum does not match")
        body = tree.decode(json.loads(header["tree"]), tensors, net)
        return body, json.loads(header["notes"])
    except (SafetensorError, *UNREADABLE) as error:
        raise StorageError(f"{source} is damaged and cannot be read ({error})") from error


def _seal(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over texts and tensors: safetensors itself would not see a flipped bit."""
    seal = hashlib.sha256(f"{texts['tree']}\n{texts['notes']}".encode())
    for name in sorted(tensors):
        leaf = tensors[name]
        seal.update(f"\n{name} {leaf.dtype} {list(leaf.shape)}\n".encode())
        seal.update(leaf.reshape(-1).view(torch.uint8).numpy().tobytes())
    return seal.hexdigest()


def lock(place: Path, folder: Path) -> Callable[[], Any]:
    """Keep other processes out of a folder, until the result is called or this one ends."""
    if fcntl is None:
        return lambda: None
    try:
        file = os.open(place, os.O_WRONLY | os.O_CREAT, 0o666)
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


def hold(file: IO[Any]) -> None:
    """Say that this process works on a file, until it is closed or the process ends."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH)


def is_held(file: IO[Any]) -> bool:
    """Whether another process says so of this very file; where none can say so, it is taken to."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False

"""Decoded images kept on disk, because some published forms take half a minute to decode.

The cache is a convenience and never an authority: what is not there, not readable or not intact is
decoded again, and a folder that cannot be written costs time but is no error.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedglean.errors import StorageError
from fedglean.sealed import make_folder, whole

_VERSION = 1

Tensors = Mapping[str, Tensor]


def cache_folder() -> Path:
    """$FEDGLEAN_CACHE, else $XDG_CACHE_HOME/fedglean, else ~/.cache/fedglean."""
    own = os.environ.get("FEDGLEAN_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fedglean"


def cached(name: str, sources: Iterable[Path], decode: Callable[[], Tensors]) -> Tensors:
    """What `decode` made of these very files before, or makes of them now.

    Files are distinguished by path, size and time of change; an edit that keeps all three goes
    unnoticed.
    """
    path = cache_folder() / f"{name}-{_fingerprint(sources)}.safetensors"
    tensors = _read(path)
    if tensors is None:
        tensors = decode()
        with suppress(StorageError, SafetensorError):
            _write(path, tensors)
    return tensors


def _fingerprint(sources: Iterable[Path]) -> str:
    total = hashlib.sha256(f"decoder {_VERSION}".encode())
    for source in sorted(path.resolve() for path in sources):
        state = source.stat()
        total.update(
            f"\n{source}\0{state.st_size}\0{state.st_mtime_ns}".encode(errors="surrogateescape")
        )
    return total.hexdigest()[:20]


def _checksum(tensors: Tensors) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].numpy().data)
    return total.hexdigest()


def _read(path: Path) -> Tensors | None:
    """None unless the file is there and is exactly what was written."""
    try:
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get("checksum")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    return tensors if _checksum(tensors) == expected else None


def _write(path: Path, tensors: Tensors) -> None:
    make_folder(path.parent)
    with whole(path) as temporary:
        save_file(dict(tensors), temporary, metadata={"checksum": _checksum(tensors)})

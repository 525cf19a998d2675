"""Whose code may run: what this user has run himself, or has allowed.

A run folder or a configuration may name code, and may come from anybody. That code runs only once
its reader has named it himself (`--use`, `use=`), or has said `--trust`. Either is remembered by
the SHA-256 of what runs, so that one's own runs are resumed and shown without being asked again.
"""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedglean.errors import StorageError
from fedglean.sealed import cache_folder

#: Code that is named by the module that has it, such as "package.module:Name".
PLACE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


def digest_of(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def digest_of_place(place: str) -> str:
    """Of code that is installed here: what was allowed is its name."""
    return digest_of(f"import {place}".encode())


def is_trusted(digest: str) -> bool:
    """Whether this user has run or allowed that code; a list that others may write says nothing."""
    try:
        about = _list().stat()
        if os.name == "posix" and (about.st_uid != os.getuid() or about.st_mode & 0o022):
            return False
        return digest in _list().read_text("ascii").split()
    except (OSError, UnicodeDecodeError):
        return False


def remember(digest: str) -> None:
    """Trust code of that digest from now on, if that can be noted."""
    if not is_trusted(digest):
        with suppress(OSError):
            _list().parent.mkdir(parents=True, exist_ok=True)
            file = os.open(_list(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(file, "a", encoding="ascii") as lines:
                lines.write(f"{digest}\n")


def allow(folder: Path | str) -> None:
    """Trust the code that the runs and comparisons in a folder name, as it is now."""
    for layer in _layers(Path(folder)):
        for value in _texts(layer):
            if PLACE.fullmatch(value):
                _note(digest_of_place(value), value)
        use = layer.get("use")
        if isinstance(use, str) and use != "none":
            with suppress(OSError):  # whoever opens the folder says that it is not there
                _note(digest_of(Path(use).expanduser().read_bytes()), use)


def _note(digest: str, what: str) -> None:
    remember(digest)
    if not is_trusted(digest):
        raise StorageError(
            f"cannot note in {_list()} that {what} is trusted; set FEDGLEAN_CACHE to a folder that "
            "is yours alone"
        )


def _texts(layer: Mapping[str, Any]) -> Iterator[str]:
    for value in layer.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value)


def _layers(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Configurations as they stand in files; what cannot be read is told by whoever opens it."""
    for path in [*folder.rglob("config.toml"), *folder.rglob("hub.toml")]:
        with suppress(OSError, ValueError):
            yield tomllib.loads(path.read_text("utf-8"))
    for path in folder.rglob("compare.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            for entry in json.loads(path.read_bytes())["entries"]:
                if isinstance(entry["config"], Mapping):
                    yield entry["config"]


def _list() -> Path:
    return cache_folder() / "trusted-code"

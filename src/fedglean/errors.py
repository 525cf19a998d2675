"""The errors that a user can mend.

    FedgleanError
    ├── ConfigError      a name, key or value that makes no sense           exit 2
    ├── DataError        images or labels that are missing or broken        exit 3
    ├── UntrustedError   code that a folder names and nobody has allowed    exit 3
    ├── StorageError     a run folder that cannot be read, written, trusted exit 4
    └── RoundError       too few clients sent something usable              exit 5

They reach the terminal as one sentence. Any other exception is a bug and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

FEW, MANY = 3, 50

#: What may be raised by whoever reads JSON from a file that is not what it was when it was written.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


class FedgleanError(Exception):
    """Base of all errors that a user can mend."""

    exit_code = 1


class ConfigError(FedgleanError):
    """A name, key or value that makes no sense."""

    exit_code = 2


class DataError(FedgleanError):
    """Images or labels that are missing or broken."""

    exit_code = 3


class UntrustedError(FedgleanError):
    """A folder or file names code that whoever opens it has not allowed."""

    exit_code = 3


class StorageError(FedgleanError):
    """A run folder that cannot be read, written or trusted."""

    exit_code = 4


class RoundError(FedgleanError):
    """Too few clients sent something usable."""

    exit_code = 5


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a misspelt name: suggests the nearest one, or lists what there is."""
    names = sorted(known)
    begun = [each for each in names if each.startswith(name)]
    near = [each for each in names if _fold(each) == _fold(name)][-1:]
    near = near or get_close_matches(name, names, n=1)
    if near and len(begun) <= FEW:
        hint = f"did you mean '{near[0]}'?"
        if 1 < len(names) <= FEW:
            hint += f" The choices are {', '.join(names)}."
    elif 0 < len(begun) <= MANY:
        hint = f"these begin so: {', '.join(begun)}"
    elif not begun and len(names) <= MANY:
        hint = f"known: {', '.join(names)}"
    else:
        hint = f"there are {len(names)}, such as {', '.join((begun or names)[:FEW])}"
    return ConfigError(f"unknown {kind} '{name}'; {hint}")


def _fold(name: str) -> str:
    """Without what people mix up: the papers' capitals, and hyphens with underscores."""
    return name.lower().replace("_", "-")


def plain(text: str) -> str:
    """A stranger's words as they may be shown: without control characters."""
    return "".join(each if each.isprintable() else " " for each in text)


def no_folder(path: Path) -> StorageError:
    """The error for a missing folder: suggests one beside it whose name is nearly the same."""
    beside: list[str] = []
    if path.parent.is_dir():
        beside = [each.name for each in path.parent.iterdir() if each.is_dir()]
    near = get_close_matches(path.name, beside, n=1)
    hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
    return StorageError(f"there is no folder {path}{hint}")

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
    """The error for a misspelt name: suggests the nearest one, or lists what there is if little is
    or none is near.
    """
    names = sorted(known)
    alike = {_spelt(each): each for each in names}
    begun = [each for each in names if each.startswith(name)]
    near = alike.get(_spelt(name)) or next(iter(get_close_matches(name, names, n=1)), None)
    if near and len(begun) <= FEW:
        others = f" The choices are {', '.join(names)}." if 1 < len(names) <= FEW else ""
        return ConfigError(f"unknown {kind} '{name}'; did you mean '{near}'?{others}")
    some = begun or names
    if len(some) <= MANY:
        return ConfigError(
            f"unknown {kind} '{name}'; {'these begin so' if begun else 'known'}: {', '.join(some)}"
        )
    return ConfigError(
        f"unknown {kind} '{name}'; there are {len(names)}, such as {', '.join(some[:FEW])}"
    )


def _spelt(name: str) -> str:
    """Without what people mix up: the papers' capitals, and hyphens with underscores."""
    return name.lower().replace("_", "-")


def plain(text: str) -> str:
    """A stranger's words as they may be shown: no control characters, and nothing that cannot be
    encoded.
    """
    return "".join(each if each.isprintable() else " " for each in text)


def no_folder(path: Path) -> StorageError:
    """The error for a missing folder: suggests one beside it whose name is nearly the same."""
    beside = (
        [each.name for each in path.parent.iterdir() if each.is_dir()]
        if path.parent.is_dir()
        else []
    )
    near = get_close_matches(path.name, beside, n=1)
    return StorageError(
        f"there is no folder {path}"
        + (f"; did you mean {path.with_name(near[0])}?" if near else "")
    )

"""What can go wrong, by whose mistake.

    FedgleanError
    ├── ConfigError      a name, key or value that makes no sense           exit 2
    ├── DataError        images or labels that are missing or broken        exit 3
    ├── StorageError     a run folder that cannot be read, written, trusted exit 4
    └── RoundError       too few clients sent something usable              exit 5

These are the user's business and reach the terminal as one sentence. Anything else is a bug and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FedgleanError(Exception):
    """Base of all errors that a user can mend."""

    exit_code = 1


class ConfigError(FedgleanError):
    """A name, key or value that makes no sense."""

    exit_code = 2


class DataError(FedgleanError):
    """Images or labels that are missing or broken."""

    exit_code = 3


class StorageError(FedgleanError):
    """A run folder that cannot be read, written or trusted."""

    exit_code = 4


class RoundError(FedgleanError):
    """Too few clients sent something usable."""

    exit_code = 5


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a misspelt name: says what is close, or all there is."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"unknown {kind} '{name}'; {hint}")

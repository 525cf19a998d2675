"""What a table, a figure or a theorem of a paper is to `fedglean reproduce`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Wish:
    """What the user asked for. `scale` shortens every run's rounds; `cell` picks one part of a table or figure."""

    out: Path
    seeds: int = 1
    scale: float = 1.0
    cell: str | None = None
    data_root: Path | None = None
    options: tuple[tuple[str, Any], ...] = ()
    quiet: bool = False


@dataclass(frozen=True)
class Study:
    """One entry of `fedglean reproduce`.

    `run` does what is still to be done below `wish.out` (finished parts are found there and kept), prints what came out
    next to what was published, and leaves `result.json` and, where there is something to draw, `figure.png`.
    """

    title: str
    cells: tuple[str, ...]
    run: Callable[[Wish], None]

"""What repeats a paper: presets and studies, which plug-ins bring in tables of these names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A published setting of a method, as a layer of a configuration.

    `published` maps a predictor, "best" or "round N" to the printed per cent, if any was printed.
    """

    summary: str
    method: str
    layer: Mapping[str, Any]
    published: Mapping[str, float] | None = None


@dataclass(frozen=True)
class StudyOptions:
    """What the user asked for.

    `scale` shortens every run's rounds; `cell` picks one part of a table or figure.
    """

    out: Path
    seeds: int = 1
    scale: float = 1.0
    cell: str | None = None
    data_root: Path | None = None
    options: tuple[tuple[str, Any], ...] = ()
    quiet: bool = False

    @property
    def is_comparable(self) -> bool:
        """Whether numbers are of the data set that the paper's are of."""
        return not {"data", "data.name"} & dict(self.options).keys()

    def file(self, name: str) -> Path:
        """Where that is written: one part of it has a file of its own."""
        path = self.out / name
        if self.cell is None:
            return path
        part = re.sub(r"[^\w.=-]+", "-", f"-{self.cell}")
        return path.with_stem(f"{path.stem}{part}")


@dataclass(frozen=True)
class Study:
    """A table, a figure or a theorem of a paper: one entry of `fedglean reproduce`.

    `run` does what is still to be done below `options.out` (finished parts are found there and
    kept), prints what came out next to what was published, and leaves `result.json` and, where
    there is something to draw, `figure.png`; a figure or theorem of which one part was asked for
    leaves `options.file` of both. `takes` are the options that change what comes out: others are
    refused, so that no title tells of what was not done. `page` makes Markdown of `result.json`.
    """

    title: str
    cells: tuple[str, ...]
    run: Callable[[StudyOptions], None]
    takes: tuple[str, ...] = ("--seeds", "--scale", "--set")
    page: Callable[[Path], str] | None = None

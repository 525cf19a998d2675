"""What a table, a figure or a theorem of a paper is to `fedglean reproduce`."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedglean.version import __version__


@dataclass(frozen=True)
class Wish:
    """What the user asked for. `scale` shortens every run's rounds; `cell` picks one part of a
    table or figure.
    """

    out: Path
    seeds: int = 1
    scale: float = 1.0
    cell: str | None = None
    data_root: Path | None = None
    options: tuple[tuple[str, Any], ...] = ()
    quiet: bool = False

    @property
    def comparable(self) -> bool:
        """Whether numbers are of the data set that the paper's are of."""
        return not {"data", "data.name"} & dict(self.options).keys()

    def file(self, name: str) -> Path:
        """Where that is written: what was found of one part leaves alone what was found of all of
        them.
        """
        part = "" if self.cell is None else re.sub(r"[^\w.=-]+", "-", f"-{self.cell}")
        return self.out / f"{Path(name).stem}{part}{Path(name).suffix}"


@dataclass(frozen=True)
class Study:
    """One entry of `fedglean reproduce`.

    `run` does what is still to be done below `wish.out` (finished parts are found there and kept),
    prints what came out next to what was published, and leaves `result.json` and, where there is
    something to draw, `figure.png`; a figure or theorem of which one part was asked for leaves
    `wish.file` of both. `takes` are the options that change what comes out: others are refused, so
    that no title tells of what was not done.
    """

    title: str
    cells: tuple[str, ...]
    run: Callable[[Wish], None]
    takes: tuple[str, ...] = ("--seeds", "--scale", "--set")


def made_by() -> dict[str, str]:
    """What a number in the docs carries: the command, the machine and the commit that made it."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = (
        f"{os.cpu_count()} cores, {gpu}, Python {platform.python_version()}, torch "
        f"{torch.__version__}"
    )
    return {
        "command": shlex.join(["fedglean", *sys.argv[1:]]),
        "machine": machine,
        "commit": _commit(),
    }


def _commit() -> str:
    """Of the checkout that the package lies in, and whether anything was changed since; else the
    version.
    """
    here = Path(__file__).parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
        found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        found = ""
    return found or f"version {__version__}"

"""What a folder holds: the only place that knows the files by which one can tell."""

import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from fedglean.errors import UNREADABLE, ConfigError, StorageError
from fedglean.schema import read

T = TypeVar("T")


class Kind(Enum):
    RUN = "a run"
    SEEDS = "the runs of several seeds"
    COMPARISON = "a comparison"
    FEDERATION = "the run of a federation"


#: By what is in a folder, the first that is there: a federation's folder is a run's too.
MARKERS = {
    "compare.json": Kind.COMPARISON,
    "seeds.json": Kind.SEEDS,
    "flower/options.json": Kind.FEDERATION,
    "federation.json": Kind.FEDERATION,
    "config.toml": Kind.RUN,
}

#: What lies there before the first of these is written, if a run is stopped at its very beginning.
BEGUN = re.compile(r"lock|split\.json|metrics\.jsonl|seed-\d+|\..*")


def kind_of(folder: Path) -> Kind | None:
    """None of a folder that holds none of these, and where there is no folder."""
    for name, kind in MARKERS.items():
        if (folder / name).is_file():
            return kind
    return None


def check_holds_no_several(folder: Path) -> None:
    """Nothing is written beside several runs."""
    kind = kind_of(folder)
    if kind in (Kind.SEEDS, Kind.COMPARISON):
        raise StorageError(f"{folder} holds {kind.value}; choose another folder with --out")


def check_is_free(folder: Path) -> None:
    """A run is not written among somebody's other files."""
    if kind_of(folder) is not None or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if not BEGUN.fullmatch(path.name):
            what = f"{folder} is no run folder, and {path.name} is in it"
            raise StorageError(f"{what}; name a new folder with --out")


@dataclass(frozen=True)
class _Seeds:
    """What seeds.json and done.json hold."""

    seeds: tuple[int, ...] = ()
    done: int = 0


def seeds_in(folder: Path) -> list[Path]:
    """The run folders of several seeds; a copy that somebody put beside them is none."""
    return [seed_folder(folder, seed) for seed in seeds_of(folder)]


def seed_folder(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def seeds_of(folder: Path) -> list[int]:
    found = list(read_json(_Seeds, folder / "seeds.json").seeds)
    if not found:
        raise StorageError(f"{folder} is damaged: its seeds.json names no seed")
    return found


def rounds_of_all(folder: Path) -> int:
    """How many rounds all of several seeds have done."""
    path = folder / "done.json"
    return read_json(_Seeds, path).done if path.exists() else 0


def read_json(kind: type[T], path: Path) -> T:
    """What a file in a folder of runs holds."""
    try:
        return read(kind, json.loads(path.read_bytes()))
    except (ConfigError, *UNREADABLE) as error:
        told = f"{path.parent} is damaged: its {path.name} cannot be read ({error})"
        raise StorageError(told) from error

"""What a folder holds: the only place that knows the files by which one can tell."""

from enum import Enum
from pathlib import Path

from fedglean.errors import StorageError


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

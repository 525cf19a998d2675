"""Histories as TensorBoard's event files, for who has it open anyway; metrics.jsonl stays the
source.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedglean.errors import ConfigError
from fedglean.report.gather import gather
from fedglean.sealed import make_folder


def write_events(folders: Sequence[Path], out: Path) -> Path:
    """Below `out` a folder for each label and seed; event files that are there are replaced."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"event files need the package tensorboard ({error}); install it with pip install "
            "'fedglean[tensorboard]'"
        ) from error
    for group in gather(folders):
        for run in group.runs:
            place = out / group.label.replace("/", "_") / f"seed-{run.config.seed}"
            make_folder(place)
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            with SummaryWriter(str(place)) as writer:
                for line in run.history:
                    for name, value in scalars(line):
                        writer.add_scalar(name, value, line["round"] + bool(line.get("final")))
    return out


def scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a round by name: `accuracy/model`, `bytes_up`."""
    for name, value in line.items():
        if isinstance(value, dict):
            yield from (
                (f"{name}/{key}", part)
                for key, part in value.items()
                if isinstance(part, int | float)
            )
        elif name == "refused":
            yield name, len(value)
        elif isinstance(value, int | float) and name not in ("round", "final"):
            yield name, value

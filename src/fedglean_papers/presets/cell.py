"""What a preset is: a cell of a table, or a point of a figure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Layer = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """One cell: `published` maps a predictor, "best" or "round N" to the printed per cent; figures
    print none.
    """

    summary: str
    method: str
    layer: Mapping[str, Any]
    published: Mapping[str, float] | None = None


Cell = tuple[str, Preset]


def layer(data: str, model: str, norm: str, split: Layer, rounds: int, settings: Layer) -> Layer:
    return {
        "data": {"name": data},
        "model": {"name": model, "norm": norm},
        "split": split,
        "rounds": rounds,
        "settings": settings,
    }

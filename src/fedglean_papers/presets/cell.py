"""What a preset is: a cell of a table, or a point of a figure."""

from typing import Any

from fedglean.studies import Preset

Layer = dict[str, Any]


Cell = tuple[str, Preset]


def layer(data: str, model: str, norm: str, split: Layer, rounds: int, settings: Layer) -> Layer:
    return {
        "data": {"name": data},
        "model": {"name": model, "norm": norm},
        "split": split,
        "rounds": rounds,
        "settings": settings,
    }

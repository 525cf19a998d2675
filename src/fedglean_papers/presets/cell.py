"""What a preset is: a cell of a table, or a point of a figure."""

from typing import Any

from fedglean.method import Method
from fedglean.schema import fields_of
from fedglean.studies import Preset

Layer = dict[str, Any]
Cell = tuple[str, Preset]


def all_settings(method: type[Method], **changed: Any) -> Layer:
    """All settings of a method: its class has them as its authors do, but for what is changed."""
    own = {name: each.default for name, (each, _) in fields_of(method).items()}
    return own | changed


def layer(data: str, model: str, norm: str, split: Layer, rounds: int, settings: Layer) -> Layer:
    return {
        "data": {"name": data},
        "model": {"name": model, "norm": norm},
        "split": split,
        "rounds": rounds,
        "settings": settings,
    }

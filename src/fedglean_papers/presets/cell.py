"""What a preset is: a cell of a table, or a point of a figure."""

from typing import Any

from fedglean.methods import METHODS
from fedglean.schema import fields_of
from fedglean.studies import Preset
from fedglean_papers.semifl_rows import ROWS

Layer = dict[str, Any]
Cell = tuple[str, Preset]


def all_settings(method: str, **changed: Any) -> Layer:
    """All settings of a method: its class has them as its authors do, but for what is changed."""
    fields = fields_of({**METHODS, **ROWS}[method].method)
    own = {name: each.default for name, (each, _) in fields.items()}
    return own | changed


def layer(data: str, model: str, norm: str, split: Layer, rounds: int, settings: Layer) -> Layer:
    return {
        "data": {"name": data},
        "model": {"name": model, "norm": norm},
        "split": split,
        "rounds": rounds,
        "settings": settings,
    }

"""Federated semi-supervised learning: few labels, many clients whose data never leaves them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedglean.version import __version__ as __version__

if TYPE_CHECKING:
    from fedglean.public import *

__all__ = [
    "Ask",
    "Comparison",
    "Config",
    "FedgleanError",
    "Method",
    "Predict",
    "Run",
    "Runs",
    "Statistics",
    "Stream",
    "Train",
    "Upload",
    "compare",
    "configure",
    "open",
    "predict",
    "resume",
    "run",
    "setting",
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: torch alone takes a second."""
    if name not in __all__:
        raise AttributeError(f"module 'fedglean' has no attribute '{name}'")
    return getattr(import_module("fedglean.public"), name)

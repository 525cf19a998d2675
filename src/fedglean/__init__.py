"""Federated semi-supervised learning: few labels, many clients whose data never leaves them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedglean.version import __version__ as __version__

if TYPE_CHECKING:
    from fedglean.public import *

__all__ = [
    "Apply",
    "Ask",
    "Comparison",
    "Config",
    "FedgleanError",
    "Method",
    "Predict",
    "Report",
    "Run",
    "Runs",
    "Statistics",
    "Stream",
    "Train",
    "Upload",
    "compare",
    "configure",
    "from_module",
    "open",
    "predict",
    "resume",
    "run",
    "setting",
    "together",
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: torch alone takes a second."""
    if name not in __all__:
        raise AttributeError(f"module 'fedglean' has no attribute '{name}'")
    return getattr(import_module("fedglean.public"), name)

"""All that `import fedglean` offers; nothing is imported before it is used: torch is slow."""

from fedglean.errors import FedgleanError
from fedglean.method import (
    Apply,
    Ask,
    Method,
    Predict,
    Report,
    Statistics,
    Stream,
    Train,
    Upload,
    setting,
    together,
)
from fedglean.models.from_module import from_module
from fedglean.runs.api import compare, open, resume, run
from fedglean.runs.compare import Comparison
from fedglean.runs.config import Config, configure
from fedglean.runs.predict import predict
from fedglean.runs.run import Run, Runs

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

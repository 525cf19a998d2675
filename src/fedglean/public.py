"""All that `import fedglean` offers; nothing is imported before it is used: torch is slow."""

from fedglean.errors import FedgleanError
from fedglean.method import Ask, Method, Predict, Statistics, Stream, Train, Upload, setting
from fedglean.runs.api import compare, open, resume, run
from fedglean.runs.compare import Comparison
from fedglean.runs.config import Config, configure
from fedglean.runs.predict import predict
from fedglean.runs.run import Run, Runs

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

"""All that `import fedglean` offers; nothing is imported before it is used: torch is slow."""

from fedglean.errors import FedgleanError
from fedglean.method import Ask, Method, Predict, Statistics, Stream, Train, Upload, setting
from fedglean.runs.api import resume, resume_seeds, run, run_seeds, train, train_seeds
from fedglean.runs.compare import Comparison, compare, resume_comparison
from fedglean.runs.config import Config, configure
from fedglean.runs.predict import predict
from fedglean.runs.result import Result
from fedglean.runs.seeds import SeedsResult

__all__ = [
    "Ask",
    "Comparison",
    "Config",
    "FedgleanError",
    "Method",
    "Predict",
    "Result",
    "SeedsResult",
    "Statistics",
    "Stream",
    "Train",
    "Upload",
    "compare",
    "configure",
    "predict",
    "resume",
    "resume_comparison",
    "resume_seeds",
    "run",
    "run_seeds",
    "setting",
    "train",
    "train_seeds",
]

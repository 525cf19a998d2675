"""Federated semi-supervised learning: few labels, many clients whose data never leaves them."""

from fedglean.api import resume, run, train
from fedglean.config import Config, configure
from fedglean.errors import FedgleanError
from fedglean.method import Ask, Method, Predict, Statistics, Stream, Train, Upload, setting
from fedglean.predict import predict
from fedglean.result import Result

__all__ = [
    "Ask",
    "Config",
    "FedgleanError",
    "Method",
    "Predict",
    "Result",
    "Statistics",
    "Stream",
    "Train",
    "Upload",
    "configure",
    "predict",
    "resume",
    "run",
    "setting",
    "train",
]

"""The command line. A user's mistake ends as one sentence and the error's exit code; a bug keeps
its traceback.
"""

from fedglean.__main__ import main
from fedglean.cli import (
    campaign,
    compare,
    deploy,
    export,
    look,
    report,
    reproduce,
    train,
)  # each enters its commands
from fedglean.cli.shared import app

__all__ = [
    "app",
    "campaign",
    "compare",
    "deploy",
    "export",
    "look",
    "main",
    "report",
    "reproduce",
    "train",
]

"""The command line. A user's mistake ends as one sentence and the error's exit code; a bug keeps its traceback."""

from fedglean.cli import deploy, look, train  # each enters its commands
from fedglean.cli.shared import app

__all__ = ["app", "deploy", "look", "main", "train"]


def main() -> None:
    app()

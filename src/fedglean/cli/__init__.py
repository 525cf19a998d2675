"""The command line: a user's mistake ends as a sentence and an exit code, a bug as a traceback."""

from fedglean.__main__ import main

# Each enters its commands.
from fedglean.cli import campaign, compare, deploy, export, look, report, reproduce, train, verify  # noqa: F401
from fedglean.cli.shared import app

__all__ = ["app", "main"]

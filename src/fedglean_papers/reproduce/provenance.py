"""What a number in the docs carries."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from fedglean.version import __version__


def provenance() -> dict[str, str]:
    """The command, the machine and the commit that made a number."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    python = f"Python {platform.python_version()}, torch {torch.__version__}"
    return {
        "command": shlex.join(["fedglean", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {gpu}, {python}",
        "commit": _commit(),
    }


def _commit() -> str:
    """Of the checkout that the package lies in, and whether it was changed; else the version."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        command = [*words, "--exclude=*"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        found = ""
    return found or f"version {__version__}"

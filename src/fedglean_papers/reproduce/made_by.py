"""What a number in the docs carries."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from fedglean.version import __version__


def made_by() -> dict[str, str]:
    """What a number in the docs carries: the command, the machine and the commit that made it."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = (
        f"{os.cpu_count()} cores, {gpu}, Python {platform.python_version()}, torch "
        f"{torch.__version__}"
    )
    return {
        "command": shlex.join(["fedglean", *sys.argv[1:]]),
        "machine": machine,
        "commit": _commit(),
    }


def _commit() -> str:
    """Of the checkout that the package lies in, and whether anything was changed since; else the
    version.
    """
    here = Path(__file__).parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
        found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        found = ""
    return found or f"version {__version__}"

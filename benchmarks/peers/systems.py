"""Who takes part, and the virtual environment each of them runs in, made when it is first
needed.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SIDE = Path(os.environ.get("FEDGLEAN_BENCH", Path.home() / ".cache" / "fedglean-bench"))
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class System:
    """A worker's script with its argument; without a requirement it runs where fedglean is
    installed.
    """

    name: str
    script: str
    argument: str | None = None
    requirement: str | None = None


SYSTEMS = (
    System("fedglean stack", "with_fedglean", "stack"),
    System("fedglean loop", "with_fedglean", "loop"),
    System("fedglean loop, 2 workers", "with_fedglean", "workers"),
    System("by hand", "by_hand"),
    System("pfl", "with_pfl", requirement="pfl[pytorch]==0.6.0"),
    System("FedLab", "with_fedlab", requirement="fedlab==1.3.0"),
    System("fluke", "with_fluke", requirement="fluke-fl==0.8.1"),
    System("Flower", "with_flower", requirement="flwr[simulation]==1.41.0"),
)


def interpreter(system: System) -> Path:
    """The Python to run a system with; raises CalledProcessError where it does not install."""
    if system.requirement is None:
        return Path(sys.executable)
    folder = SIDE / "venvs" / system.name.lower()
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = f"{TORCH} {system.requirement}"
    if not ready.exists() or ready.read_text() != wanted:
        _install(folder, python, system.requirement)
        ready.write_text(wanted)
    return python


def _install(folder: Path, python: Path, requirement: str) -> None:
    """The same torch for all: another build would be another race. The rest is what a system itself
    asks for.
    """
    _run(sys.executable, "-m", "venv", "--clear", folder)
    _run(python, "-m", "pip", "install", "--quiet", TORCH, "numpy", requirement)


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)

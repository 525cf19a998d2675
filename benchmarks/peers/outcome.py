"""From a race to its table and its JSON."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from race import Entry
from rich.table import Table
from systems import REPOSITORY
from task import TEST, Task


def rows(entries: Sequence[Entry], by_hand: Sequence[float]) -> list[dict[str, Any]]:
    """One a system; `ratio` is CPU against fedglean's cheaper executor, `counts` whether it learnt
    as the loop did.

    `by_hand` are accuracies of the loop by hand with several seeds.
    """
    ran = [entry for entry in entries if entry.failed is None]
    own = min(
        (entry.cost("cpu") for entry in ran if entry.system.startswith("fedglean")), default=None
    )
    return [_row(entry, own, by_hand) for entry in entries]


def _row(entry: Entry, own: float | None, by_hand: Sequence[float]) -> dict[str, Any]:
    if entry.failed is not None:
        return {"system": entry.system, "failed": entry.failed}
    cpu, accuracy = entry.cost("cpu"), entry.end["accuracy"]
    return {
        "system": entry.system,
        "cpu": cpu,
        "wall": entry.cost("wall"),
        "ratio": cpu / own if own else None,
        "accuracy": accuracy,
        "counts": abs(accuracy - fmean(by_hand)) <= noise(by_hand),
        "raw": asdict(entry),
    }


def noise(by_hand: Sequence[float]) -> float:
    """Three standard deviations of the loop by hand over seeds, and of what the test set's size
    leaves open.
    """
    mean = fmean(by_hand)
    return 3 * sqrt(variance(by_hand) + 2 * mean * (1 - mean) / TEST)


def table(task: Task, found: Sequence[Mapping[str, Any]]) -> Table:
    made = Table(
        title=f"{task.name}: seconds a round, median; CPU as a ratio to fedglean's cheaper executor"
    )
    for heading in ("system", "CPU ms", "CPU range", "wall ms", "ratio", "accuracy", "counts"):
        made.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for row in found:
        made.add_row(*_cells(row))
    return made


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "failed" in row:
        return [row["system"], row["failed"]]
    spent = [turn["cpu"] for turn in row["raw"]["turns"]]
    return [
        row["system"],
        f"{1000 * row['cpu']:.1f}",
        f"{1000 * min(spent):.1f}-{1000 * max(spent):.1f}",
        f"{1000 * row['wall']:.1f}",
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        f"{row['accuracy']:.3f}",
        "yes" if row["counts"] else "NO",
    ]


def circumstances() -> dict[str, Any]:
    """Where and on what the numbers were made."""
    changed = _git("status", "--porcelain", "--", "src")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since": changed.splitlines(),
        "load_before": os.getloadavg()[0],
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def _git(*words: str) -> str:
    asked = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)
    return asked.stdout.rstrip()

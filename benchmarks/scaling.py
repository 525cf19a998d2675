"""Claim: a round costs what its active clients cost; registered ones cost nothing, and memory does
not grow by rounds.

SemiFL, seconds a round and peak memory, each cell in a process of its own:

    active       1, 10, 50, 100 of 100 clients train in a round
    registered   10 active of 100, 1,000, 10,000 clients, statistics from the hub alone
    seeds        1, 4, 8 side by side, against as many runs one after the other
    workers      1 and 2 processes (CPU only)
    rounds       memory after 100 and after 1,000 rounds

    # Digits and noise, minutes on a laptop.
    python benchmarks/scaling.py
    python benchmarks/scaling.py --data cifar10 --data-root DATA --model wrn-28-2 --half \\
        --compile --only active,seeds

Prints a table and writes benchmarks/results/scaling.json (or --out). Seconds are the median of the
rounds after the first two, in which steps are compiled and captured; memory is what the process had
at most (on CUDA: what torch had).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedglean.runs.config import configure
from fedglean.runs.experiment import prepare_seeds
from fedglean.runs.rounds import LiveRun, play

AXES: dict[str, list[int]] = {
    "active": [1, 10, 50, 100],
    "registered": [100, 1000, 10000],
    "seeds": [1, 4, 8],
    "workers": [1, 2],
    "rounds": [1000],
}


def main() -> None:
    options = parsed()
    if options.cell:
        axis, value = options.cell.split("=")
        print(json.dumps(cell(axis, int(value), options)))
        return
    rows = []
    for axis in options.only.split(",") if options.only else AXES:
        if axis == "workers" and torch.cuda.is_available():
            continue
        for value in AXES[axis]:
            rows.append({"axis": axis, "value": value, **measured(axis, value)})
            print(rows[-1], file=sys.stderr)
    show(rows, options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--labels", default=None)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rounds", type=int, default=6, help="rounds that are timed")
    parser.add_argument("--only", default=None, help="some of: " + ", ".join(AXES))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "scaling.json"
    )
    parser.add_argument("--cell", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def measured(axis: str, value: int) -> dict[str, Any]:
    """One cell, in a process of its own."""
    command = [sys.executable, "-W", "ignore", *sys.argv, "--cell", f"{axis}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def cell(axis: str, value: int, options: argparse.Namespace) -> dict[str, Any]:
    common = {
        "data": options.data,
        "data_root": options.data_root,
        "model": options.model,
        "clients": 100,
        "labels": options.labels or ("hub:4000" if options.data == "cifar10" else "hub:20"),
        "hub_batch": 250 if options.data == "cifar10" else 10,
        "compile": options.compile,
        "half": options.half,
        "deterministic": options.deterministic,
        "executor": "stack",
        "threshold": 0.0,
        "rounds": options.rounds + 2,
        "evaluate_every": 10**6,
        "active": 0.1,
        "block": 128,
    }
    with tempfile.TemporaryDirectory() as folder:
        changes = settings(axis, value, Path(folder), options)
        count = value if axis == "seeds" else 1
        config = configure("semifl", **common | changes)
        runs = [LiveRun.new(each, None) for each in prepare_seeds(config, range(count))]
        marks: list[tuple[float, float]] = []
        play(runs, lambda lines: marks.append((time.perf_counter(), memory())))
    ends = [end for end, _ in marks[1 : config.rounds]]
    seconds = [after - before for before, after in pairwise(ends)]
    facts = {"seconds": round(median(seconds), 4), "peak_mb": round(memory())}
    if axis == "rounds":
        facts |= {"mb_after_100": round(marks[99][1], 1), "mb_after_1000": round(marks[999][1], 1)}
    return facts


def settings(axis: str, value: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    if axis == "active":
        return {"active": value / 100}
    if axis == "registered":
        return {
            **noise(value, folder),
            "active": 10 / value,
            "statistics_from": "hub",
            "model": "cnn",
        }
    if axis == "workers":
        return {
            "executor": "loop",
            "block": 2,
            "placement": "workers",
            "workers": value,
            "epochs": 5,
        }
    if axis == "rounds":
        return {**noise(50, folder), "model": "mlp", "epochs": 1, "rounds": 1000}
    return {}


def noise(clients: int, folder: Path) -> dict[str, Any]:
    """Five images a client, and a hub of forty."""
    made = np.random.default_rng(0)
    images = made.integers(0, 256, (5 * clients + 40, 8, 8), np.uint8)
    labels = np.arange(40) % 4
    ids = np.repeat(np.arange(clients), 5)
    np.savez(
        folder / "noise.npz",
        hub_images=images[:40],
        hub_labels=labels,
        client_images=images[40:],
        client_ids=ids,
        test_images=images[:40],
        test_labels=labels,
    )
    return {"data": "npz", "data_root": str(folder / "noise.npz"), "labels": None, "clients": None}


def memory() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    from clients import commit, machine

    table = Table(
        "axis", "value", "seconds a round", "peak MB", title=f"scaling of SemiFL, {machine()}"
    )
    for row in rows:
        note = f"{row['mb_after_100']} after 100" if "mb_after_100" in row else ""
        table.add_row(
            row["axis"], f"{row['value']:,}", f"{row['seconds']:.3f}", f"{row['peak_mb']} {note}"
        )
    Console().print(table)
    facts = {
        "machine": machine(),
        "commit": commit(),
        "options": {k: str(v) for k, v in vars(options).items()},
    }
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Claim: a worker process costs next to nothing over `here`, and two share the work of a round, to the same bits.

SemiFL on scikit-learn's digits, all 20 clients in every round, in blocks of 4. The placements `here`, `workers` with
one process and `workers` with two play the same rounds in turns in one run. They go on from round 12, for in the first
rounds hardly a pseudo-label is confident and no client trains; the first round of each warms up.

    OMP_NUM_THREADS=1 python benchmarks/workers.py

Prints a table and writes benchmarks/results/workers.json: medians over the rounds of the seconds a round and of those
in which clients were served (the hub trains in between, in one process), and of their ratios to `here` in the same
turn. One process tells what sending to and fro costs. The script stops if a bit differs. On a machine with other work
two processes get less than two cores; so the load is printed along, and the CPU time of the hub and the busiest worker
together: an estimate of a round if nothing else ran, not a measurement. Five blocks on two workers make 0.6 the least
that is possible.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from fedglean import tree
from fedglean.config import configure
from fedglean.engines.here import Here, Kept
from fedglean.engines.workers import Workers
from fedglean.experiment import Experiment, prepare
from fedglean.folder import Progress
from fedglean.run import play_round

Measures = dict[str, list[dict[str, float]]]

TIMES = {
    "round": "s a round",
    "serving": "s serving clients",
    "cpu": "CPU s",
    "path": "CPU s of hub, busiest worker",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--begin", type=int, default=12)
    parser.add_argument("--model", default="cnn")
    options = parser.parse_args()
    measures = measured(variants(options), options.begin, options.repeat)
    show(summary(measures), options)


def variants(options: argparse.Namespace) -> dict[str, Experiment]:
    """The same experiment under each placement."""
    rounds = options.begin + options.repeat + 1
    engine = {"executor": "loop", "device": "cpu", "block": 4, "evaluate_every": rounds + 1}
    setting = {"data": "digits", "clients": 20, "active": 1.0, "model": options.model, "rounds": rounds + 1}
    experiment = prepare(configure("semifl", **setting, **engine))
    old = experiment.placement
    common = (old.federation, old.executor, old.block, old.quorum, old.stretch, old.observe)
    several = {f"workers {count}": Workers(*common, workers=count) for count in (1, 2)}
    return {name: replace(experiment, placement=each) for name, each in {"here": old, **several}.items()}


def measured(experiments: dict[str, Experiment], begin: int, repeat: int) -> Measures:
    """A line of measures a round and placement; the placements take turns."""
    first = Progress(0, experiments["here"].start(), Kept(), [])
    for number in range(1, begin + 1):
        play_round(experiments["here"], first, number)
    progress = {name: replace(first, kept=Kept(dict(first.kept.states)), history=[]) for name in experiments}
    measures: Measures = {name: [] for name in experiments}
    for number in range(begin + 1, begin + repeat + 2):
        for name, experiment in experiments.items():
            measures[name].append(one_round(experiment, progress[name], number))
        for name in experiments:
            assert bits(progress[name]) == bits(progress["here"]), f"{name} differs from here in round {number}"
    for experiment in experiments.values():
        experiment.placement.__exit__()
    return {name: lines[1:] for name, lines in measures.items()}


def one_round(experiment: Experiment, progress: Progress, number: int) -> dict[str, float]:
    serving = 0.0
    original = Here.exchange

    def timed(*arguments: Any) -> Any:
        nonlocal serving
        began = time.perf_counter()
        answer = original(*arguments)
        serving += time.perf_counter() - began
        return answer

    with patch.object(Here, "exchange", timed):
        before, began = cpu_seconds(experiment), time.perf_counter()
        line = play_round(experiment, progress, number)
        seconds, after = time.perf_counter() - began, cpu_seconds(experiment)
    assert line is not None
    used = [b - a for a, b in zip(before, after, strict=True)]
    busiest = used[0] + max(used[1:], default=0.0)
    return {"round": seconds, "serving": serving, "cpu": sum(used), "path": busiest, "trained": line["answered"]}


def cpu_seconds(experiment: Experiment) -> list[float]:
    """CPU time that this process and each worker have used so far."""
    placement, tick = experiment.placement, os.sysconf("SC_CLK_TCK")
    used = [time.process_time()]
    for worker in placement.__enter__().pool.workers if isinstance(placement, Workers) else ():
        fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        used.append((int(fields[11]) + int(fields[12])) / tick)
    return used


def bits(progress: Progress) -> dict[str, bytes]:
    found = tree.named({"state": dict(progress.state), "kept": dict(sorted(progress.kept.states.items()))})
    return {name: leaf.numpy().tobytes() for name, leaf in found.items()}


def summary(measures: Measures) -> dict[str, dict[str, float]]:
    return {
        name: {kind: statistics.median(line[kind] for line in lines) for kind in (*TIMES, "trained")}
        | {f"{kind} ratio": ratio(lines, measures["here"], kind) for kind in TIMES}
        for name, lines in measures.items()
    }


def ratio(lines: list[dict[str, float]], others: list[dict[str, float]], kind: str) -> float:
    return statistics.median(a[kind] / b[kind] for a, b in zip(lines, others, strict=True))


def show(rows: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    title = f"SemiFL on digits, {options.model}, 20 clients in blocks of 4; load {load:.1f} on {cores} cores"
    table = Table(title=title)
    table.add_column("placement")
    for column in (*(column for title in TIMES.values() for column in (title, "/ here")), "clients that trained"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        times = [f"{row[column]:.2f}" for kind in TIMES for column in (kind, f"{kind} ratio")]
        table.add_row(name, *times, f"{row['trained']:.0f}")
    Console().print(table)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    machine = {"machine": platform.machine(), "cores": cores, "load": load, "torch": torch.__version__}
    path = Path(__file__).parent / "results" / "workers.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"options": vars(options), **machine, "commit": commit, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

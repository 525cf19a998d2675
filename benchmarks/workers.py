"""Claim: a worker process costs next to nothing over `here`, two share a round, and on Ray they
cost a little more.

SemiFL on scikit-learn's digits, all 20 clients in every round, in blocks of 4. The placements
`here`, and `workers` and `ray` with one process and with two play the same rounds in turns in one
run. They go on from round 12, for in the first rounds hardly a pseudo-label is confident and no
client trains; the first six rounds of each warm up.

    OMP_NUM_THREADS=1 python benchmarks/workers.py

Prints two tables and writes benchmarks/results/workers.json (or --out). The first: medians over the
rounds of the seconds a round and of those in which clients were served (the hub trains in between,
in one process), and of their ratios to `here` in the same turn. One process tells what sending to
and fro costs. The script stops if a bit differs. On a machine with other work two processes get
less than two cores; so the load is printed along, and the CPU time of the hub and the busiest
worker together: an estimate of a round if nothing else ran, not a measurement. Five blocks on two
workers make 0.6 the least that is possible. CPU seconds of `ray` include those of Ray's own
processes.

The second table has what other work disturbs least: milliseconds of an exchange in which 20 clients
just send back what they got, a model of 25 kB and one of 6 MB: the least of some turns of ten
exchanges. That is all that a placement adds to a round. Starting is not part of it: its seconds are
in the JSON.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from fedglean import tree
from fedglean.engine.on_ray import RayPool, connect
from fedglean.engine.placement import Exchanger, Here, Placement
from fedglean.engine.workers import Workers
from fedglean.exchange.exchange import Exchange
from fedglean.exchange.states import ClientStates
from fedglean.method import Ask, Me, Upload
from fedglean.models import Architecture
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare, settled_for
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.tree import Record

Measures = dict[str, list[dict[str, float]]]
Rows = dict[str, dict[str, float]]

#: Rounds in which every process writes its steps down.
WARM = 6
TIMES = {
    "round": "s a round",
    "serving": "s serving clients",
    "cpu": "CPU s",
    "path": "CPU s of hub, busiest worker",
    "system": "CPU s of Ray's own",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, help="rounds that are timed")
    parser.add_argument("--begin", type=int, default=12, help="rounds that are played before")
    parser.add_argument("--turns", type=int, default=5, help="turns of ten empty exchanges")
    parser.add_argument("--model", default="cnn")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "workers.json"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    connect(3)  # the actors of both rows at once
    starting = {"ray itself": time.perf_counter() - began}
    experiments = variants(options)
    for name, experiment in experiments.items():
        began = time.perf_counter()
        experiment.placement.__enter__()
        starting[name] = time.perf_counter() - began
    system = descendants() - {
        pid for experiment in experiments.values() for pid in pids(experiment)
    }
    systems = {name: system if name.startswith("ray") else set() for name in experiments}
    sent = {
        model: sending(experiments, systems, model, options.turns) for model in ("cnn", "wrn-28-2")
    }
    with settled_for(experiments["here"].config):
        rows = summary(measured(experiments, systems, options.begin, options.repeat))
    show(rows, sent, options, starting)


def variants(options: argparse.Namespace) -> dict[str, Experiment]:
    """The same experiment under each placement."""
    rounds = options.begin + WARM + options.repeat
    engine = {"executor": "loop", "device": "cpu", "block": 4, "evaluate_every": rounds + 1}
    setting = {
        "data": "digits",
        "clients": 20,
        "active": 1.0,
        "model": options.model,
        "rounds": rounds + 1,
    }
    experiment = prepare(configure("semifl", **setting, **engine))
    here = experiment.placement
    assert isinstance(here, Here)
    clients, block = here.clients, engine["block"]
    placements: dict[str, Placement] = {"here": here}
    for count in (1, 2):
        placements[f"workers {count}"] = Workers(clients, block, count)
        placements[f"ray {count}"] = Workers(clients, block, count, RayPool)
    found = {}
    for name, placement in placements.items():
        exchanger = replace(experiment.exchanger, placement=placement)
        found[name] = replace(experiment, exchanger=exchanger)
    return found


def measured(
    experiments: dict[str, Experiment], systems: dict[str, set[int]], begin: int, repeat: int
) -> Measures:
    """A line of measures a round and placement; the placements take turns."""
    first = Progress(0, experiments["here"].start(), ClientStates(), [])
    for number in range(1, begin + 1):
        play_round(experiments["here"], first, number)
    progress = {
        name: replace(first, kept=ClientStates(dict(first.kept.states)), history=[])
        for name in experiments
    }
    measures: Measures = {name: [] for name in experiments}
    for number in range(begin + 1, begin + WARM + repeat + 1):
        for name, experiment in experiments.items():
            measures[name].append(one_round(experiment, progress[name], number, systems[name]))
        for name in experiments:
            assert bits(progress[name]) == bits(progress["here"]), (
                f"{name} differs from here in round {number}"
            )
    for experiment in experiments.values():
        experiment.placement.__exit__()
    return {name: lines[WARM:] for name, lines in measures.items()}


def one_round(
    experiment: Experiment, progress: Progress, number: int, system: set[int]
) -> dict[str, float]:
    serving, original = 0.0, Exchanger.exchange

    def timed(*arguments: Any) -> Any:
        nonlocal serving
        began = time.perf_counter()
        answer = original(*arguments)
        serving += time.perf_counter() - began
        return answer

    with patch.object(Exchanger, "exchange", timed):
        spent = clocked(experiment, system, lambda: play_round(experiment, progress, number))
    return {**spent, "serving": serving, "trained": progress.history[-1]["answered"]}


def sending(
    experiments: dict[str, Experiment], systems: dict[str, set[int]], model: str, turns: int
) -> Rows:
    """Milliseconds of an exchange in which nobody computes: the least over the turns."""
    sent = Architecture(model, (1, 8, 8), 10).initial(0)
    exchange = Exchange(Ask(echo, range(20), {"model": sent}), 1, 1, 0)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in experiments}
    for _ in range(turns + 1):
        for name, experiment in experiments.items():
            found[name].append(
                clocked(
                    experiment, systems[name], partial(ten_times, experiment.exchanger, exchange)
                )
            )
    kinds = ("round", "cpu", "system")
    return {
        name: {kind: 100 * min(own[kind] for own in all[1:]) for kind in kinds}
        for name, all in found.items()
    }


def ten_times(exchanger: Exchanger, exchange: Exchange) -> None:
    for _ in range(10):
        exchanger.exchange(exchange, ClientStates())


async def echo(me: Me, message: Record) -> Upload:
    """A client without work."""
    return Upload(model=message.model)


def clocked(experiment: Experiment, system: set[int], work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the work: by the clock, of CPU, of hub and busiest worker, and of Ray's own
    processes.
    """
    workers = pids(experiment)

    def used() -> list[float]:
        return [time.process_time(), sum(map(cpu_seconds, system)), *map(cpu_seconds, workers)]

    before, began = used(), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - began, used()
    hub, own, *rest = (b - a for a, b in zip(before, after, strict=True))
    path = hub + max(rest, default=0.0)
    return {"round": seconds, "cpu": hub + own + sum(rest), "path": path, "system": own}


def pids(experiment: Experiment) -> list[int]:
    """Of the workers of a placement."""
    pool = getattr(experiment.placement, "pool", None)
    if isinstance(pool, RayPool):
        return [int(worker.name.split()[1]) for worker in pool.workers]
    return [worker.process.pid for worker in pool.workers] if pool else []


def descendants() -> set[int]:
    """All processes that come from this one."""
    parents = {
        int(path.parent.name): int(stat(path)[1])
        for path in Path("/proc").glob("[0-9]*/stat")
        if stat(path)
    }
    found: set[int] = set()
    while (
        more := {pid for pid, parent in parents.items() if parent in {os.getpid(), *found}} - found
    ):
        found |= more
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    fields = stat(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def stat(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def bits(progress: Progress) -> dict[str, bytes]:
    found = tree.named(
        {"state": dict(progress.state), "kept": dict(sorted(progress.kept.states.items()))}
    )
    return {name: leaf.numpy().tobytes() for name, leaf in found.items()}


def summary(measures: Measures) -> Rows:
    return {
        name: {
            kind: statistics.median(line[kind] for line in lines) for kind in (*TIMES, "trained")
        }
        | {
            f"{kind} ratio": ratio(lines, measures["here"], kind)
            for kind in TIMES
            if kind != "system"
        }
        for name, lines in measures.items()
    }


def ratio(lines: list[dict[str, float]], others: list[dict[str, float]], kind: str) -> float:
    return statistics.median(a[kind] / b[kind] for a, b in zip(lines, others, strict=True))


def show(
    rows: Rows, sent: dict[str, Rows], options: argparse.Namespace, starting: dict[str, float]
) -> None:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    title = (
        f"SemiFL on digits, {options.model}, 20 clients in blocks of 4; load {load:.1f} on {cores} "
        "cores"
    )
    table = Table(title=title)
    table.add_column("placement")
    columns = [
        column for kind in TIMES for column in (kind, f"{kind} ratio") if column != "system ratio"
    ]
    for column in (*(TIMES.get(column, "/ here") for column in columns), "clients that trained"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        times = [f"{row[column]:.2f}" for column in columns]
        table.add_row(name, *times, f"{row['trained']:.0f}")
    console = Console(width=160)
    console.print(table)
    console.print(sending_table(sent))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    machine = {
        "machine": platform.machine(),
        "cores": cores,
        "load": load,
        "torch": torch.__version__,
    }
    notes = {
        "options": {name: str(value) for name, value in vars(options).items()},
        **machine,
        "commit": commit,
    }
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(
        json.dumps({**notes, "seconds to start": starting, "rows": rows, "sending": sent}, indent=1)
        + "\n"
    )


def sending_table(sent: dict[str, Rows]) -> Table:
    table = Table(
        "placement", title="ms of an exchange in which 20 clients send back what they got"
    )
    for model in sent:
        for column in ("", "of CPU", "of Ray's own"):
            table.add_column(f"{model} {column}".strip(), justify="right")
    for name in next(iter(sent.values())):
        numbers = [own[name][kind] for own in sent.values() for kind in ("round", "cpu", "system")]
        table.add_row(name, *(f"{number:.1f}" for number in numbers))
    return table


if __name__ == "__main__":
    main()

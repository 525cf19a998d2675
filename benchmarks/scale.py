"""Claim: what a federation costs its hub grows with the branches that are asked, and by how much
for each of them.

Every method that federates runs two rounds with 2, 10 and 50 branches of eight digits each, all of
which are asked:

    flower   the hub and the branches of a real federation, with real messages, in one process:
             bytes each way, the hub's CPU (orders, reading, gate, sums; the branches' own is taken
             off), bytes that wait for the gate at once, what the run folder and a branch's disk
             grow by
    here     the simulation: CPU of gate and sums, bytes of the clients' states in the run folder
    hub      what the number of branches alone costs: the checkpoint's index

    # Some ten minutes on two idle cores.
    OMP_NUM_THREADS=1 python benchmarks/scale.py
    OMP_NUM_THREADS=1 python benchmarks/scale.py --only semifl,hassle --nodes 2,10
    # The tables of docs/scale.md, from the JSON.
    python benchmarks/scale.py --page

Prints tables and writes benchmarks/results/scale.json (or --out), where --only leaves what is there
of other methods. Numbers a branch are of the second round and the largest federation; how the
smaller ones differ is in the JSON. SemiFL, HASSLE and Fed-SHVR are measured with wrn-28-2 too. What
is beyond the measured number of branches is multiplied, and said to be. What Flower's own processes
cost is not in here: no network, no SuperLink, no database.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from fedglean.data.partition import Split
from fedglean.data.party_folders import Holdings
from fedglean.engine import placement as hub_side
from fedglean.engine.clients import Clients
from fedglean.engine.device import chosen_device, settle
from fedglean.engine.placement import Exchanger
from fedglean.exchange.exchange import merge
from fedglean.exchange.states import ClientStates
from fedglean.federation.branch import Branch
from fedglean.federation.local import LocalCarrier
from fedglean.federation.mailbox import Mailbox
from fedglean.federation.nodes import Nodes
from fedglean.federation.placement import Branches
from fedglean.federation.plan import RunPlan
from fedglean.names import Names
from fedglean.runs.checkpoint import Checkpoints
from fedglean.runs.config import Config, configure
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress, RunFolder
from fedglean.runs.rounds import LiveRun, commit, play_round
from fedglean.tree import Record

METHODS = Names.of().tables["METHODS"]
ROUNDS = 2
LARGE = ("semifl", "hassle", "fed-shvr")
FLEETS = (100, 10_000, 1_000_000)
#: Settings under which every client trains in every round, little.
EAGER = {
    "threshold": 0.0,
    "active": 1.0,
    "epochs": 1,
    "warmup_rounds": 1,
    "steps": 1,
    "residual_steps": 1,
}


def main() -> None:
    options = parsed()
    if options.page:
        print(page(json.loads(options.out.read_bytes())))
        return
    if options.cell:
        name, model, nodes = options.cell.split(",")
        print(json.dumps(cell(name, model, int(nodes))))
        return
    nodes = [int(number) for number in options.nodes.split(",")]
    names = (
        options.only.split(",") if options.only else [name for name in METHODS if federates(name)]
    )
    pairs = [(name, "cnn") for name in names] + [
        (name, "wrn-28-2") for name in names if name in LARGE
    ]
    rows = [row for row in kept_rows(options.out) if options.only and row["method"] not in names]
    for name, model in pairs:
        for number in nodes:
            measure = cell if model == "cnn" else in_its_own_process
            facts = measure(name, model, number)
            if model == "cnn":
                del (
                    facts["peak_mb"],
                    facts["peak_before_mb"],
                )  # of all cells that this process has measured
            rows.append({"method": name, "model": model, "nodes": number, **facts})
            print(rows[-1], file=sys.stderr)
    show(rows, [bookkeeping(count) for count in FLEETS], options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--nodes", default="2,10,50", help="numbers of branches, with commas between them"
    )
    parser.add_argument("--only", default=None, help="methods, with commas between them")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "scale.json"
    )
    parser.add_argument("--page", action="store_true", help="print the tables of docs/scale.md")
    parser.add_argument("--cell", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def kept_rows(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_bytes())["measured"] if path.exists() else []


def federates(name: str) -> bool:
    """Neither trains at the hub alone nor at a single site."""
    return (
        not name.startswith("hub-") and METHODS[name].defaults.get("split", {}).get("clients") != 1
    )


def in_its_own_process(name: str, model: str, nodes: int) -> dict[str, Any]:
    """So that its peak of memory is its own."""
    command = [sys.executable, "-W", "ignore", *sys.argv, "--cell", f"{name},{model},{nodes}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {model} and {nodes} nodes:\n{done.stderr}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def cell(name: str, model: str, nodes: int) -> dict[str, Any]:
    config = small(name, model, nodes)
    settle(chosen_device("cpu"), 1, deterministic=True)  # this process does nothing else
    experiment = prepare(config, few_images(nodes, labels_at_hub(name)))
    with tempfile.TemporaryDirectory() as scratch:
        facts = of_flower(experiment, Path(scratch))
        if model == "cnn" or nodes <= 10:
            facts |= of_here(experiment, Path(scratch))
    return facts


def small(name: str, model: str, nodes: int) -> Config:
    known = {each.name for each in fields(METHODS[name].method)}
    return configure(
        name,
        model=model,
        clients=nodes,
        quorum=0.0,
        rounds=ROUNDS,
        evaluate_every=ROUNDS + 1,
        device="cpu",
        executor="loop",
        settings={key: value for key, value in EAGER.items() if key in known},
    )


def labels_at_hub(name: str) -> bool:
    return str(METHODS[name].defaults.get("split", {}).get("labels", "hub:20")).startswith("hub")


def few_images(nodes: int, at_hub: bool) -> Split:
    """Eight a branch: how many it has changes nothing of what is measured. Half are labelled, or
    100 at the hub.
    """
    index = torch.arange(100 + 8 * nodes)
    own = torch.split(index[100:], 8)
    if at_hub:
        return Split(index[:100], tuple(part[:0] for part in own), tuple(own))
    return Split(index[:0], tuple(part[:4] for part in own), tuple(part[4:] for part in own))


@dataclass
class Meter:
    """What passed between hub and branches in the round at hand."""

    down: int = 0
    up: int = 0
    asked: set[int] = field(default_factory=set)
    branches: float = 0.0
    waiting: int = 0


class Metered(LocalCarrier):
    """Counts what it carries, and keeps the branches' CPU apart."""

    meter: Meter

    def ask(self, questions: Mapping[int, bytes], seconds: float) -> Mapping[str, int]:
        self.meter.down += sum(map(len, questions.values()))
        return self._timed(lambda: super(Metered, self).ask(questions, seconds))

    def order(
        self, orders: Mapping[int, bytes], common: bytes, group: str, seconds: float
    ) -> Mapping[str, int]:
        self.meter.asked.update(orders)
        self.meter.down += sum(map(len, orders.values())) + len(common) * len(orders)
        return self._timed(lambda: super(Metered, self).order(orders, common, group, seconds))

    def _timed(self, deliver: Callable[[], Mapping[str, int]]) -> Mapping[str, int]:
        began = time.process_time()
        names = deliver()
        self.meter.branches += time.process_time() - began
        self.meter.up += sum(len(self.waiting[name]) for name in names)
        return names


def of_flower(experiment: Experiment, scratch: Path) -> dict[str, Any]:
    """The second round of a federation, by branch that was asked."""
    federation, count = experiment.federation, len(experiment.federation.declared)
    carrier = Metered(
        Branch(number, "b", holdings(experiment, number), scratch / "state" / str(number))
        for number in range(count)
    )
    carrier.meter = Meter()
    dataset = experiment.dataset
    options = HubOptions(images=scratch, branches=count, out=scratch)
    shape = dataset.train_images.shape[1:]
    mailbox = Mailbox(Nodes(carrier, options.branches, dataset.classes, shape), options)
    declared = mailbox.enrol()
    plan = RunPlan.of(experiment.config, experiment.dataset)
    gate, run = experiment.config.gate, "0123456789abcdef"
    placement = Branches(mailbox, federation, gate, method=experiment.method, plan=plan, run=run)
    exchanger = replace(experiment.exchanger, placement=placement, observe=None)
    spent, exchange, whole_exchange = 0.0, Mailbox.exchange, Exchanger.exchange

    def timed(*arguments: Any) -> Any:
        nonlocal spent
        began, before = time.process_time(), carrier.meter.branches
        answer = whole_exchange(*arguments)
        spent += time.process_time() - began - (carrier.meter.branches - before)
        return answer

    def weighed(*arguments: Any) -> Any:
        received = exchange(*arguments)
        held = sum(
            len(body) for own in received.values() for body in own if isinstance(body, bytes)
        )
        carrier.meter.waiting = max(carrier.meter.waiting, held)
        return received

    at_first = peak_memory()
    with patch.object(Exchanger, "exchange", timed), patch.object(Mailbox, "exchange", weighed):
        for _ in rounds(replace(experiment, exchanger=exchanger), scratch / "flower"):
            meter, cpu, carrier.meter, spent = carrier.meter, spent, Meter(), 0.0
    asked = len(meter.asked)
    return {
        "asked": asked,
        "down": meter.down / asked,
        "up": meter.up / asked,
        "hub_ms": 1000 * cpu / asked,
        "waiting": meter.waiting / asked,
        "peak_mb": peak_memory(),
        "peak_before_mb": at_first,
        "hub_disk": clients_part(scratch / "flower", count) + len(json.dumps(asdict(declared[0]))),
        "branch_disk": size(scratch / "state") / count,
    }


def of_here(experiment: Experiment, scratch: Path) -> dict[str, Any]:
    """The second round of a simulation, by client that was asked."""
    spent = 0.0

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal spent
            began = time.process_time()
            answer = original(*arguments)
            spent += time.process_time() - began
            return answer

        return call

    count = len(experiment.federation.declared)
    with (
        patch.object(Clients, "take", timed(Clients.take)),
        patch.object(hub_side, "merge", timed(merge)),
    ):
        for line in rounds(experiment, scratch / "here"):
            cpu, trained, spent = spent, line["answered"], 0.0
    return {
        "gate_ms": 1000 * cpu / max(1, trained),
        "simulation_disk": clients_part(scratch / "here", count),
    }


def rounds(experiment: Experiment, out: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run that is checkpointed."""
    folder = RunFolder.create(out, experiment.config, experiment.split)
    progress = Progress(0, experiment.start(), ClientStates(), [])
    for number in range(1, ROUNDS + 1):
        line = play_round(experiment, progress, number)
        assert line is not None and not line["refused"], line
        commit([LiveRun(experiment, progress, folder)], number)
        yield line


def holdings(experiment: Experiment, number: int) -> Holdings:
    held = experiment.federation.labelled[number], experiment.federation.unlabelled[number]
    return lambda classes, form: held


def clients_part(folder: Path, count: int) -> float:
    """Bytes of a run folder that there are for each client: its file, its entries in the index and
    the split.
    """
    index = json.loads((folder / "checkpoint" / "current.json").read_bytes())["content"]["files"]
    states = sum(
        (folder / "checkpoint" / each["file"]).stat().st_size
        for name, each in index.items()
        if name != "state"
    )
    entries = sum(len(json.dumps({name: each})) for name, each in index.items() if name != "state")
    return float(states + entries + (folder / "split.json").stat().st_size) / count


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bookkeeping(count: int) -> dict[str, Any]:
    """What a number of branches costs whatever the method: a checkpoint's index."""
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = Checkpoints(Path(scratch) / "checkpoint")
        entry = {"file": "client-000000-000001.safetensors", "sha256": "0" * 64}
        checkpoints.files = {str(client): entry for client in range(count)}
        with clocked() as index:
            checkpoints.stage(1, Record(), {}, set(), {})
            checkpoints.commit()
        written = size(Path(scratch))
    return {"branches": count, "index_ms": index(), "index_mb": written / 1e6}


@contextmanager
def clocked() -> Iterator[Callable[[], float]]:
    """CPU milliseconds of what is inside, once it is over."""
    began, over = time.process_time(), [0.0]
    yield lambda: over[0]
    over[0] = 1000 * (time.process_time() - began)


def show(
    rows: list[dict[str, Any]], hub: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    most = max(row["nodes"] for row in rows)
    large = [row for row in rows if row["nodes"] == most]
    console = Console(width=180)
    console.print(measured_table(rows, large))
    for count in FLEETS:
        console.print(extrapolated(large, count, hub))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    machine = {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    notes = {
        "options": {k: str(v) for k, v in vars(options).items()},
        **machine,
        "torch": torch.__version__,
    }
    options.out.parent.mkdir(exist_ok=True)
    content = {**notes, "commit": commit, "measured": rows, "hub": hub}
    options.out.write_text(json.dumps(content, indent=1) + "\n")


def measured_table(rows: list[dict[str, Any]], large: list[dict[str, Any]]) -> Table:
    title = (
        f"a round, by branch that was asked; {large[0]['nodes']} branches; least and most hub CPU "
        "of all numbers"
    )
    table = Table("method", "model", title=title)
    for column in (
        "kB down",
        "kB up",
        "hub CPU ms",
        "range",
        "kB waiting",
        "gate + sum ms",
        "hub disk B",
        "branch disk kB",
    ):
        table.add_column(column, justify="right")
    for row in large:
        same = [
            each["hub_ms"]
            for each in rows
            if (each["method"], each["model"]) == (row["method"], row["model"])
        ]
        numbers = [row["down"] / 1e3, row["up"] / 1e3, row["hub_ms"]]
        texts = [f"{number:.1f}" for number in numbers] + [f"{min(same):.1f}-{max(same):.1f}"]
        gate = f"{row['gate_ms']:.2f}" if "gate_ms" in row else ""
        texts += [
            f"{row['waiting'] / 1e3:.1f}",
            gate,
            f"{row['hub_disk']:.0f}",
            f"{row['branch_disk'] / 1e3:.1f}",
        ]
        table.add_row(row["method"], row["model"], *texts)
    return table


def extrapolated(large: list[dict[str, Any]], count: int, hub: list[dict[str, Any]]) -> Table:
    """The measured numbers a branch, times so many branches."""
    own = next(each for each in hub if each["branches"] == count)
    title = (
        f"{count:,} branches, all asked, multiplied; of the hub CPU, the index: "
        f"{own['index_ms'] / 1000:,.2f} s"
    )
    table = Table("method", "model", title=title)
    for column in ("GB down", "GB up", "hub CPU s", "hub memory GB", "hub disk GB"):
        table.add_column(column, justify="right")
    for row in large:
        values = [
            row["down"] / 1e9,
            row["up"] / 1e9,
            row["hub_ms"] / 1e3,
            row["waiting"] / 1e9,
            row["hub_disk"] / 1e9,
        ]
        table.add_row(row["method"], row["model"], *(f"{count * value:,.3g}" for value in values))
    return table


def page(content: dict[str, Any]) -> str:
    """The tables of docs/scale.md: fleets of branches of SemiFL, and what one branch of every
    method costs.
    """
    most = max(row["nodes"] for row in content["measured"])
    rows = [row for row in content["measured"] if row["nodes"] == most]
    sizes = ("down", "up", "waiting", "hub_disk")
    fleets = [
        "| SemiFL with | branches | down | up | hub CPU | hub memory | hub disk |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        for own in content["hub"] if row["method"] == "semifl" else ():
            count = own["branches"]
            down, up, memory, disk = (in_bytes(count * row[kind]) for kind in sizes)
            cpu = in_time((count * row["hub_ms"] + own["index_ms"]) / 1e3)
            fleets.append(
                f"| {row['model']} | {count:,} | {down} | {up} | {cpu} | {memory} | {disk} |"
            )
    each = [
        "| method | down | up | hub CPU | hub memory | hub disk | its own disk |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        name = row["method"] if row["model"] == "cnn" else f"{row['method']}, {row['model']}"
        down, up, memory, disk, own_disk = (in_bytes(row[kind]) for kind in (*sizes, "branch_disk"))
        each.append(
            f"| {name} | {down} | {up} | {row['hub_ms']:.1f} ms | {memory} | {disk} | {own_disk} |"
        )
    return "\n".join([*fleets, "", *each])


def in_bytes(number: float) -> str:
    units = ["TB", "GB", "MB", "kB", "B"]
    while number >= 1000 and len(units) > 1:
        number /= 1000
        units.pop()
    return f"{number:.1f} {units[-1]}" if 0 < number < 10 else f"{number:.0f} {units[-1]}"


def in_time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    main()

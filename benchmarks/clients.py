"""Claim: ten clients as one tensor program train many times faster than one after the other, close
to one shared model.

One round of SemiFL as its paper sets it (10 of 100 clients, batch 10, 5 local epochs, three
quarters of the images confident), whole and phase by phase, under `loop` and `stack` in one run,
next to a bound: one shared model that trains on the same images in batches ten times as large.

    # WRN-28-2 on noise of CIFAR-10's size; wants a GPU.
    python benchmarks/clients.py
    # And the same of four seeds side by side.
    python benchmarks/clients.py --compile --half --seeds 4
    python benchmarks/clients.py --data digits --model cnn      # small enough for a laptop

`--only train hub` measures those phases alone, each of which takes a minute or more to compile;
`--profile FILE` also writes what the GPU did in them, kernel by kernel (a long file takes a while).

What the images show does not matter for the time they take; `--data cifar10 --data-root DATA` takes
the real ones.

Prints a table and writes --out. All phases are warmed up, then each is timed with the device
synchronised. A whole round is timed by itself: it also has the gate, the sums and the averages.
Under `loop` the clients train one epoch of the five, and the time is multiplied: its rate does not
change from epoch to epoch. Kernels are the fastest ones, unless `--deterministic` asks for those
that repeat their last bits.
"""

import argparse
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedglean.engine.batches import Batcher, Lane, Setting
from fedglean.engine.executor import Executor
from fedglean.engine.loop import Loop
from fedglean.engine.task import Call, Party
from fedglean.inputs.images import Images
from fedglean.method import Me, Predict, Statistics, Stream, Train
from fedglean.methods.semifl import SemiFL
from fedglean.randomness import bits, order
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare_seeds
from fedglean.runs.rounds import LiveRun, play_rounds

ACTIVE = range(10)
ROUND, BOUND = "a whole round", "bound: one shared model"
PHASES = ("hub", "statistics", "label", "train", "of which augmentation", "test", BOUND, ROUND)


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory() as folder:
        experiments = prepare_seeds(configuration(options, Path(folder)), range(options.seeds))
    taken = {field.name: getattr(experiments[0].method, field.name) for field in fields(SemiFL)}
    method = Confident(**taken, share=options.confident)
    show(measured([replace(each, method=method) for each in experiments], options), options)


@dataclass(frozen=True)
class Confident(SemiFL):
    """SemiFL that is sure of a share of each client's images, drawn and not learned."""

    share: float = 0.75

    async def fix_and_mix(self, me: Me, model: Any) -> Any:
        await Predict(model, me.unlabelled, view="weak", threshold=self.threshold)
        return self.drawn(me.unlabelled, model.architecture.classes)

    def drawn(self, images: Images, classes: int) -> dict[str, Stream]:
        device = images.index.device
        guess = images.labelled(torch.remainder(bits(0, (len(images),), device), classes))
        sure = guess.subset(order(0, len(images), device) < self.share * len(images))
        return {
            "fix": Stream(sure, view=("strong", "weak"), batch=self.client_batch),
            "mix": Stream(guess, view="weak", batch=self.client_batch, draw="with-replacement"),
        }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="noise", help="noise, or any data set of fedglean")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--model", default="wrn-28-2")
    parser.add_argument("--labels", type=int, default=None, help="at the hub: 4,000, on digits 20")
    parser.add_argument("--confident", type=float, default=0.75, help="share of the images")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--half", action="store_true", help="bf16; needs --compile")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--seeds", type=int, default=1, help="so many side by side, too")
    parser.add_argument("--repeat", type=int, default=3, help="times that each phase is timed")
    parser.add_argument("--skip-loop", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PHASES, default=PHASES, metavar="PHASE")
    parser.add_argument("--profile", type=Path, default=None)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "clients.json"
    )
    options = parser.parse_args()
    if options.profile and not torch.cuda.is_available():
        parser.error("--profile tells what a GPU did, and there is none here")
    return options


def configuration(options: argparse.Namespace, folder: Path) -> Any:
    small = options.data == "digits"
    labels = f"hub:{options.labels or (20 if small else 4000)}"
    given = {"data": options.data, "data_root": options.data_root, "labels": labels, "clients": 100}
    return configure(
        "semifl",
        **(noise(folder) if options.data == "noise" else given),
        model=options.model,
        active=len(ACTIVE) / 100,
        strong="semifl-ra",
        executor="stack",
        compile=options.compile,
        half=options.half,
        threshold=0.95,
        block=100,
        deterministic=options.deterministic,
        hub_batch=10 if small else 250,
    )


def noise(folder: Path) -> dict[str, str]:
    """4,000 labelled images at the hub, 460 at each of 100 clients, 10,000 to test."""
    images = np.random.default_rng(0).integers(0, 256, (50000, 32, 32, 3), np.uint8)
    labels = np.arange(10000) % 10
    np.savez(
        folder / "noise.npz",
        hub_images=images[:4000],
        hub_labels=labels[:4000],
        client_images=images[4000:],
        client_ids=np.repeat(np.arange(100), 460),
        test_images=images[:10000],
        test_labels=labels,
    )
    return {"data": "npz", "data_root": str(folder / "noise.npz")}


def requests(experiment: Experiment) -> dict[str, list[Any]]:
    """What the hub and the active clients ask for in one round."""
    method, federation, state = experiment.method, experiment.federation, experiment.start()
    assert isinstance(method, Confident)
    pools = [federation.unlabelled[client] for client in ACTIVE]
    call = Call(Statistics(state.model, federation.hub), 0)
    sums = experiment.executor.answer([call])[0]
    sent = state.model.with_statistics(sums)
    streams = [method.drawn(images, sent.architecture.classes) for images in pools]
    return {
        "hub": [method.train_at_hub(experiment.hub(1), state)],
        "statistics": [
            Statistics(state.model, images) for images in (federation.hub, *federation.unlabelled)
        ],
        "label": [Predict(sent, images, view="weak", threshold=0.95) for images in pools],
        "train": [
            Train(sent, each, method.loss, method.sgd, epochs=method.epochs) for each in streams
        ],
    }


def shared(work: list[Train]) -> Train:
    """The bound: all clients' images in one set, batches as large as all of theirs together, the
    same steps.
    """
    streams = {}
    for name, stream in work[0].streams.items():
        images = work[0].streams[name].images
        for train in work[1:]:
            images = images + train.streams[name].images
        streams[name] = replace(stream, images=images, batch=len(work) * stream.batch)
    return replace(work[0], streams=streams, epochs=None, steps=max(train.length for train in work))


def timed(work: Callable[[], Any], repeat: int) -> float:
    """Median seconds."""
    taken = []
    for _ in range(repeat):
        wait()
        began = time.perf_counter()
        work()
        wait()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(
    experiments: list[Experiment], options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Seconds by phase and executor. All of them are warmed up before the first is timed."""
    columns = {"stack": stacked(experiments[:1])}
    if len(experiments) > 1:
        columns["seeds"] = stacked(experiments)
    if not options.skip_loop:
        columns["loop"] = looped(experiments[0])
    for kind, column in columns.items():
        columns[kind] = {name: column[name] for name in options.only if name in column}
    for column in columns.values():
        for warm_up in column.values():
            warm_up()
    phases: dict[str, dict[str, float]] = {name: {} for name in options.only}
    for kind, column in columns.items():
        for name, each in column.items():
            phases[name][kind] = timed(each, 1 if kind == "loop" else options.repeat)
    if "loop" in phases.get("train", {}):
        phases["train"]["loop"] *= requests(experiments[0])["train"][0].epochs
    if options.profile is not None:
        parts = [
            profile(f"{name}, {kind}", work)
            for kind, own in columns.items()
            for name, work in own.items()
        ]
        options.profile.write_text("\n".join(parts))
    return phases


def profile(title: str, work: Callable[[], Any]) -> str:
    """Milliseconds, count and name of every kernel, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work()
        wait()
    kernels = sorted(seen.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    rows = [
        f"{each.self_device_time_total / 1000:10.2f} {each.count:7} {each.key[:200]}"
        for each in kernels
    ]
    return "\n".join([f"# {title}", *rows, ""])


def stacked(experiments: list[Experiment]) -> dict[str, Callable[[], Any]]:
    """The phases of a round of one seed, or of several side by side."""
    stack, each = (experiments[0].executor, [requests(experiment) for experiment in experiments])
    work = {name: [request for own in each for request in own[name]] for name in each[0]}
    lanes = [Lane(train, key) for key, train in enumerate(work["train"])]
    phases: dict[str, Callable[[], Any]] = {
        name: partial(run, stack, some) for name, some in work.items()
    }
    phases["of which augmentation"] = partial(deal, lanes, stack.setting)
    phases["test"] = lambda: [
        experiment.evaluator.test({"model": own["label"][0].models})
        for experiment, own in zip(experiments, each, strict=True)
    ]
    phases[BOUND] = partial(run, stack, [shared(work["train"])])
    phases[ROUND] = partial(
        whole_round, [LiveRun.new(experiment, None) for experiment in experiments]
    )
    return phases


def looped(experiment: Experiment) -> dict[str, Callable[[], Any]]:
    """The phases of a round, client by client; of the training one epoch."""
    loop, work = Loop(experiment.executor.setting), requests(experiment)
    work["train"] = [replace(train, epochs=1) for train in work["train"]]
    return {name: partial(run, loop, some) for name, some in work.items()}


def whole_round(runs: list[LiveRun]) -> None:
    play_rounds(runs, runs[0].progress.done + 1)


def run(executor: Executor, some: list[Any]) -> None:
    executor.run(parties(some))


def deal(lanes: list[Lane], setting: Setting) -> None:
    batcher, steps = Batcher(lanes, setting), max(lane.length for lane in lanes)
    stride = max(1, setting.images_at_once // (len(lanes) * lanes[0].images_a_step))
    for begin in range(0, steps, stride):
        batcher.chunk(range(begin, min(begin + stride, steps)))


def parties(some: list[Any]) -> list[Party]:
    async def talk(request: Any) -> Any:
        return await request

    return [Party(f"client {place}", talk(request), place) for place, request in enumerate(some)]


def show(phases: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    others = {"seeds": f"{options.seeds} seeds", "loop": "loop"}
    others = {
        kind: name
        for kind, name in others.items()
        if any(kind in taken for taken in phases.values())
    }
    heads = [head for name in others.values() for head in (f"{name} s", f"{name} / stack")]
    table = Table(
        "phase", "stack s", *heads, title=f"{options.model} on {options.data}, {machine()}"
    )
    for name, taken in phases.items():
        row = [f"{taken['stack']:.3f}"]
        for kind in others:
            row += (
                [f"{taken[kind]:.3f}", f"{taken[kind] / taken['stack']:.1f}"]
                if kind in taken
                else ["", ""]
            )
        table.add_row(name, *row)
    Console(width=120).print(table)
    if {BOUND, "train"} <= phases.keys():
        print(
            "share of the shared-model bound: "
            f"{phases[BOUND]['stack'] / phases['train']['stack']:.2f}"
        )
    if options.seeds > 1 and ROUND in phases:
        together, alone = phases[ROUND]["seeds"], phases[ROUND]["stack"]
        print(
            f"{options.seeds} seeds side by side take {together / (options.seeds * alone):.2f} of "
            "the time"
        )
    options.out.parent.mkdir(exist_ok=True)
    used = {name: value for name, value in vars(options).items() if name not in ("out", "profile")}
    facts = {"machine": machine(), "commit": commit(), "options": used, "phases": phases}
    options.out.write_text(json.dumps(facts, indent=1) + "\n")


def machine() -> str:
    name = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.processor() or platform.machine()
    )
    return f"{name}, torch {torch.__version__}"


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()

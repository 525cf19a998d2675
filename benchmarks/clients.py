"""Claim: ten clients as one tensor program train many times faster than one after the other, close to one shared model.

One round of SemiFL as its paper sets it (10 of 100 clients, batch 10, 5 local epochs, three quarters of the images
confident), phase by phase, under `loop` and `stack` in one run, next to a bound: one shared model that trains on the
same images in batches ten times as large.

    python benchmarks/clients.py                                # WRN-28-2 on noise of CIFAR-10's size; wants a GPU
    python benchmarks/clients.py --compile --half
    python benchmarks/clients.py --data digits --model cnn      # small enough for a laptop

What the images show does not matter for the time they take; `--data cifar10 --data-root DATA` takes the real ones.

Prints a table and writes benchmarks/results/clients.json. All phases are warmed up, then each is timed with the device
synchronised, so phases add up to a little more than a round takes. Under `loop` the clients train one epoch of the
five, and the time is multiplied: its rate does not change from epoch to epoch. Kernels are the fastest ones, unless
`--deterministic` asks for those that repeat their last bits.
"""

import argparse
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedglean.config import configure
from fedglean.data.images import Images
from fedglean.engines.batches import Deck, Lane, Setting
from fedglean.engines.loop import Loop, Party
from fedglean.engines.stack import Stack
from fedglean.experiment import Experiment, prepare
from fedglean.method import Predict, Statistics, Stream, Train
from fedglean.methods.semifl import SemiFL
from fedglean.randomness import bits, order

ACTIVE = range(10)


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory() as folder:
        experiment = prepare(configuration(options, Path(folder)))
    phases = measured(experiment, options)
    show(phases, experiment, options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="noise")
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--model", default="wrn-28-2")
    parser.add_argument("--labels", type=int, default=None)
    parser.add_argument("--confident", type=float, default=0.75)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--skip-loop", action="store_true")
    return parser.parse_args()


def configuration(options: argparse.Namespace, folder: Path) -> Any:
    small = options.data == "digits"
    data = noise(folder) if options.data == "noise" else {"data": options.data, "data_root": options.data_root}
    labels = options.labels or (20 if small else 4000)
    return configure(
        "semifl", **data, model=options.model, labels=f"hub:{labels}", clients=100, strong="semifl-ra",
        executor="stack", compile=options.compile, half=options.half, threshold=0.95, block=100,
        deterministic=options.deterministic, hub_batch=10 if small else 250,
    )  # fmt: skip


def noise(folder: Path) -> dict[str, str]:
    """4,000 labelled images at the hub, 460 at each of 100 clients, 10,000 to test."""
    images = np.random.default_rng(0).integers(0, 256, (50000, 32, 32, 3), np.uint8)
    labels = np.arange(10000) % 10
    np.savez(
        folder / "noise.npz", hub_images=images[:4000], hub_labels=labels[:4000], client_images=images[4000:],
        client_ids=np.repeat(np.arange(100), 460), test_images=images[:10000], test_labels=labels,
    )  # fmt: skip
    return {"data": "npz", "data_root": str(folder / "noise.npz")}


def requests(experiment: Experiment, confident: float) -> dict[str, list[Any]]:
    """What the hub and the active clients ask for in one round; which images are confident is drawn, not learned."""
    method, federation = experiment.method, experiment.federation
    assert isinstance(method, SemiFL)
    model = experiment.start().model
    pools = [federation.unlabelled[client] for client in ACTIVE]
    everyone = [Statistics(model, images) for images in (federation.hub, *federation.unlabelled)]
    sums = Stack(experiment.placement.executor.setting).serve(Statistics(model, federation.hub), 0)
    sent = model.with_statistics(sums)
    return {
        "hub": [
            Train(
                model,
                {"labelled": Stream(federation.hub, batch=method.hub_batch)},
                hub_loss,
                method.sgd,
                epochs=method.epochs,
            )
        ],
        "statistics": everyone,
        "label": [Predict(sent, images, view="weak", threshold=0.95) for images in pools],
        "train": [training(method, sent, images, confident, client) for client, images in enumerate(pools)],
    }


def hub_loss(model: Any, batch: Any, frozen: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(batch.labelled.images), batch.labelled.label)


def training(method: SemiFL, model: Any, images: Images, confident: float, client: int, times: int = 1) -> Train:
    classes = model.architecture.classes
    label = torch.remainder(bits(client, (len(images),), images.index.device), classes)
    guess = images.labelled(label)
    kept = order(client, len(images), images.index.device) < confident * len(images)
    streams = {
        "fix": Stream(guess.subset(kept), view=("strong", "weak"), batch=times * method.client_batch),
        "mix": Stream(guess, view="weak", batch=times * method.client_batch, draw="with-replacement"),
    }
    return Train(model, streams, method.loss, method.sgd, epochs=method.epochs)


def shared(work: list[Train]) -> Train:
    """The bound: all clients' images in one set, batches as large as all of theirs together, the same steps."""
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


def measured(experiment: Experiment, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds by phase and executor. All of them are warmed up before the first is timed."""
    setting = experiment.placement.executor.setting
    stack, loop = Stack(setting), Loop(setting)
    work = requests(experiment, options.confident)
    lanes = [Lane(train, key) for key, train in enumerate(work["train"])]
    stacked = {name: partial(run, stack, some) for name, some in work.items()}
    stacked["of which augmentation"] = partial(deal, lanes, setting)
    stacked["test"] = partial(experiment.evaluator.test, {"model": work["label"][0].models})
    stacked["bound: one shared model"] = partial(run, stack, [shared(work["train"])])
    epochs, work["train"] = work["train"][0].epochs, [replace(each, epochs=1) for each in work["train"]]
    looped = {} if options.skip_loop else {name: partial(run, loop, some) for name, some in work.items()}
    for warm_up in (*stacked.values(), *looped.values()):
        warm_up()
    phases = {name: {"stack": timed(each, options.repeat)} for name, each in stacked.items()}
    for name, each in looped.items():
        phases[name]["loop"] = timed(each, 1) * (epochs if name == "train" else 1)
    return phases


def run(executor: Loop, some: list[Any]) -> None:
    executor.run(parties(some))


def deal(lanes: list[Lane], setting: Setting) -> None:
    deck, steps = Deck(lanes, setting), max(lane.length for lane in lanes)
    stride = max(1, setting.images_at_once // (len(lanes) * lanes[0].images_a_step))
    for begin in range(0, steps, stride):
        deck.deal(range(begin, min(begin + stride, steps)))


def parties(some: list[Any]) -> list[Party]:
    def talk(request: Any) -> Any:
        return (yield request)

    return [Party(f"client {place}", talk(request), place) for place, request in enumerate(some)]


def show(phases: dict[str, dict[str, float]], experiment: Experiment, options: argparse.Namespace) -> None:
    table = Table("phase", "stack s", "loop s", "loop / stack", title=f"{options.model} on {options.data}, {machine()}")
    for name, taken in phases.items():
        loop = taken.get("loop")
        ratio = f"{loop / taken['stack']:.1f}" if loop else ""
        table.add_row(name, f"{taken['stack']:.3f}", f"{loop:.3f}" if loop else "", ratio)
    summed = [name for name in ("hub", "statistics", "label", "train", "test") if name in phases]
    table.add_row("round", f"{sum(phases[name]['stack'] for name in summed):.3f}", "", "")
    Console().print(table)
    bound, train = phases["bound: one shared model"]["stack"], phases["train"]["stack"]
    print(f"share of the shared-model bound: {bound / train:.2f}")
    place = Path(__file__).parent / "results" / "clients.json"
    place.parent.mkdir(exist_ok=True)
    facts = {"machine": machine(), "commit": commit(), "options": vars(options), "phases": phases}
    place.write_text(json.dumps(facts, indent=1) + "\n")


def machine() -> str:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{name}, torch {torch.__version__}"


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()

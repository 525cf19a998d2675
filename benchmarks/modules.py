"""Claim: a torch module trains within a twentieth of the same net written on the package's layers.

Clients train the laptop's net on digits, and ResNet-8 at a quarter of its width on images of
16 x 16 pixels, with the loop and stacked; once as a net of layers, once as an ordinary module. Both
take turns, so that a busy machine slows both.

    OMP_NUM_THREADS=1 python benchmarks/modules.py
    OMP_NUM_THREADS=1 python benchmarks/modules.py --turns 1 --steps 3    # does it run at all?

Prints milliseconds a step of all clients and the ratio, of the least of the turns, and writes
benchmarks/results/modules.json (or --out).
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from clients import commit, machine, parties, wait
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from fedglean import from_module
from fedglean.engine.batches import Setting
from fedglean.engine.device import settle
from fedglean.engine.kinds import EXECUTORS
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe
from fedglean.method import Stream, Train
from fedglean.methods.common import supervised
from fedglean.models import Architecture
from fedglean.optimiser import SGD

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLIENTS, BATCH, IMAGES = 8, 10, 4000
#: ResNet-8 at a quarter of its width.
WIDTH = 0.25


class Cnn(nn.Module):
    """The net `cnn` as one would write it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.output = nn.Linear(32 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.output(x.flatten(1))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, into: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != channels:
            conv = nn.Conv2d(into, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet8(nn.Module):
    """The net `resnet8` as one would write it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        one, two, three = (int(WIDTH * channels) for channels in (64, 128, 256))
        self.stem = nn.Conv2d(3, one, 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(one)
        self.stages = nn.Sequential(Block(one, one, 1), Block(one, two, 2), Block(two, three, 2))
        self.output = nn.Linear(three, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.stem_norm(self.stem(x))))
        return self.output(x.mean((2, 3)))  # type: ignore[no-any-return]


NETS: dict[str, tuple[tuple[int, int, int], float, Callable[[int], nn.Module]]] = {
    "cnn": ((1, 8, 8), 1.0, Cnn),
    "resnet8": ((3, 16, 16), WIDTH, ResNet8),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="steps of each client in a turn")
    parser.add_argument("--turns", type=int, default=7, help="turns that count, after one")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "modules.json"
    )
    options = parser.parse_args()
    settle(DEVICE, 1, deterministic=False)
    rows = [
        compare(name, executor, options.steps, options.turns)
        for name in NETS
        for executor in EXECUTORS
    ]
    title = f"{CLIENTS} clients, {BATCH} images a step, {machine()}"
    table = Table("net", "executor", "ms, layers", "ms, module", "ratio", title=title)
    for row in rows:
        times = f"{row['layers']:.2f}", f"{row['module']:.2f}"
        table.add_row(row["net"], row["executor"], *times, f"{row['ratio']:.3f}")
    Console().print(table)
    record = {"machine": machine(), "commit": commit(), "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


def compare(name: str, executor: str, steps: int, turns: int) -> dict[str, Any]:
    """Milliseconds of a step of all clients, as layers and as a module; who begins, changes."""
    shape, width, build = NETS[name]
    kinds = {
        "layers": Architecture(name, shape, 10, width),
        "module": Architecture("module", shape, 10, kind=from_module(build)),
    }
    served = {kind: EXECUTORS[executor].make(setting(shape[0])) for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(turns + 1):
        for kind in sorted(kinds, reverse=turn % 2 == 0):
            work = trainings(kinds[kind], steps)
            wait()
            began = clock()
            served[kind].run(parties(work))
            wait()
            times[kind].append(1000 * (clock() - began) / steps)
    least = {kind: min(taken[1:]) for kind, taken in times.items()}
    ratio = least["module"] / least["layers"]
    return {"net": name, "executor": executor, **least, "ratio": ratio}


def clock() -> float:
    """On a CPU the seconds of this one thread, which others on the machine hardly change."""
    return time.perf_counter() if DEVICE.type == "cuda" else time.process_time()


def setting(channels: int) -> Setting:
    recipe, cuda = Recipe((0.5,) * channels, (0.25,) * channels, False, 0), DEVICE.type == "cuda"
    return Setting(recipe, images_at_once=4096, compile=cuda, half=cuda)


def trainings(architecture: Architecture, steps: int) -> list[Train]:
    """Each client has its share of images of noise."""
    store = torch.randint(0, 256, (IMAGES, *architecture.shape), dtype=torch.uint8, device=DEVICE)
    start = architecture.initial(1, device=DEVICE)
    shares = torch.arange(IMAGES, device=DEVICE).chunk(CLIENTS)
    streams = [{"labelled": Stream(Images(store, own, own % 10), batch=BATCH)} for own in shares]
    return [Train(start, each, supervised, SGD(0.1, 0.9), steps=steps) for each in streams]


if __name__ == "__main__":
    main()

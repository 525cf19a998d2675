"""Claim: clients with large batches and wide nets train side by side at two thirds of the rate of
one shared model.

One training step of HASSLE's supervised model: eight clients, each its own ResNet-8 and 128 images,
compiled in bf16; and the bound, one shared model on all their images.

    python benchmarks/step.py                                        # wants a GPU
    python benchmarks/step.py --clients 2 --batch 4 --steps 2        # does it run at all?

Prints milliseconds a step, the median of three times `--steps` steps after a first time that
compiles.
"""

import argparse
import time

import torch
from clients import machine, parties, wait

from fedglean.engine.batches import Setting
from fedglean.engine.device import settle
from fedglean.engine.stack import Stack
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe
from fedglean.method import Stream, Train
from fedglean.methods.hassle import Hassle
from fedglean.models import Architecture
from fedglean.optimiser import SGD

IMAGES = 20_000
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {"clients": 8, "batch": 128, "steps": 192}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    settle(DEVICE, 1, deterministic=False)
    print(machine())
    for clients in (options.clients, 1):
        batch = options.batch * options.clients // clients
        stack, work = Stack(setting()), trainings(clients, batch, options.steps)
        taken = [timed(stack, work) for _ in range(4)]
        step = 1000 * sorted(taken[1:])[1] / options.steps
        print(f"{clients} of {batch} images: {step:.2f} ms a step, the first time {taken[0]:.0f} s")


def setting() -> Setting:
    recipe, cuda = Recipe((0.5,) * 3, (0.25,) * 3, flip=True, pad=4), DEVICE.type == "cuda"
    return Setting(recipe, images_at_once=32768, compile=cuda, half=cuda)


def trainings(clients: int, batch: int, steps: int) -> list[Train]:
    """Each with its share of images of noise; nothing of the time depends on what they show."""
    store = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, device=DEVICE)
    net = Architecture("resnet8", (3, 32, 32), 10, norm="running")
    start, other = (net.initial(key, device=DEVICE) for key in (1, 2))
    shares = torch.arange(IMAGES // clients * clients, device=DEVICE).chunk(clients)
    streams = [
        {"images": Stream(Images(store, own, own % 10), view="weak", batch=batch)} for own in shares
    ]
    loss, frozen = Hassle().dual_loss, {"other": other.parameters}
    return [Train(start, each, loss, SGD(0.1, 0.9), steps=steps, frozen=frozen) for each in streams]


def timed(stack: Stack, work: list[Train]) -> float:
    wait()
    began = time.perf_counter()
    stack.run(parties(work))
    wait()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

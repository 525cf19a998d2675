"""Claim: lifted over clients, each convolution of a WRN-28-2 is fastest in the form that `models/convolution.py` takes.

A layer's forward pass and its gradients, for so many clients with so many images each, compiled and captured as
a training step is (bf16), in milliseconds:

    plain      as it stands: cuDNN gets a group of channels for each client
    ours       what fedglean takes
    patches    every patch as a row of a matrix, one product of matrices for each client

    python benchmarks/convolutions.py                   # ten clients with twenty images each; wants a GPU
    python benchmarks/convolutions.py --clients 40      # what four seeds side by side have
    python benchmarks/convolutions.py --clients 2 --images 2        # on a CPU: uncompiled, to see that it runs

Prints a table and writes --out. `--tries` is how many of its algorithms cuDNN times for a layer before it settles.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from clients import commit, machine, wait
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.func import vjp, vmap
from torch.nn import functional as F

from fedglean.engines.graph import fused
from fedglean.models.convolution import convolution, in_groups

#: Channels in and out, kernel, stride and pixels of every kind of layer, and how many the net has.
LAYERS = {
    "stem": (3, 16, 3, 1, 32, 1),
    "group 1, first": (16, 32, 3, 1, 32, 1),
    "group 1": (32, 32, 3, 1, 32, 7),
    "group 1, shortcut": (16, 32, 1, 1, 32, 1),
    "group 2, first": (32, 64, 3, 2, 32, 1),
    "group 2": (64, 64, 3, 1, 16, 7),
    "group 2, shortcut": (32, 64, 1, 2, 32, 1),
    "group 3, first": (64, 128, 3, 2, 16, 1),
    "group 3": (128, 128, 3, 1, 8, 7),
    "group 3, shortcut": (64, 128, 1, 2, 16, 1),
}
FORMS = ("plain", "ours", "patches")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--layers", default="", help="only those whose name has this in it")
    parser.add_argument("--tries", type=int, default=torch.backends.cudnn.benchmark_limit)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "convolutions.json")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, options.tries
    layers = {name: layer for name, layer in LAYERS.items() if options.layers in name}
    title = f"{options.clients} clients, {options.images} images, {machine()}"
    table = Table("layer", "in the net", *FORMS, title=title)
    times: dict[str, dict[str, float]] = {}
    for name, layer in layers.items():
        times[name] = {form: milliseconds(form, layer, options.clients, options.images) for form in FORMS}
        table.add_row(name, str(layer[-1]), *[f"{taken:.3f}" for taken in times[name].values()])
    Console(width=120).print(table)
    used = {key: value for key, value in vars(options).items() if key != "out"}
    facts = {"machine": machine(), "commit": commit(), "options": used, "milliseconds": times}
    options.out.write_text(json.dumps(facts, indent=1) + "\n")


def milliseconds(form: str, layer: tuple[int, ...], clients: int, images: int) -> float:
    into, out, kernel, stride, pixels, _ = layer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = laid_out(images, clients, into, pixels, device)
    above = laid_out(images, clients, out, pixels // stride, device)
    weight = torch.randn(clients, out, into, kernel, kernel, device=device)
    one = patches if form == "patches" else convolution

    def lifted(x: Tensor, weight: Tensor) -> Tensor:
        return vmap(lambda a, b: one(a, b, None, stride, kernel // 2))(x, weight)

    def layer_and_gradients(x: Tensor, weight: Tensor, above: Tensor) -> Any:
        if into == 3:  # nobody asks for the gradient of the images
            result, back = vjp(lambda own: lifted(x, own), weight)
        else:
            result, back = vjp(lifted, x, weight)
        return result, *back(above.to(result.dtype))

    with in_groups() if form == "ours" else nullcontext():
        work = fused(layer_and_gradients, half=True) if device == "cuda" else layer_and_gradients
        return 1000 * seconds(lambda: work(x, weight, above), captured=device == "cuda")


def laid_out(images: int, clients: int, channels: int, pixels: int, device: str) -> Tensor:
    """As the layer before left it: the channels of all clients side by side, innermost."""
    return torch.randn(images, pixels, pixels, clients, channels, device=device).permute(3, 0, 4, 1, 2)


def patches(x: Tensor, weight: Tensor, bias: None, stride: int, padding: int) -> Tensor:
    """As `torch.nn.functional.conv2d`."""
    out, into, kernel, _ = weight.shape
    x = F.pad(x, [padding] * 4).permute(0, 2, 3, 1)
    images, high, wide = x.shape[0], *((size - kernel) // stride + 1 for size in x.shape[1:3])
    shifted = [
        x[:, down : down + stride * high : stride, right : right + stride * wide : stride]
        for down in range(kernel)
        for right in range(kernel)
    ]
    fill = -into * kernel**2 % 8  # tensor cores take eight numbers at a time
    matrix = F.pad(torch.cat(shifted, -1), (0, fill)).reshape(images * high * wide, -1)
    factors = F.pad(weight.permute(0, 2, 3, 1).reshape(out, -1), (0, fill))
    return (matrix @ factors.T).reshape(images, high, wide, out).permute(0, 3, 1, 2)


def seconds(work: Callable[[], Any], captured: bool, repeat: int = 20) -> float:
    """Median of several, after a warm-up."""
    for _ in range(3):
        work()
    wait()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    taken = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        wait()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[repeat // 2]


if __name__ == "__main__":
    main()

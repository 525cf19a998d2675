"""Compiled convolutions read channels_last, and compute what they computed before."""

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad, vmap
from torch.fx import GraphModule, Node
from torch.nn import functional as F

from fedglean.engine.layout import TENSORS, ChannelsLast


def step(weights: Tensor, images: Tensor) -> Tensor:
    """A gradient through two convolutions, lifted over lanes."""

    def loss(weight: Tensor, image: Tensor) -> Tensor:
        return (
            F.conv2d(F.relu(F.conv2d(image, weight, padding=1)), weight, padding=1).square().sum()
        )

    return vmap(grad(loss))(weights, images)


def traced(change: bool = True) -> tuple[GraphModule, Tensor]:
    """The step's graph as Inductor gets it, and what it computes."""
    graphs: list[GraphModule] = []

    def take(module: GraphModule, _: object) -> GraphModule:
        graphs.append(module)
        if change:
            ChannelsLast()(module.graph)
            module.recompile()
        return module

    draw = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(shape, generator=draw, dtype=torch.float64)
        for shape in ((3, 4, 4, 3, 3), (3, 2, 4, 8, 8))
    ]
    torch._dynamo.reset()
    result = torch.compile(step, backend=aot_autograd(fw_compiler=take), fullgraph=True)(*inputs)
    return graphs[0], result


def convolutions(module: GraphModule) -> list[list[Node]]:
    """What each convolution reads."""
    return [
        list(node.args[: TENSORS[node.target]])  # type: ignore[arg-type]
        for node in module.graph.nodes
        if node.target in TENSORS
    ]


def test_every_convolution_reads_channels_last_and_gives_what_it_gave() -> None:
    (_, before), (module, after) = traced(change=False), traced()
    reads = convolutions(module)
    assert len(reads) == 4
    assert all(
        read.meta["val"].is_contiguous(memory_format=torch.channels_last)
        for some in reads
        for read in some
    )
    torch.testing.assert_close(after, before)


def test_what_forward_and_backward_read_is_laid_out_once() -> None:
    module, _ = traced()
    forward, backward = convolutions(module)[:2], convolutions(module)[2:]
    for (image, weight), (_, same_image, same_weight) in zip(
        forward, reversed(backward), strict=True
    ):
        assert image is same_image and weight is same_weight

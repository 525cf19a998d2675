"""A lifted training step over fixed buffers, captured once as a CUDA graph and replayed.

On a GPU a small client's step is a few thousand tiny kernels; launching them one by one from Python
costs many times what they do. Captured, a step is one launch. `torch.compile` fuses it on top, at
the price of a minute for each signature.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.method import Batch
from fedglean.randomness import of_text
from fedglean.tree import Tree

Lifted = Callable[[Tree, Tree, Batch, Tree], tuple[Tree, Tree, dict[str, Tensor]]]


def fused(function: Callable[..., Any], half: bool) -> Callable[..., Any]:
    """The function compiled for CUDA, in half precision if asked for."""
    import torch._dynamo.config as limits  # takes a second to load, and most runs compile nothing

    from fedglean.engine.layout import ChannelsLast

    def run(*arguments: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return function(*arguments)

    # Without a code object of its own, all that is ever compiled here would count together.
    run.__code__ = run.__code__.replace()
    torch.compiler.assume_constant_result(of_text)  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {
        "force_layout_optimization": True,
        "post_grad_custom_post_pass": ChannelsLast(),
        # Combined, the updates of eighty parameters are a few kernels.
        "combo_kernels": True,
    }
    compiled = torch.compile(run, fullgraph=True, dynamic=False, options=options)

    def run_compiled(*arguments: Any) -> Any:
        # Every signature is one compilation; torch's limit of eight a code catches endless ones.
        with limits.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
            return compiled(*arguments)

    return run_compiled


class CapturedStep:
    """One step of all lanes, in place: a replay moves models, memory and totals on by one step.

    The step's batch is read from a chunk of many steps at a counter that lives on the device, so
    that nothing has to be copied or waited for between two steps.
    """

    def __init__(
        self,
        lifted: Lifted,
        models: Tree,
        memory: Tree,
        frozen: Tree,
        chunk: Batch,
        lanes: int,
        *,
        compiled: bool = False,
        half: bool = False,
    ) -> None:
        self.models, self.memory = tree.map(torch.clone, models), tree.map(torch.clone, memory)
        self.frozen, self.chunk = tree.map(torch.clone, frozen), tree.map(torch.clone, chunk)
        device = chunk.step.device
        self.lengths = torch.zeros(lanes, dtype=torch.long, device=device)
        # Which step it is, and where in the chunk its batch lies.
        self.number = torch.zeros((), dtype=torch.long, device=device)
        self.place = self.lengths.new_zeros(1)
        self.totals: dict[str, Tensor] = {}
        # Compiled whole: choosing the batch and updating the buffers are fused with the step.
        step = in_place(lifted)
        self.step = fused(step, half) if compiled else step
        self._capture()

    def load(self, models: Tree, memory: Tree, frozen: Tree, lengths: Tensor, number: int) -> None:
        """Begin with these lanes at step `number`."""
        tree.map(Tensor.copy_, self.models, models)
        tree.map(Tensor.copy_, self.memory, memory)
        tree.map(Tensor.copy_, self.frozen, frozen)
        self.lengths.copy_(lengths)
        self.number.fill_(number)
        for total in self.totals.values():
            total.zero_()

    def play(self, chunk: Batch, steps: int) -> None:
        """Take that many steps, with the batches of a chunk."""
        tree.map(lambda a, b: a[:steps].copy_(b[:steps]), self.chunk, chunk)
        self.place.zero_()
        for _ in range(steps):
            self.graph.replay()

    def _capture(self) -> None:
        """Take three steps to warm up, and record one; no model moves, for all lengths are 0."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.place.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        # A capture takes memory of its own, and what the warm-up had is of no use to it.
        give_back()
        self.place.zero_()
        self.graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(self.graph, pool):
                self._step()
        except Exception:
            abandon(pool)
            raise
        give_back()

    def _step(self) -> None:
        on = self.number < self.lengths
        metrics = self.step(self.models, self.memory, self.frozen, self.chunk, on, self.place)
        for name, value in metrics.items():
            zeros = torch.zeros(len(on), dtype=torch.float64, device=on.device)
            self.totals.setdefault(name, zeros).add_(value)
        self.number.add_(1)
        self.place.add_(1)


def give_back() -> None:
    """Return the memory that is free to the device.

    Workspaces of cuBLAS outlive the stream or graph that they were made for, and each would hold
    the block it lies in.
    """
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def abandon(pool: Any) -> None:
    """Close the pool of a capture that failed: torch leaves it open and never frees its memory."""
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # where the capture could be ended, torch has closed it
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


def of_lanes(on: Tensor, moving: Tensor, still: Tensor) -> Tensor:
    """`moving` of the lanes that are `on`, `still` of the others."""
    return torch.where(on.reshape(-1, *[1] * (moving.dim() - 1)), moving, still)  # lanes x ...


def in_place(lifted: Lifted) -> Callable[..., dict[str, Tensor]]:
    """The step as a function that moves the buffers of lanes that are `on`; returns metrics."""

    def step(
        models: Tree, memory: Tree, frozen: Tree, chunk: Batch, on: Tensor, place: Tensor
    ) -> dict[str, Tensor]:
        # The chunk is steps x lanes x ...; the batch, models and memory are lanes x ...
        batch = tree.map(lambda leaf: leaf.index_select(0, place)[0], chunk)
        new_models, new_memory, metrics = lifted(models, memory, batch, frozen)

        def move(old: Tensor, new: Tensor) -> Tensor:
            return old.copy_(of_lanes(on, new, old))

        tree.map(move, models, new_models)
        tree.map(move, memory, new_memory)
        return {name: torch.where(on, value.double(), 0.0) for name, value in metrics.items()}

    return step

"""A lifted training step as a plain list of tensor operations.

`vmap` and `grad` find out anew at every step what to do with every operation; for a small model
that takes longer than the operations. What they find out does not change from step to step, so a
step that was taken often enough is recorded once (`make_fx`) and from then on only repeated: the
same kernels on the same numbers, to the bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean.engine.graph import Lifted
from fedglean.method import Batch
from fedglean.tree import Tree

#: What torch says of a step that looks at numbers.
UNRECORDABLE = "tracing tensor"


class RecordedStep:
    """A lifted step over lists of tensors: models and memory, the batch, what is frozen."""

    def __init__(
        self,
        lifted: Lifted,
        models: Tree,
        memory: Tree,
        batch: Batch,
        frozen: Tree,
        record_after: int,
    ) -> None:
        self.lifted, self.record_after, self.taken = lifted, record_after, 0
        self.structure = pytree.tree_structure((models, memory, batch, frozen))
        self.state = pytree.tree_structure((models, memory))
        self.names: tuple[str, ...] = ()
        self.run: Callable[..., Sequence[Tensor]] = self._lifted

    def __call__(
        self, state: Sequence[Tensor], batch: Sequence[Tensor], frozen: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The new state, followed by the metrics, which are `names`."""
        self.taken += 1
        if self.taken == self.record_after:
            try:
                self.run = _record(self._lifted, [*state, *batch, *frozen])
            except RuntimeError as error:
                if UNRECORDABLE not in str(error):
                    raise  # else it is taken as before, which the loop can
        return self.run(*state, *batch, *frozen)

    def _lifted(self, *leaves: Tensor) -> list[Tensor]:
        answer = self.lifted(*pytree.tree_unflatten(leaves, self.structure))
        try:
            models, memory, metrics = answer
            # The names may have come in another order.
            state = self.state.flatten_up_to((models, memory))
        except ValueError as error:
            raise TypeError(
                "a step returns models, memory and metrics; models and memory must be built as it "
                f"got them ({error})"
            ) from error
        self.names = tuple(metrics)
        return [*state, *metrics.values()]


def _record(function: Callable[..., Any], leaves: Sequence[Tensor]) -> Callable[..., Any]:
    # These take a moment to load, and short runs need none of them.
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    # Clones, for one tensor in two places, such as a model that is also what it was sent as, would
    # be taken for one.
    clones = [leaf.clone() for leaf in leaves]
    # One mode for all tensors: torch would make one for each of them, which is most of the time.
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        traced = make_fx(function)(*clones)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced

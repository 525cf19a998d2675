"""The contract of a method: what it may ask for, what it gets, and what it may see.

A method is written for one party at a time. `round` is the paper's outer loop at the hub, a client
function is one client in one exchange; both are coroutines that await the heavy work:

| request      | answer                                                                            |
|--------------|-----------------------------------------------------------------------------------|
| `Train`      | `Trained`: models, memory, steps taken, mean metrics                              |
| `Predict`    | `Predictions`: class probabilities of each image, in order                        |
| `Apply`      | whatever a function makes of each image, in order                                 |
| `Statistics` | batch-norm sums that add up over parties (`Model.with_statistics` takes them)     |
| `Ask`        | `Reply`; at the hub only                                                          |

`a, b = await together(Train(...), Predict(...))` answers several at once. There is no event loop:
an executor drives the coroutines with `send`, so nothing but these requests can be awaited. On
which device, how many clients at once and in which process is not a method's business.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean.inputs.images import Images, Predictions
from fedglean.models import Architecture, Model
from fedglean.optimiser import SGD, Optimiser, standard_step
from fedglean.randomness import fold_int, order
from fedglean.schema import setting as setting
from fedglean.tree import Record, Tree
from fedglean.uploads import Reply as Reply
from fedglean.uploads import Upload as Upload

Loss = Callable[[Any, "Batch", Any], Any]
Step = Callable[[Any, Any, "Batch", Any], tuple[Any, Any, dict[str, Tensor]]]
#: A client's side of an exchange.
ClientFunction = Callable[["Me", Record], Coroutine[Any, Any, Upload | None]]
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@dataclass(frozen=True)
class Stream:
    """Images from which a training step draws its batch, each in one or several views.

    `draw` is "shuffled" (every image once an epoch; a short last batch is filled up from the
    epoch's beginning) or "with-replacement".
    """

    images: Images
    view: str | tuple[str, ...] = "weak"
    batch: int = 10
    draw: str = "shuffled"

    @property
    def views(self) -> tuple[str, ...]:
        return (self.view,) if isinstance(self.view, str) else self.view

    @property
    def epoch(self) -> int:
        """The number of steps in which every image is seen once."""
        return -(-len(self.images) // self.batch)


@dataclass(frozen=True)
class Sample:
    """One stream's part of a batch: a tensor per view, which images they are, labels if any."""

    views: tuple[Tensor, ...]
    index: Tensor
    label: Tensor = None  # type: ignore[assignment]

    @property
    def images(self) -> Tensor:
        """The first view."""
        return self.views[0]


@dataclass(frozen=True)
class Batch:
    """What one step sees: `batch.<stream>`, and as tensors step, epoch, rate and a random key."""

    streams: dict[str, Sample]
    step: Tensor
    epoch: Tensor
    rate: Tensor
    key: Tensor

    def __getattr__(self, name: str) -> Sample:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.streams:
            known = ", ".join(self.streams)
            raise AttributeError(f"no stream '{name}' in this batch, which has {known}")
        return self.streams[name]


def _parts(sample: Sample) -> list[Any]:
    # None would be a leaf, which torch.func cannot lift: a missing label is a missing child.
    label = [] if sample.label is None else [sample.label]
    return [sample.views, sample.index, *label]


pytree.register_pytree_node(
    Sample,
    lambda sample: (_parts(sample), None),
    lambda children, _: Sample(*children),
    serialized_type_name="fedglean.Sample",
)
pytree.register_pytree_node(
    Batch,
    lambda batch: ([batch.streams, batch.step, batch.epoch, batch.rate, batch.key], None),
    lambda children, _: Batch(*children),
    serialized_type_name="fedglean.Batch",
)


class Request(Generic[A]):
    """What a party awaits; `A` is the type of its answer."""

    def __await__(self) -> Generator["Request[Any]", Any, A]:
        answer: A = yield self
        return answer


@dataclass(frozen=True)
class Together(Request[A]):
    """Several requests that are answered at once."""

    requests: tuple[Request[Any], ...]


@overload
def together(first: Request[A], second: Request[B], /) -> Together[tuple[A, B]]: ...


@overload
def together(
    first: Request[A], second: Request[B], third: Request[C], /
) -> Together[tuple[A, B, C]]: ...


@overload
def together(*requests: Request[A]) -> Together[tuple[A, ...]]: ...


def together(*requests: Request[Any]) -> Together[Any]:
    """The answers to several requests but asks, in order; executors serve them side by side."""
    return Together(requests)


def probabilities(model: "Model | Mixture", images: Tensor) -> Tensor:
    """What `Predict` makes of images: softmax of the logits."""
    return model.evaluate(images).softmax(-1)


@dataclass(frozen=True)
class Predict(Request[Predictions]):
    """Class probabilities of each image once; with a `threshold`, observed as pseudo-labels.

    The threshold is one number, or a tensor: with one a class, or of n x 1 with one an image.
    """

    models: "Model | Mixture"
    images: Images
    view: str = "plain"
    threshold: float | Tensor | None = None
    batch: int = 500

    @property
    def function(self) -> Callable[[Any, Tensor], Tensor]:
        return probabilities


@dataclass(frozen=True)
class Apply(Request[Tensor]):
    """`function(models, images)` for each image once: a row each, in order."""

    function: Callable[[Any, Tensor], Tensor]
    models: Tree
    images: Images
    view: str = "plain"
    batch: int = 500


@dataclass(frozen=True)
class Statistics(Request[dict[str, Tensor]]):
    """Batch-norm sums of a model over plain images, in batches that stay inside this party."""

    model: Model
    images: Images
    batch: int = 250


@dataclass(frozen=True)
class Train(Request["Trained"]):
    """Train for a number of steps, or for epochs of the first stream; the others cycle.

    Usually a method gives `loss(models, batch, frozen)` and an optimiser;
    `step(models, memory, batch, frozen)` replaces both. `memory` is what else changes by step
    (None: the optimiser starts anew), `frozen` what does not. `rate` replaces the optimiser's, so
    that a schedule needs no other.
    """

    models: Tree
    streams: Mapping[str, Stream]
    loss: Loss | None = None
    optimiser: Optimiser | None = None
    step: Step | None = None
    epochs: int | None = None
    steps: int | None = None
    memory: Tree = None
    frozen: Mapping[str, Any] = field(default_factory=dict)
    rate: float | None = None

    def __post_init__(self) -> None:
        if not self.streams or not all(stream.images for stream in self.streams.values()):
            raise ValueError(
                "an empty stream cannot be trained on; a client without data returns None instead"
            )
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("Train needs either epochs or steps")
        if self.step is None and (self.loss is None or self.optimiser is None):
            raise ValueError("Train needs a loss with an optimiser, or a step")
        if self.step is None and not pytree.tree_leaves(self.models):
            raise ValueError("there is nothing to train: models holds no tensor")

    @property
    def length(self) -> int:
        """Number of steps."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * next(iter(self.streams.values())).epoch

    @property
    def learning_rate(self) -> float:
        if self.rate is not None:
            return self.rate
        return self.optimiser.rate if self.optimiser else 0.0

    def stepper(self) -> Step:
        return self.step or standard_step(self.loss, self.optimiser)  # type: ignore[arg-type]

    def start_memory(self) -> Tree:
        if self.memory is not None:
            return self.memory
        return self.optimiser.init(self.models) if self.optimiser else {}


@dataclass(frozen=True)
class Trained:
    """The answer to `Train`; its metrics are means over the steps."""

    models: Tree
    memory: Tree
    steps: int
    metrics: dict[str, float]

    @property
    def model(self) -> Model:
        """The model, if there is only one."""
        assert isinstance(self.models, Model)
        return self.models


@dataclass(frozen=True)
class Expect:
    """The form of an upload that was not in the message: its shape, and what entries may be.

    An entry is at most `bound` for each declared image, and at least `low`. Both are a number for
    all entries, or a tree of that shape.
    """

    tree: Tree
    bound: float | Tree = 1e6
    low: float | Tree = -math.inf

    def __post_init__(self) -> None:
        for leaf in pytree.tree_leaves(self.tree) or [self.tree]:
            if not isinstance(leaf, Tensor):
                raise TypeError(
                    "Expect needs a tree of tensors, torch.zeros(()) for one number; this holds "
                    f"{leaf!r}"
                )


@dataclass(frozen=True)
class Ask(Request[Reply]):
    """One exchange with some clients: `client(me, message)` at each, their uploads summed.

    `each` adds to the message what differs from client to client. Names that a client uploads must
    be in the message or in `expect`; those in `once` have a weight of at most 1. `collect="all"`
    also gives the uploads one by one. `purpose` tells training from mere measuring.
    """

    client: ClientFunction
    to: Sequence[int]
    message: Mapping[str, Any]
    each: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    expect: Mapping[str, Expect] = field(default_factory=dict)
    once: Sequence[str] = ()
    collect: str = "sum"
    purpose: str = "train"

    def __post_init__(self) -> None:
        if not isinstance(self.message, Mapping):
            kind = type(self.message).__name__
            raise TypeError(f"a message is a dictionary of names, not a {kind}")

    @cached_property
    def asked(self) -> frozenset[int]:
        """Made once: every block's gate looks into it."""
        return frozenset(self.to)


class Report(Request[None]):
    """Numbers that the hub reports of a round: `await Report(epsilon=1.5)`; at the hub only."""

    def __init__(self, **numbers: float) -> None:
        self.numbers = numbers


@dataclass(frozen=True)
class Declared:
    """How many images a client says it has."""

    labelled: int
    unlabelled: int

    @property
    def total(self) -> int:
        return self.labelled + self.unlabelled


@dataclass(frozen=True)
class Me:
    """All that a client's side of a method can see; its `state`, kept last, must not be changed."""

    number: int
    labelled: Images
    unlabelled: Images
    state: Tree
    key: int


@dataclass(frozen=True)
class Hub:
    """All that the hub's side of a method can see."""

    round: int
    rounds: int
    labelled: Images
    clients: tuple[Declared, ...]
    key: int

    @property
    def everyone(self) -> list[int]:
        return list(range(len(self.clients)))

    @property
    def progress(self) -> float:
        """0 in the first round, towards 1 in the last."""
        return (self.round - 1) / self.rounds

    def sample(
        self, share: float, among: Iterable[int] | None = None, name: str = "sample"
    ) -> list[int]:
        """A share of the clients, rounded up, drawn without replacement."""
        if not 0 <= share <= 1:
            raise ValueError(f"the share of the clients to draw must be from 0 to 1, not {share}")
        pool = sorted(self.everyone if among is None else among)
        # 0.07 * 100 is a hair above 7 and must not become 8.
        count = min(len(pool), max(1, math.ceil(round(share * len(pool), 9))))
        drawn = order(fold_int(self.key, name), len(pool))[:count]
        return sorted(pool[place] for place in drawn.tolist())


class MakeModel(Protocol):
    """Draws models before round 1: `make("model")`, each by its name.

    `key` is for other draws, such as a head of the method's own.
    """

    @property
    def key(self) -> int: ...

    def __call__(self, name: str = "model", width: float = 1.0) -> Model: ...


@dataclass(frozen=True)
class Method(ABC):
    """A method: subclasses are frozen dataclasses whose fields are its settings.

    Only `round` must be written. `defaults` are parts of a configuration in which it makes sense,
    on a laptop. `optimiser` is made by what the run names, with SGD's hyper-parameters; a method
    whose algebra holds for SGD alone (`needs_sgd`) refuses any other. `retired` are settings of
    earlier versions: the one value that still holds, and the method to take for another one.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    needs_sgd: ClassVar[bool] = False
    retired: ClassVar[Mapping[str, tuple[Any, str]]] = {}

    optimiser: Callable[..., Optimiser] = field(
        default=SGD, kw_only=True, repr=False, metadata={"is_beside": True}
    )

    def start(self, make: MakeModel) -> Any:
        """The hub's state before round 1: a `State` of its own, or a record of a `model`."""
        return Record(model=make("model"))

    @abstractmethod
    async def round(self, hub: Hub, state: Any) -> Any:
        """One round: the paper's outer loop, returning the new state."""

    def predictors(self, state: Any) -> Mapping[str, "Model | Mixture"]:
        """The models to test, by name; the first is the result. By default the state's `model`."""
        return {"model": state.model}

    @property
    def drops(self) -> bool:
        """Whether its steps give models a key to drop units by; else `model.dropout` is refused."""
        return False

    async def finish(self, hub: Hub, state: Any) -> Any:
        """What is still to be done after the last round: a new state, or None for nothing."""
        return None

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        """Refuse, with a `ConfigError`, a federation in which the method makes no sense."""
        return None


@dataclass(frozen=True)
class Mixture:
    """A predictor whose logits are a weighted sum of its models'."""

    models: tuple[Model, ...]
    weights: tuple[float, ...]

    @property
    def architecture(self) -> Architecture:
        """Of the first model: images and classes are the same for all."""
        return self.models[0].architecture

    def evaluate(self, images: Tensor) -> Tensor:
        """The logits in a test."""
        return self.mix([model.evaluate(images) for model in self.models])

    def mix(self, logits: Sequence[Tensor]) -> Tensor:
        """Those of its models in one."""
        weighted = [weight * own for own, weight in zip(logits, self.weights, strict=True)]
        return torch.stack(weighted).sum(0)


pytree.register_pytree_node(
    Mixture,
    lambda mixture: (list(mixture.models), mixture.weights),
    lambda models, weights: Mixture(tuple(models), weights),
    serialized_type_name="fedglean.Mixture",
)

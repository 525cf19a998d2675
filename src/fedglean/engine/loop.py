"""The executor `loop`: one client after the other. The reference that every other executor must
equal.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.engine.batches import Setting, batches
from fedglean.engine.signature import signature_of
from fedglean.engine.trace import Step
from fedglean.errors import FedgleanError
from fedglean.inputs.images import Predictions
from fedglean.inputs.views import channels_last, view
from fedglean.method import Predict, Statistics, Talk, Train, Trained, kind_of, probabilities
from fedglean.randomness import fold, fold_int
from fedglean.tree import Tree

Observer = Callable[[Predictions], None]
#: How torch says, at length and to its own developers, that a step cannot be lifted.
NOT_LIFTED = ("vmap: ", "tracing tensor")
LIFTED = (
    "a loss or step is lifted to all clients at once, so it cannot have an `if` on a tensor, "
    ".item(), F.one_hot, a "
    "boolean mask as an index or torch.rand; docs/tutorial-method.md says what to write instead"
)


@dataclass(frozen=True, eq=False)
class Party:
    """A generator to run: a client in one exchange, or the hub in one round."""

    name: str
    talk: Talk
    key: int
    observe: Observer | None = None


class PartyError(Exception):
    """A bug inside a method or an executor; its first line says where."""


class Conversation:
    """A party while it runs: what it asks for now, or what it returned in the end."""

    def __init__(self, party: Party) -> None:
        self.party, self.number, self.done = party, -1, False
        self.request: Any = None
        self.result: Any = None

    def go_on(self, reply: Any) -> None:
        """Hand over the answer to its request, and run it to the next one."""
        with self.blamed("after " if self.request is not None else ""):
            if not isinstance(self.party.talk, Generator):
                raise TypeError(
                    "a party's function must be a generator, but there is no `yield` in it"
                )
            try:
                self.request = self.party.talk.send(reply)
                self.number += 1
            except (
                StopIteration
            ) as stop:  # of the party alone: one that escapes an answer is a bug like any other
                self.done, self.result = True, stop.value

    @contextmanager
    def blamed(self, when: str = "", others: int = 0) -> Iterator[None]:
        """Turn errors inside into a `PartyError` whose first line says whose they are."""
        try:
            yield
        except (FedgleanError, PartyError):
            raise
        except Exception as error:
            request = f"request {self.number} ({type(self.request).__name__})"
            where = f"{when}{request}" if self.request is not None else "before its first request"
            who = f"{self.party.name} and {others} others" if others else self.party.name
            told = f"{type(error).__name__}: {error}"
            if any(words in told for words in NOT_LIFTED):
                told = f"{LIFTED} ({told})"
            raise PartyError(f"{who}, {where}: {told}") from error


def side_by_side(
    parties: Sequence[Party], answer: Callable[[Sequence[Conversation]], Sequence[Any]]
) -> list[Any]:
    """Run parties to their ends and return what they returned; `answer` serves all that wait at
    once.
    """
    talks = [Conversation(party) for party in parties]
    for talk in talks:
        talk.go_on(None)
    while waiting := [talk for talk in talks if not talk.done]:
        for talk, reply in zip(waiting, answer(waiting), strict=True):
            talk.go_on(reply)
    return [talk.result for talk in talks]


@dataclass(frozen=True)
class Call:
    """One request, or a list of them, with the key of its draws."""

    request: Any
    key: int
    observe: Observer | None = None

    def parts(self) -> list["Call"]:
        """Its requests one by one."""
        if not isinstance(self.request, list):
            return [self]
        return [
            Call(part, fold_int(self.key, "part", place), self.observe)
            for place, part in enumerate(self.request)
        ]

    def predicted(self, output: Tensor) -> Any:
        """The answer to a `Predict`; pseudo-labels are observed."""
        if self.request.apply is not probabilities:
            return output
        predictions = Predictions(self.request.images, output, self.request.threshold)
        if self.observe is not None and self.request.threshold is not None:
            self.observe(predictions)
        return predictions


class Loop:
    """Serves requests one by one. `widest` is how many trainings at once fit into memory, if not
    all did.
    """

    widest: int | None = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.steps: dict[Any, Step] = {}

    def run(self, parties: Sequence[Party]) -> list[Any]:
        """What each party of a block returned."""
        return [
            result for party in parties for result in side_by_side([party], self._answer_parties)
        ]

    def _answer_parties(self, waiting: Sequence[Conversation]) -> list[Any]:
        calls = [
            Call(talk.request, fold_int(talk.party.key, talk.number), talk.party.observe)
            for talk in waiting
        ]
        with waiting[0].blamed(others=len(waiting) - 1):
            return self.answer(calls)

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        """The answers to many calls, in order; to a list of requests, a list."""
        return listed_or_alone(
            calls, [[self._answer_one(part) for part in call.parts()] for call in calls]
        )

    def serve(self, request: Any, key: int, observe: Observer | None = None) -> Any:
        """The answer to one request, or the list of answers to a list."""
        return self.answer([Call(request, key, observe)])[0]

    def _answer_one(self, call: Call) -> Any:
        request = call.request
        if isinstance(request, Train):
            return self._train(request, call.key)
        with torch.no_grad():
            if isinstance(request, Statistics):
                return self._statistics(request)
            if isinstance(request, Predict):
                return self._predict(request, call)
        raise TypeError(
            "a party yields Train, Predict, Statistics or (the hub) Ask; this one yielded "
            f"{kind_of(request)}"
        )

    def _train(self, request: Train, key: int) -> Trained:
        models, memory = (
            _laid_out(tree.trainable(request.models), channels_last),
            request.start_memory(),
        )
        leaves, structure = pytree.tree_flatten((models, memory))
        state: Sequence[Tensor] = leaves
        frozen = pytree.tree_leaves(dict(request.frozen))
        signature, totals = signature_of(request), dict[str, Tensor]()
        for batch in batches(request, key, self.setting):
            if signature not in self.steps:
                example = models, memory, batch, dict(request.frozen)
                self.steps[signature] = Step(request.stepper(), *example, self.setting.often)
            step = self.steps[signature]
            new = step(state, pytree.tree_leaves(_laid_out(batch, channels_last)), frozen)
            state, metrics = (
                new[: len(state)],
                dict(zip(step.names, new[len(state) :], strict=True)),
            )
            totals = {
                name: value.double() + totals.get(name, 0.0) for name, value in metrics.items()
            }
        means = {name: float(total) / request.length for name, total in totals.items()}
        models, memory = _laid_out(pytree.tree_unflatten(state, structure), _usual)
        return Trained(models, memory, request.length, means)

    def _predict(self, request: Predict, call: Call) -> Any:
        parts = []
        for position in _slices(request.images.index, request.batch):
            keys = fold(fold_int(call.key, "view"), position)
            pixels = request.images.pixels(position)
            made = view(request.view, pixels, keys, self.setting.recipe, self.setting.dtype)  # type: ignore[arg-type]
            parts.append(request.apply(request.models, channels_last(made)))
        return call.predicted(torch.cat(parts) if parts else self._nothing(request))

    def _nothing(self, request: Predict) -> Tensor:
        columns = (request.models.architecture.classes,) if request.apply is probabilities else ()
        return torch.zeros(
            0, *columns, dtype=self.setting.dtype, device=request.images.index.device
        )

    def _statistics(self, request: Statistics) -> dict[str, Tensor]:
        sums = request.model.empty_sums()
        for position in _slices(request.images.index, request.batch):
            if len(position) == 1:
                continue  # one image has no variance
            pixels = request.images.pixels(position)
            made = view("plain", pixels, position, self.setting.recipe, self.setting.dtype)
            sums = tree.add(sums, request.model.record(channels_last(made)))
        return sums


def listed_or_alone(calls: Sequence[Call], answers: Sequence[list[Any]]) -> list[Any]:
    """The answers to the parts of each call, as it asked: a list to a list, else the only one."""
    return [
        some if isinstance(call.request, list) else some[0]
        for call, some in zip(calls, answers, strict=True)
    ]


def _laid_out(part: Tree, order: Callable[[Tensor], Tensor]) -> Tree:
    """Images and kernels in another order in memory. The order shows in last bits, so none is left
    behind.
    """
    return tree.map(
        lambda leaf: order(leaf) if leaf.dim() == 4 and not leaf.is_cuda else leaf, part
    )


def _usual(leaf: Tensor) -> Tensor:
    """In the usual order; `contiguous` would leave the strides of a single channel as they are."""
    return leaf.reshape(-1).reshape(leaf.shape)


def _slices(index: Tensor, batch: int) -> Sequence[Tensor]:
    return torch.split(torch.arange(len(index), device=index.device), batch) if len(index) else ()

"""Coroutines of a method while they run, and the errors that say whose they are.

There is no event loop: `run_together` drives the coroutines with `send`, and whoever calls it
answers the requests that they await.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedglean.errors import FedgleanError
from fedglean.inputs.images import Predictions
from fedglean.method import Predict, Request, Together
from fedglean.randomness import fold_int

Observer = Callable[[Predictions], None]
#: How torch says, at length and to its own developers, that a step cannot be lifted.
NOT_LIFTED = ("vmap: ", "tracing tensor")
LIFTED = (
    "a loss or step is lifted to all clients at once, so it cannot have an `if` on a tensor, "
    ".item(), F.one_hot, a boolean mask as an index or torch.rand; docs/tutorial-method.md says "
    "what to write instead"
)


class PartyError(Exception):
    """A bug inside a method or an executor; its first line says where."""


@dataclass(frozen=True, eq=False)
class Party:
    """The hub in one round or a client in one exchange: its coroutine, and the key of its draws.

    `purpose` tells the keys of the hub's requests from those of its exchanges.
    """

    name: str
    coroutine: Coroutine[Any, Any, Any]
    key: int
    observe: Observer | None = None
    purpose: tuple[str, ...] = ()


class Task:
    """A party while it runs: what it awaits now, or what it returned in the end."""

    def __init__(self, party: Party) -> None:
        self.party, self.number, self.done = party, -1, False
        self.request: Any = None
        self.result: Any = None

    @property
    def call(self) -> "Call":
        """What it awaits, with the key of its draws."""
        key = fold_int(self.party.key, self.number, *self.party.purpose)
        return Call(self.request, key, self.party.observe)

    def go_on(self, reply: Any) -> None:
        """Hand over the answer to its request, and run it to the next one."""
        with self.blamed("after " if self.request is not None else ""):
            if not isinstance(self.party.coroutine, Coroutine):
                raise TypeError(
                    "a party's function must be a coroutine: write `async def`, and `await` in the "
                    "place of `yield` (docs/tutorial-method.md)"
                )
            try:
                request = self.party.coroutine.send(reply)
            except StopIteration as stop:  # of the party alone: one that escapes an answer is a bug
                self.done, self.result = True, stop.value
                return
            if not isinstance(request, Request):
                raise TypeError(
                    "a method awaits its own requests and coroutines of them alone; there is no "
                    "event loop for anything else"
                )
            self.request = request
            self.number += 1

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
            raise PartyError(f"{who}, {where}: {_description(error)}") from error


def _description(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if any(words in text for words in NOT_LIFTED):
        return f"{LIFTED} ({text})"
    if isinstance(error, AttributeError) and isinstance(error.obj, Request | Coroutine):
        return f"{text}; `await` was forgotten, which gives a request's answer"
    return text


def run_together(
    parties: Sequence[Party], answer: Callable[[Sequence[Task]], Sequence[Any]]
) -> list[Any]:
    """Run parties to their ends and return what they returned; `answer` serves all that wait."""
    tasks = [Task(party) for party in parties]
    with closing(parties):
        for task in tasks:
            task.go_on(None)
        while waiting := [task for task in tasks if not task.done]:
            for task, reply in zip(waiting, answer(waiting), strict=True):
                task.go_on(reply)
    return [task.result for task in tasks]


@contextmanager
def closing(parties: Sequence[Party]) -> Iterator[None]:
    """Close what an error leaves unfinished: Python warns of coroutines that were never begun."""
    try:
        yield
    finally:
        for party in parties:
            if isinstance(party.coroutine, Coroutine):
                party.coroutine.close()


@dataclass(frozen=True)
class Call:
    """A request with the key of its draws."""

    request: Any
    key: int
    observe: Observer | None = None

    def parts(self) -> list["Call"]:
        """Its requests one by one."""
        if not isinstance(self.request, Together):
            return [self]
        parts = []
        for place, request in enumerate(self.request.requests):
            parts.append(Call(request, fold_int(self.key, "part", place), self.observe))
        return parts

    def predictions(self, output: Tensor) -> Tensor | Predictions:
        """The answer to a `Predict` or an `Apply`; pseudo-labels are observed."""
        if not isinstance(self.request, Predict):
            return output
        predictions = Predictions(self.request.images, output, self.request.threshold)
        if self.observe is not None and self.request.threshold is not None:
            self.observe(predictions)
        return predictions


def parts_of(calls: Sequence[Call]) -> list[Call]:
    """The requests of all calls one by one."""
    parts = []
    for call in calls:
        parts += call.parts()
    return parts


def by_call(calls: Sequence[Call], answers: Sequence[Any]) -> list[Any]:
    """The answers to all `parts_of` calls: several to a call of `together`, else one."""
    rest, replies = iter(answers), []
    for call in calls:
        if isinstance(call.request, Together):
            replies.append(tuple(next(rest) for _ in call.request.requests))
        else:
            replies.append(next(rest))
    return replies

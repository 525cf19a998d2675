"""The door `executor`: how the requests of a block of parties are answered on one device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedglean.engine.batches import Setting
from fedglean.engine.task import Call, Party


class Executor(Protocol):
    """Runs the coroutines of parties and answers what they await.

    `widest` is how many trainings at once fit into memory, if not all did: a run that goes on must
    cut its stacks as it did before.
    """

    setting: Setting
    widest: int | None

    def __init__(self, setting: Setting) -> None: ...

    def run(self, parties: Sequence[Party]) -> list[Any]:
        """What each party of a block returns."""

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        """The answers to requests of the hub, in order."""


@dataclass(frozen=True)
class ExecutorKind:
    """An executor under a name; it is made of a `Setting`, anew in every worker process."""

    make: Callable[[Setting], Executor]
    summary: str

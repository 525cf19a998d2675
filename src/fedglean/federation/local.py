"""A carrier without a network: to test methods, and to rehearse a federation."""

import time
from collections.abc import Callable, Iterable, Mapping

from fedglean.federation.branch import Branch
from fedglean.federation.carrier import Node, Undelivered


class LocalCarrier:
    """Calls the branches, which are objects of this process."""

    pause = 0.01

    def __init__(self, branches: Iterable[Branch]) -> None:
        self.branches = dict(enumerate(branches))
        self.waiting: dict[str, bytes] = {}

    def nodes(self) -> Mapping[int, Node]:
        return dict.fromkeys(self.branches, Node("", b""))

    def ask(self, questions: Mapping[int, bytes], seconds: float) -> Mapping[str, int]:
        return self._deliver(questions, lambda branch, letter: branch.declare(letter))

    def order(
        self, orders: Mapping[int, bytes], common: bytes, group: str, seconds: float
    ) -> Mapping[str, int]:
        return self._deliver(orders, lambda branch, letter: branch.answer(letter, common))

    def answers(self, name: str) -> Iterable[bytes | Undelivered]:
        return [self.waiting.pop(name)] if name in self.waiting else []

    def _deliver(
        self, letters: Mapping[int, bytes], ask: Callable[[Branch, bytes], bytes]
    ) -> Mapping[str, int]:
        names = {}
        for node, letter in letters.items():
            name = f"{node}-{time.monotonic_ns()}"
            self.waiting[name] = ask(self.branches[node], letter)
            names[name] = node
        return names

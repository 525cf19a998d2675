"""What carries letters between a hub and its branches: Flower's grid, or calls in this process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Node(NamedTuple):
    """A node that is there.

    One that was started again has a later `started`, and has forgotten what it was sent before.
    """

    started: str
    key: bytes


@dataclass(frozen=True)
class Undelivered:
    """The carrier's word that no answer will come."""

    reason: str


class Carrier(Protocol):
    """`pause` is how many seconds to wait between two looks for answers."""

    pause: float

    def nodes(self) -> Mapping[int, Node]:
        """Who is there. The numbers are the carrier's own and say nothing of branches."""
        ...

    def ask(self, questions: Mapping[int, bytes], seconds: float) -> Mapping[str, int]:
        """Ask nodes who they are; the name of each letter that is on its way, and its node."""
        ...

    def order(
        self, orders: Mapping[int, bytes], common: bytes, group: str, seconds: float
    ) -> Mapping[str, int]:
        """Send each node its order and what all are sent; as `ask`."""
        ...

    def answers(self, name: str) -> Iterable[bytes | Undelivered]:
        """What has come back for a letter of that name, once; normally nothing yet, or one."""
        ...

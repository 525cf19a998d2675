"""The door `placement`: where blocks of clients run; and the hub's side of an exchange."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from fedglean.engine.clients import Clients
from fedglean.exchange.aggregate import MEAN, Aggregate
from fedglean.exchange.exchange import (
    BlockResult,
    Exchange,
    blocks_of,
    check_aggregate,
    check_quorum,
    keep_states,
    lost_in,
    merge,
    reply_to,
    sent_bytes,
)
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Predictions
from fedglean.uploads import Reply

#: A run's `Config`, which this room lies below.
RunConfig = Any
Observer = Callable[[Predictions], None]


class Placement(Protocol):
    """Serves blocks of clients somewhere. It is entered before the first round of a run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        """What the blocks come to, in their order; `states` are what the clients keep."""


@dataclass(frozen=True)
class PlacementKind:
    """A placement under a name, made of the clients and the configuration of a run.

    `check` refuses, before any work, a configuration that the placement cannot serve.
    """

    make: Callable[[Clients, RunConfig], Placement]
    summary: str
    check: Callable[[RunConfig], None] = lambda config: None


@dataclass(frozen=True)
class Here(Placement):
    """The placement `here`: blocks are served in this process, one after the other."""

    clients: Clients

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        for block in blocks:
            yield self.clients.serve(exchange, block, states.states)


@dataclass(frozen=True)
class Exchanger:
    """The hub's side of exchanges: it has blocks of clients served, and adds up what comes back."""

    placement: Placement
    count: int
    block: int = 16
    quorum: float = 0.5
    aggregate: Aggregate = MEAN
    observe: Observer | None = None
    lost: float = 0.0

    def exchange(self, exchange: Exchange, states: ClientStates) -> tuple[Reply, int]:
        """The reply to an ask and the bytes that were sent out."""
        check_aggregate(exchange.ask, self.aggregate)
        results = self.placement.serve(exchange, self.blocks(exchange), states)
        return self.settle(exchange, results, states)

    def blocks(self, exchange: Exchange) -> list[list[int]]:
        """The blocks of clients to serve, without those whose answer would get lost."""
        lost = lost_in(exchange, self.lost) if self.lost else ()
        return blocks_of(exchange.ask, self.count, self.block, lost)

    def settle(
        self, exchange: Exchange, results: Iterator[BlockResult], states: ClientStates
    ) -> tuple[Reply, int]:
        """Add up the results of all blocks, in their order."""
        whole = merge(results, self.aggregate)
        keep_states(states, whole)
        if self.observe is not None:
            for guess in whole.guesses:
                self.observe(guess)
        check_quorum(exchange, whole, self.quorum, self.lost)
        reply = reply_to(exchange, whole, self.aggregate)
        told = sorted(exchange.ask.asked) if self.lost else whole.told
        return reply, sent_bytes(exchange.ask, told)


def exchange_together(
    asked: Sequence[tuple[Exchanger, Exchange, ClientStates]],
) -> list[tuple[Reply, int]]:
    """Exchanges of several seeds on one executor: the first blocks of all are one block to it."""
    blocks = [exchanger.blocks(exchange) for exchanger, exchange, _ in asked]
    results: list[list[BlockResult]] = [[] for _ in asked]
    for row in range(max(map(len, blocks))):
        waiting = []
        parties = []
        for place, (exchanger, exchange, states) in enumerate(asked):
            if row >= len(blocks[place]):
                continue
            assert isinstance(exchanger.placement, Here), "seeds run side by side in one process"
            clients, guesses = exchanger.placement.clients, list[Predictions]()
            own = clients.parties(exchange, blocks[place][row], states.states, guesses)
            waiting.append((place, clients, guesses, len(own)))
            parties += own
        uploads = iter(waiting[0][1].executor.run(parties))
        for place, clients, guesses, count in waiting:
            mine = [next(uploads) for _ in range(count)]
            result = clients.take(asked[place][1], blocks[place][row], mine, guesses)
            results[place].append(result)
    replies = []
    for (exchanger, exchange, states), own_results in zip(asked, results, strict=True):
        replies.append(exchanger.settle(exchange, iter(own_results), states))
    return replies

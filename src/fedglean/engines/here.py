"""The placement `here`: the clients of an exchange are served in this process, block by block."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from fedglean import tree
from fedglean.admit import Envelope, Gate, Refusal
from fedglean.aggregate import Partial, Reply
from fedglean.data.federation import Federation
from fedglean.data.images import Predictions
from fedglean.engines.loop import Loop, Observer, Party
from fedglean.errors import RoundError
from fedglean.method import Ask, Upload
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree

Deliver = Callable[[Envelope], Iterable[Envelope]]


@dataclass
class Kept:
    """The clients' own state by number, and whose changed since the last checkpoint."""

    states: dict[int, Tree] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def put(self, client: int, state: Tree) -> None:
        self.states[client] = state
        self.changed.add(client)


@dataclass(frozen=True)
class Exchange:
    """An ask under way: which one of which round, and the key that its clients' draws follow from."""

    ask: Ask
    round: int
    number: int
    key: int


@dataclass
class Served:
    """What a block of clients came to; `states` are the new ones of clients whose upload was admitted."""

    sums: Partial = field(default_factory=Partial)
    states: dict[int, Tree] = field(default_factory=dict)
    guesses: list[Predictions] = field(default_factory=list)


@dataclass(frozen=True)
class Here:
    """Serves exchanges. `deliver` stands for the way to the hub: tests lose, double and poison uploads there.

    A placement that serves blocks elsewhere overrides `serve_all`, and what it must set up and tidy away for a run.
    """

    federation: Federation
    executor: Loop
    block: int = 16
    quorum: float = 0.5
    stretch: float = 100.0
    observe: Observer | None = None
    deliver: Deliver = lambda envelope: [envelope]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def exchange(self, ask: Ask, round: int, number: int, key: int, kept: Kept) -> tuple[Reply, int]:
        """The reply to an ask and the bytes that were sent out. A new state counts once its upload is admitted."""
        clients = sorted(set(ask.to))
        blocks = [clients[begin : begin + self.block] for begin in range(0, len(clients), self.block)]
        sums = Partial()
        for served in self.serve_all(Exchange(ask, round, number, key), blocks, kept.states):
            sums += served.sums
            self._take_note(served, kept)
        self._check_quorum(round, len(clients), sums)
        sent = sum(
            tree.size_in_bytes(dict(ask.message)) + tree.size_in_bytes(dict(ask.each.get(c, {}))) for c in clients
        )
        return Reply(sums, self._templates(ask)), sent

    def serve_all(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
    ) -> Iterator[Served]:
        """What the blocks came to, in their order."""
        return (self.serve(exchange, block, states) for block in blocks)

    def serve(self, exchange: Exchange, block: Sequence[int], states: Mapping[int, Tree]) -> Served:
        """One block, with a gate of its own. Clients of other blocks answer there: for this gate they have done so."""
        ask, declared = exchange.ask, self.federation.declared
        own = {client: declared[client] for client in block}
        gate = Gate(exchange.round, exchange.number, ask, own, self.stretch)
        gate.seen |= set(ask.to) - set(block)
        served = Served()
        parties = [self._party(exchange, client, states.get(client), served) for client in block]
        for client, upload in zip(block, self.executor.run(parties), strict=True):
            if upload is None:
                served.sums.abstained.append(client)
                continue
            for envelope in self.deliver(Envelope(exchange.round, exchange.number, client, upload)):
                self._admit(gate.admit(envelope), envelope.client, served, ask.collect == "all")
        return served

    def _party(self, exchange: Exchange, client: int, state: Tree, served: Served) -> Party:
        ask, own = exchange.ask, fold_int(exchange.key, client)
        me = self.federation.me(client, state, fold_int(own, "me"))
        message = Record({**ask.message, **ask.each.get(client, {})})
        observe = served.guesses.append if self.observe is not None else None
        return Party(f"round {exchange.round}, client {client}", ask.client(me, message), own, observe)

    def _admit(self, outcome: Upload | Refusal, client: int, served: Served, keep_all: bool) -> None:
        if isinstance(outcome, Refusal):
            served.sums.refused.append(outcome)
            return
        served.sums.include(client, outcome, self.federation.declared[client].total, keep_all)
        if outcome.keep is not None:
            served.states[client] = outcome.keep

    def _take_note(self, served: Served, kept: Kept) -> None:
        for client, state in served.states.items():
            kept.put(client, state)
        for guess in served.guesses:
            assert self.observe is not None
            self.observe(guess)

    def _check_quorum(self, round: int, asked: int, sums: Partial) -> None:
        usable = len(sums.answered) + len(sums.abstained)
        if usable < self.quorum * asked:
            reasons = "; ".join(sorted({refusal.reason for refusal in sums.refused})) or "no answer"
            raise RoundError(
                f"round {round}: only {usable} of {asked} clients sent something usable, "
                f"the quorum is {self.quorum:.0%} ({reasons})"
            )

    def _templates(self, ask: Ask) -> dict[str, Tree]:
        parts = {name: part for own in ask.each.values() for name, part in own.items()} | dict(ask.message)
        sent = {name: tree.trainable(part) for name, part in parts.items() if tree.named(part)}
        return sent | {name: expect.tree for name, expect in ask.expect.items()}

"""The placement `here`: the clients of an exchange are served in this process, block by block."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from fedglean import tree
from fedglean.data.federation import Federation
from fedglean.engine.loop import Loop
from fedglean.engine.task import Observer, Party
from fedglean.errors import RoundError
from fedglean.exchange.aggregate import Partial, Reply
from fedglean.exchange.gate import Admitted, Envelope, Gate, Refusal, needed
from fedglean.inputs.images import Predictions
from fedglean.method import Ask, Upload
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree

Deliver = Callable[[Envelope], Iterable[Envelope]]


@dataclass
class Kept:
    """The clients' own states by number, and which of them changed since the last checkpoint."""

    states: dict[int, Tree] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def put(self, client: int, state: Tree) -> None:
        self.states[client] = state
        self.changed.add(client)


@dataclass(frozen=True)
class Exchange:
    """An ask in progress: its round and number, and the key from which its clients' draws
    follow.
    """

    ask: Ask
    round: int
    number: int
    key: int


@dataclass
class Served:
    """The outcome of a block of clients.

    `states` are the new ones of clients whose upload was admitted, `guesses` pseudo-labels for the
    evaluator.
    """

    sums: Partial = field(default_factory=Partial)
    states: dict[int, Tree] = field(default_factory=dict)
    guesses: list[Predictions] = field(default_factory=list)


def straight(envelope: Envelope) -> Iterable[Envelope]:
    """A way to the hub on which nothing is lost."""
    return [envelope]


@dataclass(frozen=True)
class Here:
    """Serves exchanges in this process. `deliver` is the way to the hub: tests lose, double and
    poison uploads there.

    A placement that serves blocks elsewhere overrides `serve_all`, and what it must set up and
    clean up for a run.
    """

    federation: Federation
    executor: Loop
    block: int = 16
    quorum: float = 0.5
    stretch: float = 100.0
    observe: Observer | None = None
    deliver: Deliver = straight

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def exchange(self, exchange: Exchange, kept: Kept) -> tuple[Reply, int]:
        """The reply to an ask and the bytes that were sent out."""
        ledger = Ledger(self, exchange, kept)
        for served in self.serve_all(exchange, self.blocks(exchange.ask), kept.states):
            ledger.take(served)
        return ledger.reply()

    def blocks(self, ask: Ask) -> list[list[int]]:
        """The clients in the blocks in which they are served, and their uploads summed."""
        clients, count = sorted(ask.asked), len(self.federation.declared)
        if strangers := ask.asked.difference(range(count)):
            raise ValueError(f"clients are 0 to {count - 1}; an Ask cannot go to {min(strangers)}")
        return [clients[begin : begin + self.block] for begin in range(0, len(clients), self.block)]

    def serve_all(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
    ) -> Iterator[Served]:
        """What the blocks came to, in their order."""
        return (self.serve(exchange, block, states) for block in blocks)

    def serve(self, exchange: Exchange, block: Sequence[int], states: Mapping[int, Tree]) -> Served:
        """What one block came to."""
        visit = Visit(self, exchange, block, states)
        return visit.take(self.executor.run(visit.parties))


class Visit:
    """A block of clients in an exchange: their parties, and a gate of its own."""

    def __init__(
        self, place: Here, exchange: Exchange, block: Sequence[int], states: Mapping[int, Tree]
    ) -> None:
        self.place, self.exchange, self.block = place, exchange, block
        self.served = Served(Partial(told=list(block)))
        own = {client: place.federation.declared[client] for client in block}
        self.gate = Gate(exchange.round, exchange.number, exchange.ask, own, place.stretch)
        self.states = states

    @cached_property
    def parties(self) -> list[Party]:
        return [self._party(client, self.states.get(client)) for client in self.block]

    def _party(self, client: int, state: Tree) -> Party:
        ask, own = self.exchange.ask, fold_int(self.exchange.key, client)
        me = self.place.federation.me(client, state, fold_int(own, "me"))
        message = Record({**ask.message, **ask.each.get(client, {})})
        observe = self.served.guesses.append if self.place.observe is not None else None
        return Party(
            f"round {self.exchange.round}, client {client}", ask.client(me, message), own, observe
        )

    def take(self, uploads: Sequence[Upload | None]) -> Served:
        """Let through the gate what the parties returned."""
        round, number = self.exchange.round, self.exchange.number
        for client, upload in zip(self.block, uploads, strict=True):
            if upload is None:
                self.served.sums.abstained.append(client)
                continue
            for envelope in self.place.deliver(Envelope(round, number, client, upload)):
                self._admit(self.gate.admit(envelope), envelope.client)
        return self.served

    def _admit(self, outcome: Admitted | Refusal, client: int) -> None:
        if isinstance(outcome, Refusal):
            self.served.sums.refused.append(outcome)
            return
        total, keep_all = (
            self.place.federation.declared[client].total,
            self.exchange.ask.collect == "all",
        )
        self.served.sums.include(client, outcome, total, keep_all)
        if outcome.upload.keep is not None:
            self.served.states[client] = outcome.upload.keep


class Ledger:
    """The hub's side of an exchange: adds up what comes back, block by block."""

    def __init__(self, place: Here, exchange: Exchange, kept: Kept) -> None:
        self.place, self.exchange, self.kept, self.sums = place, exchange, kept, Partial()

    def take(self, served: Served) -> None:
        """Note what a block came to. A client's new state counts from here on: its upload was
        admitted.
        """
        self.sums += served.sums
        for client, state in served.states.items():
            self.kept.put(client, state)
        for guess in served.guesses:
            assert self.place.observe is not None
            self.place.observe(guess)

    def reply(self) -> tuple[Reply, int]:
        ask, told = self.exchange.ask, self.sums.told
        self._check_quorum(len(ask.asked))
        each = sum(tree.size_in_bytes(dict(ask.each.get(client, {}))) for client in told)
        return Reply(self.sums, _templates(ask)), len(told) * tree.size_in_bytes(
            dict(ask.message)
        ) + each

    def _check_quorum(self, asked: int) -> None:
        usable = len(self.sums.answered) + len(self.sums.abstained)
        if usable < needed(self.place.quorum, asked):
            raise RoundError(
                f"round {self.exchange.round}: only {usable} of {asked} clients sent something "
                "usable, "
                f"but the quorum is {100 * self.place.quorum:.0f} % ({self._reasons()})"
            )

    def _reasons(self) -> str:
        """The first three, and what is most likely where many models moved too far."""
        reasons = sorted({refusal.reason for refusal in self.sums.refused}) or ["no answer"]
        told = reasons[:3] + ([f"and {len(reasons) - 3} more"] if len(reasons) > 3 else [])
        diverged = (
            sum("moved by" in reason or "not finite" in reason for reason in reasons)
            > len(reasons) / 2
        )
        return "; ".join(told) + (
            "; training may have diverged: try a smaller learning rate" if diverged else ""
        )


def exchange_together(asked: Sequence[tuple[Here, Exchange, Kept]]) -> list[tuple[Reply, int]]:
    """Exchanges of several runs on one executor: the first blocks of all are one block to it, and
    so on.
    """
    ledgers = [Ledger(*each) for each in asked]
    blocks = [place.blocks(exchange.ask) for place, exchange, _ in asked]
    for row in range(max(map(len, blocks))):
        visits = {
            ledger: Visit(ledger.place, ledger.exchange, own[row], ledger.kept.states)
            for ledger, own in zip(ledgers, blocks, strict=True)
            if row < len(own)
        }
        uploads = iter(
            asked[0][0].executor.run(
                [party for visit in visits.values() for party in visit.parties]
            )
        )
        for ledger, visit in visits.items():
            ledger.take(visit.take([next(uploads) for _ in visit.parties]))
    return [ledger.reply() for ledger in ledgers]


def _templates(ask: Ask) -> dict[str, Tree]:
    """What a sum has the shape of, by name: what was sent, or is expected."""
    parts = {name: part for own in ask.each.values() for name, part in own.items()} | dict(
        ask.message
    )
    sent = {name: tree.trainable(part) for name, part in parts.items() if tree.named(part)}
    return sent | {name: expect.tree for name, expect in ask.expect.items()}

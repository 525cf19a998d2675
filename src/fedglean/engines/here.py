"""The placement `here`: the clients of an exchange are served in this process, block by block."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedglean import tree
from fedglean.admit import Envelope, Gate, Refusal
from fedglean.aggregate import Partial, Reply
from fedglean.data.federation import Federation
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
class Here:
    """Serves exchanges. `deliver` stands for the way to the hub: tests lose, double and poison uploads there."""

    federation: Federation
    executor: Loop
    block: int = 16
    quorum: float = 0.5
    stretch: float = 100.0
    observe: Observer | None = None
    deliver: Deliver = lambda envelope: [envelope]

    def exchange(self, ask: Ask, round: int, number: int, key: int, kept: Kept) -> tuple[Reply, int]:
        """The reply to an ask and the bytes that were sent out. A new state counts once its upload is admitted."""
        clients = sorted(set(ask.to))
        declared = self.federation.declared
        gate = Gate(round, number, ask, {client: declared[client] for client in clients}, self.stretch)
        sums = Partial()
        for begin in range(0, len(clients), self.block):
            block = clients[begin : begin + self.block]
            sums += self._serve(ask, block, gate, key, kept)
        self._check_quorum(round, len(clients), sums)
        sent = sum(
            tree.size_in_bytes(dict(ask.message)) + tree.size_in_bytes(dict(ask.each.get(c, {}))) for c in clients
        )
        return Reply(sums, self._templates(ask)), sent

    def _serve(self, ask: Ask, block: Sequence[int], gate: Gate, key: int, kept: Kept) -> Partial:
        parties = []
        for client in block:
            own = fold_int(key, client)
            me = self.federation.me(client, kept.states.get(client), fold_int(own, "me"))
            message = Record({**ask.message, **ask.each.get(client, {})})
            parties.append(Party(f"round {gate.round}, client {client}", ask.client(me, message), own, self.observe))
        sums = Partial()
        for client, upload in zip(block, self.executor.run(parties), strict=True):
            if upload is None:
                sums.abstained.append(client)
                continue
            for envelope in self.deliver(Envelope(gate.round, gate.number, client, upload)):
                self._admit(gate.admit(envelope), envelope.client, sums, kept, ask.collect == "all")
        return sums

    def _admit(self, outcome: Upload | Refusal, client: int, sums: Partial, kept: Kept, keep_all: bool) -> None:
        if isinstance(outcome, Refusal):
            sums.refused.append(outcome)
            return
        sums.include(client, outcome, self.federation.declared[client].total, keep_all)
        if outcome.keep is not None:
            kept.put(client, outcome.keep)

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

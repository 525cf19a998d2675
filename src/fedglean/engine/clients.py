"""The clients of a simulation: an executor runs a block of them, and takes their uploads in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedglean.data.federation import Federation
from fedglean.engine.executor import Executor
from fedglean.engine.task import Party
from fedglean.exchange.aggregate import MEAN, Aggregate
from fedglean.exchange.exchange import BlockResult, Exchange, Intake
from fedglean.exchange.gate import Envelope
from fedglean.inputs.images import Predictions
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree
from fedglean.uploads import Upload

#: The way of an upload to the hub; tests lose, double and poison uploads there.
Deliver = Callable[[Envelope], Iterable[Envelope]]


def deliver_straight(envelope: Envelope) -> Iterable[Envelope]:
    """A way to the hub on which nothing is lost."""
    return [envelope]


@dataclass(frozen=True)
class Clients:
    """What the clients hold, and who serves them; `observed` pseudo-labels are noted."""

    federation: Federation
    executor: Executor
    stretch: float = 100.0
    aggregate: Aggregate = MEAN
    observed: bool = True
    deliver: Deliver = deliver_straight

    def serve(
        self, exchange: Exchange, block: Sequence[int], states: Mapping[int, Tree]
    ) -> BlockResult:
        """What one block comes to."""
        guesses: list[Predictions] = []
        uploads = self.executor.run(self.parties(exchange, block, states, guesses))
        return self.take(exchange, block, uploads, guesses)

    def parties(
        self,
        exchange: Exchange,
        block: Sequence[int],
        states: Mapping[int, Tree],
        guesses: list[Predictions],
    ) -> list[Party]:
        """The clients of a block, ready to run; their pseudo-labels go into `guesses`."""
        observe = guesses.append if self.observed else None
        parties = []
        for client in block:
            key = fold_int(exchange.key, client)
            me = self.federation.me(client, states.get(client), fold_int(key, "me"))
            message = Record({**exchange.ask.message, **exchange.ask.each.get(client, {})})
            name = f"round {exchange.round}, client {client}"
            parties.append(Party(name, exchange.ask.client(me, message), key, observe))
        return parties

    def take(
        self,
        exchange: Exchange,
        block: Sequence[int],
        uploads: Sequence[Upload | None],
        guesses: list[Predictions],
    ) -> BlockResult:
        """Let through the gate what the parties of a block returned."""
        declared = self.federation.declared
        intake = Intake(exchange, block, declared, self.aggregate, self.stretch)
        for client, upload in zip(block, uploads, strict=True):
            if upload is None:
                intake.abstain(client)
                continue
            sent = Envelope(exchange.round, exchange.number, client, upload)
            for arrived in self.deliver(sent):
                intake.take(arrived)
        intake.result.guesses = guesses
        return intake.result

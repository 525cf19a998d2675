"""The placement of a real federation: every client is a branch on a machine of its own.

What comes back passes the gate and is summed as in a simulation: by blocks of client numbers, in
their order. The clients' states stay at the branches; of them the hub knows a version.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fedglean import tree
from fedglean.engine.here import Exchange, Here, Kept, Served, Visit
from fedglean.errors import ConfigError
from fedglean.exchange.aggregate import Reply
from fedglean.exchange.gate import Envelope, Refusal
from fedglean.federation.carrier import Undelivered
from fedglean.federation.letters import (
    SMALL,
    Answer,
    Broadcast,
    Malformed,
    Order,
    read_answer,
    write,
)
from fedglean.federation.mailbox import Mailbox
from fedglean.federation.plan import RunPlan, function_name
from fedglean.federation.states import version_of
from fedglean.method import Ask, Method, Upload
from fedglean.randomness import fold_int
from fedglean.tree import Tree

Counts = Callable[[int, int], None]


@dataclass(frozen=True)
class Received:
    """What a branch's answers received to: uploads on their way to the gate, reasons why there are
    none.
    """

    envelopes: list[Envelope] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    abstained: bool = False


@dataclass(frozen=True)
class Branches(Here):
    """`here`, but clients are asked by letters. `count` hears how many pseudo-labels were
    made and trusted.

    `asked` are the clients that were to train, until whoever tells of a round clears it.
    """

    mailbox: Mailbox = field(kw_only=True)
    method: Method = field(kw_only=True)
    plan: RunPlan = field(kw_only=True)
    run: str = field(kw_only=True)
    count: Counts = field(kw_only=True, default=lambda seen, trusted: None)
    settled: dict[int, Tree] = field(init=False, default_factory=dict, repr=False, compare=False)
    asked: set[int] = field(init=False, default_factory=set, repr=False, compare=False)

    def exchange(self, exchange: Exchange, kept: Kept) -> tuple[Reply, int]:
        """A version that is checkpointed is the one that a killed hub would go back to."""
        if exchange.ask.purpose == "train" and not self.federation.declared:
            raise ConfigError("the method trains at branches, and there are none; give --branches")
        self.settled.update({c: state for c, state in kept.states.items() if c not in kept.changed})
        self.asked.update(exchange.ask.to if exchange.ask.purpose == "train" else ())
        return super().exchange(exchange, kept)

    def serve_all(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
    ) -> Iterator[Served]:
        ask, round = exchange.ask, exchange.round
        orders = {
            client: self._order(exchange, client, states) for block in blocks for client in block
        }
        common = write(Broadcast(round), dict(ask.message))
        letters = self.mailbox.exchange(orders, common, self.quorum, f"{round}-{exchange.number}")
        limit = _limit(ask)
        for block in blocks:
            received = {
                client: self._opened(letters.get(client), exchange, client, limit)
                for client in block
            }
            served = self._through_the_gate(exchange, block, received)
            served.sums.told = [client for client in block if client in letters]
            yield served

    def _order(self, exchange: Exchange, client: int, states: Mapping[int, Tree]) -> bytes:
        ask, declared = exchange.ask, self.federation.declared[client]
        order = Order(
            run=self.run,
            round=exchange.round,
            ask=exchange.number,
            client=client,
            key=fold_int(exchange.key, client),
            function=function_name(ask.client, self.method),
            labelled=declared.labelled,
            unlabelled=declared.unlabelled,
            plan=self.plan,
            version=_version(states.get(client)),
            settled=_version(self.settled.get(client)),
        )
        return write(order, dict(ask.each.get(client, {})))

    def _opened(
        self,
        bodies: Sequence[bytes | Undelivered] | None,
        exchange: Exchange,
        client: int,
        limit: int,
    ) -> Received:
        if not bodies:
            why = "not there when it was asked" if bodies is None else "no answer in time"
            return Received(reasons=[why])
        received, abstained = Received(), False
        for body in bodies:
            try:
                if isinstance(body, Undelivered):
                    raise Malformed(body.reason)
                answer, upload = read_answer(body, limit)
                _check(answer, exchange, client)
            except Malformed as error:
                received.reasons.append(str(error))
                continue
            self.count(answer.seen, answer.trusted)
            if upload is None:
                abstained = True
            else:
                device = self.federation.hub.index.device
                received.envelopes.append(
                    Envelope(answer.round, answer.ask, answer.client, _to_device(upload, device))
                )
        return replace(received, abstained=abstained)

    def _through_the_gate(
        self, exchange: Exchange, block: Sequence[int], received: Mapping[int, Received]
    ) -> Served:
        """`Visit` does as it does for clients of this process; only that their uploads are here
        already.
        """

        def deliver(arrived: Envelope) -> Iterable[Envelope]:
            return [after for before in arrived.upload for after in self.deliver(before)]

        visit = Visit(replace(self, deliver=deliver), exchange, block, {})
        uploads = [
            None if received[client].abstained else received[client].envelopes for client in block
        ]
        served = visit.take(uploads)  # type: ignore[arg-type]
        for client in block:
            served.sums.refused += [
                Refusal(exchange.round, exchange.number, client, why)
                for why in received[client].reasons
            ]
        return served


def _check(answer: Answer, exchange: Exchange, client: int) -> None:
    """What the gate cannot know: who really sent this, and what it says beside the upload."""
    if answer.error:
        raise Malformed(answer.error[:300])
    if answer.client != client:
        raise Malformed(f"branch {client} answers as client {answer.client}")
    if (answer.round, answer.ask) != (exchange.round, exchange.number) and not answer.uploads:
        raise Malformed(f"stale: it answers round {answer.round}, exchange {answer.ask}")
    if answer.version not in ("", version_of(answer.round, answer.ask)):
        raise Malformed("it keeps a state under the name of another exchange")
    if not 0 <= answer.trusted <= answer.seen:
        raise Malformed("it trusts more pseudo-labels than it made")


def _to_device(upload: Upload, device: torch.device) -> Upload:
    """To where the hub computes."""
    weights = {name: tree.to_device(upload.weight(name), device) for name in upload.trees}
    return Upload(
        weight=weights,
        keep=upload.keep,
        report=upload.report,
        **tree.to_device(upload.trees, device),
    )


def _limit(ask: Ask) -> int:
    """Bytes of an honest answer: every name once, and a weight of its shape; and the paths of the
    leaves.
    """
    each = max((tree.size_in_bytes(dict(own)) for own in ask.each.values()), default=0)
    expected = sum(tree.size_in_bytes(expect.tree) for expect in ask.expect.values())
    return SMALL + 3 * (tree.size_in_bytes(dict(ask.message)) + each + expected)


def _version(state: Tree) -> str:
    return str(state["version"]) if state is not None else ""

"""The placement of a real federation: every client is a branch on a machine of its own.

What comes back passes the gate and is summed as in a simulation: by blocks of client numbers, in
their order. The clients' states stay at the branches; of them the hub knows a version.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from fedglean import tree
from fedglean.data.federation import Federation
from fedglean.engine.clients import Deliver, deliver_straight
from fedglean.errors import ConfigError
from fedglean.exchange.aggregate import MEAN, Aggregate
from fedglean.exchange.exchange import BlockResult, Exchange, Intake
from fedglean.exchange.gate import Envelope
from fedglean.exchange.states import ClientStates
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
from fedglean.method import Ask, Method
from fedglean.randomness import fold_int
from fedglean.runs.config import GateConfig
from fedglean.tree import Tree
from fedglean.uploads import Refusal, Upload

Counts = Callable[[int, int], None]


@dataclass(frozen=True)
class Received:
    """What a branch's answers received to: uploads on their way to the gate, reasons why there are
    none.
    """

    envelopes: list[Envelope] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    abstained: bool = False


class Branches:
    """Asks clients by letters. `count` hears how many pseudo-labels were made and trusted.

    `asked` are the clients that were to train, until whoever tells of a round clears it.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        federation: Federation,
        gate: GateConfig,
        *,
        method: Method,
        plan: RunPlan,
        run: str,
        aggregate: Aggregate = MEAN,
        count: Counts = lambda seen, trusted: None,
        deliver: Deliver = deliver_straight,
    ) -> None:
        self.mailbox, self.federation, self.gate = mailbox, federation, gate
        self.method, self.plan, self.run = method, plan, run
        self.aggregate, self.count, self.deliver = aggregate, count, deliver
        self.settled: dict[int, Tree] = {}
        self.asked: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        ask, round = exchange.ask, exchange.round
        if ask.purpose == "train":
            if not self.federation.declared:
                raise ConfigError(
                    "the method trains at branches, and there are none; give --branches"
                )
            self.asked.update(ask.to)
        # A version that is checkpointed is the one that a killed hub would go back to.
        for client, state in states.states.items():
            if client not in states.changed:
                self.settled[client] = state
        orders = {}
        for block in blocks:
            for client in block:
                orders[client] = self._order(exchange, client, states.states)
        common = write(Broadcast(round), dict(ask.message))
        letters = self.mailbox.exchange(
            orders, common, self.gate.quorum, f"{round}-{exchange.number}"
        )
        for block in blocks:
            yield self._take(exchange, block, letters)

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
                moved = _to_device(upload, self.federation.hub.index.device)
                envelope = Envelope(answer.round, answer.ask, answer.client, moved)
                received.envelopes.append(envelope)
        return replace(received, abstained=abstained)

    def _take(
        self,
        exchange: Exchange,
        block: Sequence[int],
        letters: Mapping[int, Sequence[bytes | Undelivered]],
    ) -> BlockResult:
        """What the letters of a block come to, once they are through the gate."""
        limit, declared = _limit(exchange.ask), self.federation.declared
        intake = Intake(exchange, block, declared, self.aggregate, self.gate.stretch)
        unreadable = []
        for client in block:
            received = self._opened(letters.get(client), exchange, client, limit)
            for reason in received.reasons:
                unreadable.append(Refusal(exchange.round, exchange.number, client, reason))
            if received.abstained:
                intake.abstain(client)
                continue
            for envelope in received.envelopes:
                for arrived in self.deliver(envelope):
                    intake.take(arrived)
        intake.result.refused += unreadable
        intake.result.told = [client for client in block if client in letters]
        return intake.result


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

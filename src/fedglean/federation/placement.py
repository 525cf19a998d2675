"""The placement of a real federation: every client is a branch on a machine of its own.

What comes back passes the gate and is summed as in a simulation: by blocks of client numbers, in
their order. The clients' states stay at the branches; of them the hub knows a version.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fedglean import tree
from fedglean.data.federation import Federation
from fedglean.engine.clients import Deliver, deliver_straight
from fedglean.engine.placement import Placement
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
from fedglean.federation.mailbox import Answers, Mailbox
from fedglean.federation.plan import RunPlan, function_name
from fedglean.federation.states import version_of
from fedglean.method import Ask, Method
from fedglean.randomness import fold_int
from fedglean.runs.config import GateConfig
from fedglean.tree import Tree
from fedglean.uploads import Refusal, Upload


@dataclass
class Branches(Placement):
    """Asks clients by letters.

    `count` hears how many pseudo-labels were made and trusted, `on_train` which clients are to
    train.
    """

    mailbox: Mailbox
    federation: Federation
    gate: GateConfig
    method: Method
    plan: RunPlan
    run: str
    aggregate: Aggregate = MEAN
    count: Callable[[int, int], None] = lambda seen, trusted: None
    on_train: Callable[[Iterable[int]], None] = lambda clients: None
    deliver: Deliver = deliver_straight
    settled: dict[int, Tree] = field(init=False, default_factory=dict)

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        answers = self._ask(exchange, states)
        declared, limit = self.federation.declared, _largest_answer(exchange.ask)
        for block in blocks:
            intake = Intake(exchange, block, declared, self.aggregate, self.gate.stretch)
            unreadable: list[Refusal] = []
            for client in block:
                for reason in self._take(intake, exchange, client, answers.get(client), limit):
                    unreadable.append(Refusal(exchange.round, exchange.number, client, reason))
            intake.result.refused += unreadable
            intake.result.told = [client for client in block if client in answers]
            yield intake.result

    def _ask(self, exchange: Exchange, states: ClientStates) -> Answers:
        """Send out all orders at once, whatever the blocks."""
        ask, round = exchange.ask, exchange.round
        if ask.purpose == "train":
            if not self.federation.declared:
                raise ConfigError("the method trains at branches, but --branches says 0")
            self.on_train(ask.to)
        # A version that is checkpointed is the one that a killed hub would go back to.
        for client, state in states.states.items():
            if client not in states.changed:
                self.settled[client] = state
        orders = {}
        for client in sorted(ask.asked):
            order = self._order(exchange, client, states.states.get(client))
            orders[client] = write(order, dict(ask.each.get(client, {})))
        common = write(Broadcast(round), dict(ask.message))
        group = f"{round}-{exchange.number}"
        return self.mailbox.exchange(orders, common, self.gate.quorum, group)

    def _order(self, exchange: Exchange, client: int, state: Tree) -> Order:
        declared = self.federation.declared[client]
        return Order(
            run=self.run,
            round=exchange.round,
            ask=exchange.number,
            client=client,
            key=fold_int(exchange.key, client),
            function=function_name(exchange.ask.client, self.method),
            labelled=declared.labelled,
            unlabelled=declared.unlabelled,
            plan=self.plan,
            version=_version(state),
            settled=_version(self.settled.get(client)),
        )

    def _take(
        self,
        intake: Intake,
        exchange: Exchange,
        client: int,
        bodies: Sequence[bytes | Undelivered] | None,
        limit: int,
    ) -> list[str]:
        """Let through the gate what a branch sent; why what it sent, if anything, is unreadable."""
        if not bodies:
            return ["not there when it was asked" if bodies is None else "no answer in time"]
        reasons, uploads, has_abstained = [], [], False
        for body in bodies:
            try:
                answer, upload = _read(body, exchange, client, limit)
            except Malformed as error:
                reasons.append(str(error))
                continue
            self.count(answer.seen, answer.trusted)
            if upload is None:
                has_abstained = True
            else:
                own = _to_device(upload, self.federation.hub.index.device)
                uploads.append(Envelope(answer.round, answer.ask, answer.client, own))
        if has_abstained:
            intake.abstain(client)
            return reasons
        for envelope in uploads:
            for arrived in self.deliver(envelope):
                intake.take(arrived)
        return reasons


def _read(
    body: bytes | Undelivered, exchange: Exchange, client: int, limit: int
) -> tuple[Answer, Upload | None]:
    """An answer, checked for what the gate cannot know: who sent it, and what it says beside."""
    if isinstance(body, Undelivered):
        raise Malformed(body.reason)
    answer, upload = read_answer(body, limit)
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
    return answer, upload


def _to_device(upload: Upload, device: torch.device) -> Upload:
    """To where the hub computes."""
    weights = {name: tree.to_device(upload.weight(name), device) for name in upload.trees}
    trees = tree.to_device(upload.trees, device)
    return Upload.of(trees, weight=weights, keep=upload.keep, report=upload.report)


def _largest_answer(ask: Ask) -> int:
    """Bytes of an honest one: every name once, and a weight of its shape; and the leaves' paths."""
    each = max((tree.size_in_bytes(dict(own)) for own in ask.each.values()), default=0)
    expected = sum(tree.size_in_bytes(expect.tree) for expect in ask.expect.values())
    return SMALL + 3 * (tree.size_in_bytes(dict(ask.message)) + each + expected)


def _version(state: Tree) -> str:
    return str(state["version"]) if state is not None else ""

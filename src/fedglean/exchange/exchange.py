"""An exchange: uploads come in through the gate and are combined, block by block."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError, RoundError
from fedglean.exchange.aggregate import Aggregate, Weighted
from fedglean.exchange.gate import Admitted, Envelope, Gate, needed
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Predictions
from fedglean.method import Ask, Declared
from fedglean.randomness import fold, fold_int, uniform
from fedglean.tree import Tree
from fedglean.uploads import Refusal, Reply, Reports, Upload, add_reports


@dataclass(frozen=True)
class Exchange:
    """An ask in progress: its round and number, and the key that its clients' draws follow from."""

    ask: Ask
    round: int
    number: int
    key: int


@dataclass
class BlockResult:
    """What a block of clients came to.

    `kept` is what the aggregate keeps of their uploads, `states` are the new ones of clients whose
    upload was admitted, `guesses` pseudo-labels for the evaluator, `told` who got the message.
    """

    kept: Tree
    told: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    abstained: list[int] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    uploads: dict[int, Upload] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)
    received: int = 0
    states: dict[int, Tree] = field(default_factory=dict)
    guesses: list[Predictions] = field(default_factory=list)


class Intake:
    """Lets the uploads of one block through a gate of its own, and combines them."""

    def __init__(
        self,
        exchange: Exchange,
        block: Sequence[int],
        declared: Sequence[Declared],
        aggregate: Aggregate,
        stretch: float,
    ) -> None:
        self.ask, self.aggregate = exchange.ask, aggregate
        self.declared = {client: declared[client] for client in block}
        self.gate = Gate(exchange.round, exchange.number, exchange.ask, self.declared, stretch)
        self.result = BlockResult(aggregate.start(), told=list(block))

    def take(self, envelope: Envelope) -> None:
        """Admit an upload, or note why not."""
        outcome = self.gate.admit(envelope)
        if isinstance(outcome, Refusal):
            self.result.refused.append(outcome)
        else:
            self.add(envelope.client, outcome)

    def abstain(self, client: int) -> None:
        """Note that a client has nothing to send."""
        self.result.abstained.append(client)

    def add(self, client: int, admitted: Admitted) -> None:
        """Combine an upload that passed the gate."""
        result, upload = self.result, admitted.upload
        result.answered.append(client)
        weights: dict[str, float | Tensor] = {}
        for name, form in admitted.forms.items():
            result.received += form.bytes
            weight = upload.weight(name)
            if isinstance(weight, int | float):
                weights[name] = float(weight)
            else:
                weights[name] = form.row_of(weight).double()
                result.received += form.bytes  # the weights travel too
        weighted = Weighted(client, admitted.rows, weights)
        result.kept = self.aggregate.add(result.kept, weighted)
        # Averaged by the number of images behind them.
        images = self.declared[client].total
        reports: Reports = {}
        for name, value in upload.report.items():
            reports[name] = (images * float(value), images)
        add_reports(result.reports, reports)
        if self.ask.collect == "all":
            result.uploads[client] = admitted.as_asked()
        if upload.keep is not None:
            result.states[client] = upload.keep


def merge(results: Iterable[BlockResult], aggregate: Aggregate) -> BlockResult:
    """The results of all blocks as one; they must come in the blocks' order."""
    whole = BlockResult(aggregate.start())
    for result in results:
        whole.kept = aggregate.merge(whole.kept, result.kept)
        whole.told += result.told
        whole.answered += result.answered
        whole.abstained += result.abstained
        whole.refused += result.refused
        whole.uploads |= result.uploads
        whole.received += result.received
        whole.states |= result.states
        whole.guesses += result.guesses
        add_reports(whole.reports, result.reports)
    return whole


def blocks_of(ask: Ask, clients: int, size: int, lost: Sequence[int] = ()) -> list[list[int]]:
    """The asked clients in the blocks in which they are served, and their uploads combined."""
    if strangers := ask.asked.difference(range(clients)):
        raise ValueError(f"clients are 0 to {clients - 1}; an Ask cannot go to {min(strangers)}")
    asked = sorted(ask.asked.difference(lost))
    return [asked[begin : begin + size] for begin in range(0, len(asked), size)]


def lost_in(exchange: Exchange, share: float) -> list[int]:
    """The clients of an exchange whose answer gets lost: about this share of those asked."""
    asked = sorted(exchange.ask.asked)
    keys = fold(fold_int(exchange.key, "lost"), torch.tensor(asked, dtype=torch.int64))
    is_lost = (uniform(keys) < share).tolist()
    return [client for client, lost in zip(asked, is_lost, strict=True) if lost]


def reply_to(exchange: Exchange, whole: BlockResult, aggregate: Aggregate) -> Reply:
    """What the hub is answered."""
    return Reply(
        aggregate.combine(whole.kept),
        _templates(exchange.ask),
        answered=whole.answered,
        abstained=whole.abstained,
        refused=whole.refused,
        uploads=whole.uploads,
        reports=whole.reports,
        received=whole.received,
    )


def keep_states(states: ClientStates, whole: BlockResult) -> None:
    """Let the new states of clients count from here on: their uploads were admitted."""
    for client, state in whole.states.items():
        states.put(client, state)


def sent_bytes(ask: Ask, told: Sequence[int]) -> int:
    """What was sent out to these clients."""
    total = len(told) * tree.size_in_bytes(dict(ask.message))
    for client in told:
        total += tree.size_in_bytes(dict(ask.each.get(client, {})))
    return total


def check_aggregate(ask: Ask, aggregate: Aggregate) -> None:
    """Refuse an aggregate that cannot give what the method asks for."""
    if ask.collect not in aggregate.serves:
        raise ConfigError(
            f"the method needs the uploads one by one (collect = '{ask.collect}'), which the "
            f"aggregate {type(aggregate).__name__} does not give; use the mean"
        )


def check_quorum(exchange: Exchange, whole: BlockResult, quorum: float, lost: float = 0.0) -> None:
    """End the run where too few clients sent something usable; `lost` is what chance takes."""
    asked, usable = len(exchange.ask.asked), len(whole.answered) + len(whole.abstained)
    if usable < needed(quorum, asked):
        advice = ""
        if lost:
            advice = f"; as {100 * lost:.0f} % of the answers get lost, take a lower quorum"
        raise RoundError(
            f"round {exchange.round}: only {usable} of {asked} clients sent something usable, "
            f"but the quorum is {100 * quorum:.0f} % ({_reasons(whole.refused)}){advice}"
        )


def _reasons(refused: Sequence[Refusal]) -> str:
    """The first three, and what is most likely where many models moved too far."""
    reasons = sorted({refusal.reason for refusal in refused}) or ["no answer"]
    shown = reasons[:3]
    if len(reasons) > 3:
        shown.append(f"and {len(reasons) - 3} more")
    diverged = [reason for reason in reasons if "moved by" in reason or "not finite" in reason]
    advice = ""
    if len(diverged) > len(reasons) / 2:
        advice = "; training may have diverged: try a smaller learning rate"
    return "; ".join(shown) + advice


def _templates(ask: Ask) -> dict[str, Tree]:
    """What a sum has the shape of, by name: what was sent, or is expected."""
    parts: dict[str, Tree] = {}
    for own in (*ask.each.values(), ask.message):
        parts |= own
    templates = {name: tree.trainable(part) for name, part in parts.items() if tree.named(part)}
    for name, expect in ask.expect.items():
        templates[name] = expect.tree
    return templates

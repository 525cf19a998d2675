"""Executors and placements that note what a method does, and show what others forgive."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedglean import tree
from fedglean.engine.batches import Setting, batches
from fedglean.engine.clients import Clients, Deliver
from fedglean.engine.loop import Loop
from fedglean.engine.placement import Here, Placement
from fedglean.engine.task import Call, Party
from fedglean.exchange.exchange import BlockResult, Exchange
from fedglean.exchange.gate import Envelope
from fedglean.exchange.states import ClientStates
from fedglean.method import Batch, Train, Trained, Upload
from fedglean.randomness import fold_int
from fedglean.runs.experiment import Experiment
from fedglean.testing.difference import difference
from fedglean.testing.play import through_bytes
from fedglean.tree import Tree

#: More steps than a test takes: none is recorded.
NEVER = 10**9


def variant(
    experiment: Experiment,
    executor: type[Loop] = Loop,
    placement: Callable[[Clients], Placement] = Here,
    record_after: int = NEVER,
    deliver: Deliver | None = None,
    **changes: Any,
) -> Experiment:
    """The experiment under another executor or placement; changes are those of the exchanger."""
    old = experiment.executor
    new = executor(replace(old.setting, record_after=record_after))
    observed = changes.get("observe", experiment.exchanger.observe) is not None
    stretch = experiment.config.gate.stretch
    clients = Clients(experiment.federation, new, stretch, observed=observed)
    if deliver is not None:
        clients = replace(clients, deliver=deliver)
    exchanger = replace(experiment.exchanger, placement=placement(clients), **changes)
    return replace(experiment, executor=new, exchanger=exchanger)


def with_delivery(experiment: Experiment, deliver: Deliver) -> Experiment:
    """The experiment, served here, whose uploads reach the hub by this way."""
    placement = experiment.placement
    assert isinstance(placement, Here)
    clients = replace(placement.clients, deliver=deliver)
    exchanger = replace(experiment.exchanger, placement=Here(clients))
    return replace(experiment, exchanger=exchanger)


class RequestLog(Loop):
    """`loop` that notes all requests, and the trainings that clients ask for."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.requests: list[Any] = []
        self.trainings: list[Train] = []

    def run(self, parties: Sequence[Party]) -> list[Any]:
        begin = len(self.requests)
        results = super().run(parties)
        self.trainings += [each for each in self.requests[begin:] if isinstance(each, Train)]
        return results

    def answer(self, calls: Sequence[Call]) -> list[Any]:
        for call in calls:
            self.requests += [part.request for part in call.parts()]
        return super().answer(calls)


class Backwards(Loop):
    """`loop` that serves the clients of a block from the last to the first."""

    def run(self, parties: Sequence[Party]) -> list[Any]:
        return super().run(parties[::-1])[::-1]


class TwoLanes(Loop):
    """`loop` whose every training step is lifted over two lanes.

    The first lane is the client; the second differs from it in every number: its models, memory and
    frozen parts are scaled, and it draws other batches. The client's result must not notice.
    """

    def _train(self, request: Train, key: int) -> Trained:
        step = vmap(request.stepper())
        models = _two_lanes(tree.trainable(request.models))
        memory, frozen = _two_lanes(request.start_memory()), _two_lanes(dict(request.frozen))
        mine = batches(request, key, self.setting)
        others = batches(request, fold_int(key, "lane"), self.setting)
        totals: dict[str, Tensor] = {}
        for batch, other in zip(mine, others, strict=True):
            both: Batch = tree.map(_side_by_side, batch, other)
            models, memory, metrics = step(models, memory, both, frozen)
            for name, value in metrics.items():
                totals[name] = value[0].double() + totals.get(name, 0.0)
        means = {name: float(total) / request.length for name, total in totals.items()}
        return Trained(_first_lane(models), _first_lane(memory), request.length, means)


def _two_lanes(lane: Tree) -> Tree:
    return tree.map(_side_by_side, lane, lane)


def _side_by_side(leaf: Tensor, other: Tensor) -> Tensor:
    return torch.stack([leaf, other * 1.01 if other.is_floating_point() else other])


def _first_lane(lanes: Tree) -> Tree:
    return tree.map(lambda leaf: leaf[0].clone(), lanes)


class UploadLog(Placement):
    """`here` that notes the uploads, and sees that nothing lent to a client is written into."""

    def __init__(self, clients: Clients) -> None:
        self.uploads: list[Envelope] = []
        self.here = Here(replace(clients, deliver=self._note))

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        ask, round = exchange.ask, exchange.round
        kept = {str(client): state for client, state in states.states.items()}
        each = {str(client): dict(own) for client, own in ask.each.items()}
        message = {"message": dict(ask.message), "each": each}
        kept_before, message_before = through_bytes(kept), through_bytes(message)
        yield from self.here.serve(exchange, blocks, states)
        assert difference(kept_before, kept) is None, (
            f"round {round}: a client wrote into me.state in place; pass keep= to Upload"
        )
        assert difference(message_before, message) is None, (
            f"round {round}: a client wrote into its message, which all clients share"
        )

    def _note(self, envelope: Envelope) -> list[Envelope]:
        self.uploads.append(envelope)
        return [envelope]


class AsBytes(Here):
    """`here` whose messages and uploads are sent as bytes, as they would be to another machine."""

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        ask = exchange.ask
        each = {client: through_bytes(dict(own)) for client, own in ask.each.items()}
        sent = replace(ask, message=through_bytes(dict(ask.message)), each=each)
        here = Here(replace(self.clients, deliver=_upload_through_bytes))
        return here.serve(replace(exchange, ask=sent), blocks, states)


def _upload_through_bytes(envelope: Envelope) -> list[Envelope]:
    old = envelope.upload
    weight = {name: through_bytes(old.weight(name)) for name in old.trees}
    upload = Upload(weight=weight, keep=old.keep, report=old.report, **through_bytes(old.trees))
    return [replace(envelope, upload=upload)]

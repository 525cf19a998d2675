"""The far end of a placement that serves blocks elsewhere: what it is sent and sends back."""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedglean.data.federation import Federation
from fedglean.engine.clients import Clients
from fedglean.engine.task import PartyError
from fedglean.errors import FedgleanError
from fedglean.exchange.exchange import BlockResult, Exchange
from fedglean.inputs.images import Images
from fedglean.tree import Tree


@dataclass(frozen=True)
class Job:
    """A block to serve: its place in the exchange, and what its clients alone are told or keep."""

    place: int
    block: Sequence[int]
    each: Mapping[int, Mapping[str, Any]]
    states: Mapping[int, Tree]

    @property
    def clients(self) -> str:
        """Its clients, for people."""
        first, last = self.block[0], self.block[-1]
        return f"client {first}" if first == last else f"clients {first} to {last}"


def jobs_of(
    exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
) -> Iterator[Job]:
    """The blocks of an exchange as jobs."""
    each = exchange.ask.each
    for place, block in enumerate(blocks):
        own = {client: each[client] for client in block if client in each}
        kept = {client: states[client] for client in block if client in states}
        yield Job(place, block, own, kept)


def common_part(exchange: Exchange) -> Exchange:
    """What all jobs of an exchange share."""
    return replace(exchange, ask=replace(exchange.ask, each={}))


#: A job's place, and what it came to.
Outcome = tuple[int, BlockResult | Exception]


class BlockServer:
    """Is told of an exchange, then of jobs, and serves each as `here` would serve the block."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.exchange: Exchange | None = None

    def handle(self, message: Exchange | Job) -> Outcome | None:
        """The outcome of a job. Guesses come without the images, which the other side has."""
        if isinstance(message, Exchange):
            self.exchange = message
            return None
        exchange, job = self.exchange, message
        assert exchange is not None
        try:
            whole = replace(exchange, ask=replace(exchange.ask, each=job.each))
            result = self.clients.serve(whole, job.block, job.states)
        except Exception as error:
            return job.place, _portable(error, f"round {exchange.round}, {job.clients}")
        return job.place, over_store(result, self.clients.federation.hub.store[:0])


def over_store(result: BlockResult, store: Tensor) -> BlockResult:
    """The result with its guesses' images in another store."""
    guesses = []
    for guess in result.guesses:
        guesses.append(replace(guess, images=Images(store, guess.images.index)))
    return replace(result, guesses=guesses)


def _portable(error: Exception, where: str) -> Exception:
    """The error as it can be sent; a bug takes its traceback along."""
    if isinstance(error, FedgleanError):
        return error
    sent = error
    if not isinstance(error, PartyError):
        sent = PartyError(f"{where}: {type(error).__name__}: {error}")
    sent.add_note("".join(traceback.format_exception(error)))
    return sent


def without_images(clients: Clients) -> Clients:
    """The clients as they travel beside the images: without the hub's labels, the executor new."""
    federation = _over(clients.federation.hub.store[:0], clients.federation)
    executor = type(clients.executor)(clients.executor.setting)
    return replace(clients, federation=federation, executor=executor)


def with_images(bare: Clients, store: Tensor) -> Clients:
    """The clients put together again where they are served."""
    return replace(bare, federation=_over(store, bare.federation))


def _over(store: Tensor, federation: Federation) -> Federation:
    """The clients' part of a federation, over another store."""
    labelled = tuple(Images(store, part.index, part.label) for part in federation.labelled)
    unlabelled = tuple(Images(store, part.index, part.label) for part in federation.unlabelled)
    nothing = torch.zeros(0, dtype=torch.int64, device=store.device)
    return Federation(Images(store, nothing), labelled, unlabelled)

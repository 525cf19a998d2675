"""The far end of a placement that serves blocks elsewhere: what it is sent, and what it sends
back.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedglean.data.federation import Federation
from fedglean.engine.here import Exchange, Here, Served
from fedglean.engine.task import PartyError
from fedglean.errors import FedgleanError
from fedglean.inputs.images import Images, Predictions
from fedglean.tree import Tree


@dataclass(frozen=True)
class Job:
    """A block to serve: its place in the exchange, and what only its clients are told or have
    kept.
    """

    place: int
    block: Sequence[int]
    each: Mapping[int, Mapping[str, Any]]
    states: Mapping[int, Tree]

    @property
    def clients(self) -> str:
        """Its clients, for people."""
        first, last = self.block[0], self.block[-1]
        return f"client {first}" if first == last else f"clients {first} to {last}"


#: A job's place, and what it came to.
Outcome = tuple[int, Served | Exception]


class Servant:
    """Hears of an exchange, then of jobs, and makes of each what `here` would have made of the
    block.
    """

    def __init__(self, place: Here) -> None:
        self.place = place
        self.exchange: Exchange | None = None

    def hear(self, message: Exchange | Job) -> Outcome | None:
        """The outcome of a job. Guesses come without the images, which the other side has."""
        if isinstance(message, Exchange):
            self.exchange = message
            return None
        exchange, job = self.exchange, message
        assert exchange is not None
        try:
            ask = replace(exchange.ask, each=job.each)
            served = self.place.serve(replace(exchange, ask=ask), job.block, job.states)
            return job.place, replace(
                served, guesses=[_without_store(guess) for guess in served.guesses]
            )
        except Exception as error:
            return job.place, _portable(error, f"round {exchange.round}, {job.clients}")


def _without_store(guess: Predictions) -> Predictions:
    return replace(guess, images=Images(guess.images.store[:0], guess.images.index))


def _portable(error: Exception, where: str) -> Exception:
    """The error as it can be sent; a bug takes its traceback along."""
    if isinstance(error, FedgleanError):
        return error
    told = (
        error
        if isinstance(error, PartyError)
        else PartyError(f"{where}: {type(error).__name__}: {error}")
    )
    told.add_note("".join(traceback.format_exception(error)))
    return told


def without_images(place: Here) -> Here:
    """The placement as it travels beside the images: without the hub's labels and the evaluator,
    which knows all.
    """
    old, executor = place.federation, type(place.executor)(place.executor.setting)
    observe = None if place.observe is None else _unheard
    bare = _over(old.hub.store[:0], old)
    return Here(bare, executor, place.block, place.quorum, place.stretch, observe, place.deliver)


def with_images(bare: Here, store: Tensor) -> Here:
    """The placement put together again where it serves."""
    return replace(bare, federation=_over(store, bare.federation))


def _unheard(guess: Predictions) -> None:
    """Guesses are sent back, and heard where the evaluator is."""


def _over(store: Tensor, federation: Federation) -> Federation:
    """The clients' part of it, over another store."""
    labelled, unlabelled = (
        tuple(Images(store, part.index, part.label) for part in side)
        for side in (federation.labelled, federation.unlabelled)
    )
    nothing = torch.zeros(0, dtype=torch.int64, device=store.device)
    return Federation(Images(store, nothing), labelled, unlabelled)

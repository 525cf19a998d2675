"""The placements `workers` and `ray`: the blocks of an exchange are served in other processes.

Those of `workers` are forked from the prepared run, one per core of this machine, so that all of
them see one copy of the data set; those of CUDA are in `on_gpus`, those of `ray` in `on_ray`. They
get the exchange's message and, a block at a time, client numbers with what those clients kept; they
return what `here` would have made of the block. Blocks go to whichever worker is free and are added
up in their own order: the number of processes cannot change a bit.
"""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from fedglean.engine.here import Exchange, Here, Served
from fedglean.engine.pool import Crew, Gone, Pool, Worker
from fedglean.engine.servant import Job, Servant
from fedglean.errors import ConfigError, RoundError
from fedglean.inputs.images import Images
from fedglean.tree import Tree


def check_workers(device: torch.device, threads: int, name: str = "workers") -> None:
    """Refuse settings that worker processes cannot serve."""
    if device.type != "cpu" and name == "ray":
        raise ConfigError(
            "placement 'ray' runs on CPU cores only; use placement 'workers' for one process per "
            "GPU"
        )
    if threads != 1:
        raise ConfigError(
            f"placement '{name}' runs one thread per process, but engine.threads is {threads}; use "
            "--threads 1"
        )
    if (
        name == "workers"
        and device.type == "cpu"
        and "fork" not in multiprocessing.get_all_start_methods()
    ):
        raise ConfigError(
            "placement 'workers' forks processes, which this system cannot do; use placement 'here'"
        )


@dataclass(frozen=True)
class Workers(Here):
    """`here` in several processes; 0 means one per core, or one per GPU.

    `deliver` is called in the process that served the client: one that remembers uploads remembers
    those of its own process alone.
    """

    workers: int = 0
    crew: Callable[[], Crew] = Pool
    pool: Crew = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "pool", self.crew()
        )  # its own: another placement's workers hold other data

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.stop()

    def serve_all(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
    ) -> Iterator[Served]:
        """What the blocks came to, in their order. Whatever goes wrong, no process is left with
        half a job.
        """
        try:
            desk = Desk(exchange, _jobs(exchange, blocks, states), self.pool, self._started())
            for place in range(len(blocks)):
                yield self._with_store(desk.outcome(place))
        except BaseException:
            self.pool.stop()
            raise

    def _started(self) -> Sequence[Worker]:
        blocks = -(-len(self.federation.declared) // self.block)
        return self.pool.started(self.workers, blocks, Servant(self))

    def _with_store(self, served: Served) -> Served:
        """Guesses come without the images, which are here already."""
        store = self.federation.hub.store
        guesses = [
            replace(guess, images=Images(store, guess.images.index)) for guess in served.guesses
        ]
        return replace(served, guesses=guesses)


class Desk:
    """The parent's side of one exchange: who serves which block, and what has come back."""

    def __init__(
        self, exchange: Exchange, jobs: deque[Job], pool: Crew, workers: Sequence[Worker]
    ) -> None:
        self.round, self.jobs, self.pool, self.free = exchange.round, jobs, pool, list(workers)
        self.busy: dict[Worker, Job] = {}
        self.back: dict[int, Served | Exception] = {}
        self.told: set[Worker] = set()
        self.message = pool.packed_for_all(replace(exchange, ask=replace(exchange.ask, each={})))
        self._hand_out()

    def outcome(self, place: int) -> Served:
        """What the block at that place came to; waits for it."""
        while place not in self.back:
            self._take_back()
            self._hand_out()
        outcome = self.back.pop(place)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _hand_out(self) -> None:
        while self.free and self.jobs:
            worker, job = self.free.pop(), self.jobs.popleft()
            self.busy[worker] = job
            with self._there(job):
                if worker not in self.told:
                    worker.send(self.message)
                    self.told.add(worker)
                worker.send(self.pool.packed(job))

    def _take_back(self) -> None:
        for worker in self.pool.answered(list(self.busy)):
            with self._there(self.busy.pop(worker)):
                place, outcome = worker.receive()
            self.back[place] = outcome
            self.free.append(worker)

    @contextmanager
    def _there(self, job: Job) -> Iterator[None]:
        try:
            yield
        except Gone as gone:
            raise RoundError(
                f"round {self.round}: {gone} while it had {job.clients}; "
                "the checkpointed rounds are safe, and the run can be resumed from them"
            ) from gone


def _jobs(
    exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
) -> deque[Job]:
    each = exchange.ask.each
    return deque(
        Job(
            place,
            block,
            {c: each[c] for c in block if c in each},
            {c: states[c] for c in block if c in states},
        )
        for place, block in enumerate(blocks)
    )

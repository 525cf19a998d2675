"""The placement `workers`: the blocks of an exchange are served in one process a core of this machine.

The processes are forked from the prepared run, so that all of them see one copy of the data set. They get the
exchange's message and, a block at a time, client numbers with what those clients kept; they return what `here` would
have made of the block. Blocks are handed to whoever is free and added up in their own order: the number of processes
cannot change a bit.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, Self

import torch

from fedglean.data.images import Images, Predictions
from fedglean.engines.here import Exchange, Here, Served
from fedglean.engines.loop import PartyError
from fedglean.engines.pool import Pool, Worker, packed
from fedglean.errors import ConfigError, FedgleanError, RoundError
from fedglean.tree import Tree


def cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(device: torch.device, threads: int) -> None:
    """Refuse what forked processes cannot do."""
    if device.type != "cpu":
        raise ConfigError(
            "placement 'workers' runs on CPU cores, and one process a GPU is not there yet; "
            "take placement 'here' with executor 'stack', or device 'cpu'"
        )
    if threads != 1:
        raise ConfigError(
            f"placement 'workers' runs one thread a process, but engine.threads is {threads}; set threads to 1"
        )
    if "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigError("placement 'workers' forks processes, which this system cannot; take placement 'here'")


@dataclass(frozen=True)
class Job:
    """A block for a worker: its place in the exchange, and what only its clients are told or have kept."""

    place: int
    block: Sequence[int]
    each: Mapping[int, Mapping[str, Any]]
    states: Mapping[int, Tree]


@dataclass(frozen=True)
class Workers(Here):
    """`here` in several processes; 0 of them means one a core.

    `deliver` is called in the process that served the client: one that remembers uploads remembers those of its own
    process alone.
    """

    workers: int = 0
    pool: Pool = field(init=False, default_factory=Pool, repr=False, compare=False)

    def __enter__(self) -> Self:
        self._crew()
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.stop()

    def serve_all(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]
    ) -> Iterator[Served]:
        """What the blocks came to, in their order. Whatever goes wrong, no process is left with half a job."""
        try:
            desk = Desk(exchange, _jobs(exchange, blocks, states), self._crew())
            for place in range(len(blocks)):
                yield self._with_store(desk.outcome(place))
        except BaseException:
            self.pool.stop()
            raise

    def _crew(self) -> list[Worker]:
        blocks = -(-len(self.federation.declared) // self.block)
        return self.pool.started(min(self.workers or cores(), blocks), self._work)

    def _with_store(self, served: Served) -> Served:
        """Guesses come without the images, which are here already."""
        store = self.federation.hub.store
        guesses = [replace(guess, images=Images(store, guess.images.index)) for guess in served.guesses]
        return replace(served, guesses=guesses)

    def _work(self, line: Connection) -> NoReturn:
        """The life of a worker. It leaves when the parent is gone, and tidies up nothing of the parent's."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        torch.set_num_threads(1)
        try:
            while True:
                message = line.recv()
                if isinstance(message, Exchange):
                    exchange = message
                else:
                    line.send_bytes(self._answer(exchange, message))
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _answer(self, exchange: Exchange, job: Job) -> memoryview:
        try:
            served = self.serve(replace(exchange, ask=replace(exchange.ask, each=job.each)), job.block, job.states)
            return packed((job.place, replace(served, guesses=[_without_store(guess) for guess in served.guesses])))
        except Exception as error:
            return packed((job.place, _portable(error, f"round {exchange.round}, {_names(job.block)}")))


class Desk:
    """The parent's side of one exchange: who serves which block, and what has come back."""

    def __init__(self, exchange: Exchange, jobs: deque[Job], crew: Sequence[Worker]) -> None:
        self.round, self.jobs, self.free = exchange.round, jobs, list(crew)
        self.busy: dict[Worker, Job] = {}
        self.back: dict[int, Served | Exception] = {}
        self.told: set[Worker] = set()
        self.message = packed(replace(exchange, ask=replace(exchange.ask, each={})))
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
            with self._alive(worker, job):
                if worker not in self.told:
                    worker.line.send_bytes(self.message)
                    self.told.add(worker)
                worker.line.send_bytes(packed(job))

    def _take_back(self) -> None:
        ready = wait([worker.line for worker in self.busy])  # the line of a process that died is ready too
        for worker in [worker for worker in self.busy if worker.line in ready]:
            with self._alive(worker, self.busy.pop(worker)):
                place, outcome = worker.line.recv()
            self.back[place] = outcome
            self.free.append(worker)

    @contextmanager
    def _alive(self, worker: Worker, job: Job) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            worker.process.join(timeout=5)
            code = worker.process.exitcode
            how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            raise RoundError(
                f"round {self.round}: a worker (process {worker.process.pid}) died {how} while it had "
                f"{_names(job.block)}; rounds that were checkpointed are safe and the run can be resumed from them"
            ) from error


def _jobs(exchange: Exchange, blocks: Sequence[Sequence[int]], states: Mapping[int, Tree]) -> deque[Job]:
    each = exchange.ask.each
    return deque(
        Job(place, block, {c: each[c] for c in block if c in each}, {c: states[c] for c in block if c in states})
        for place, block in enumerate(blocks)
    )


def _names(block: Sequence[int]) -> str:
    return f"client {block[0]}" if len(block) == 1 else f"clients {block[0]} to {block[-1]}"


def _without_store(guess: Predictions) -> Predictions:
    return replace(guess, images=Images(guess.images.store[:0], guess.images.index))


def _portable(error: Exception, where: str) -> Exception:
    """The error as it can be sent; a bug takes its traceback along."""
    if isinstance(error, FedgleanError):
        return error
    told = error if isinstance(error, PartyError) else PartyError(f"{where}: {type(error).__name__}: {error}")
    told.add_note("".join(traceback.format_exception(error)))
    return told

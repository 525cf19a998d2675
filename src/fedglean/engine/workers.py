"""The placements `workers` and `ray`: the blocks of an exchange are served in other processes.

Those of `workers` are forked from the prepared run, one per core of this machine, so that all of
them see one copy of the data set; those of CUDA are in `on_gpus`, those of `ray` in `on_ray`. They
get the exchange's message and, a block at a time, client numbers with what those clients kept; they
return what `here` would have made of the block. Blocks go to whichever worker is free and are added
up in their own order: the number of processes cannot change a bit.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from fedglean.engine.block_server import BlockServer, Job, common_part, jobs_of, over_store
from fedglean.engine.clients import Clients
from fedglean.engine.pool import ForkedPool, Worker, WorkerDied, WorkerPool
from fedglean.errors import RoundError
from fedglean.exchange.exchange import BlockResult, Exchange
from fedglean.exchange.states import ClientStates


class Workers:
    """`here` in several processes; 0 of them means one per core, or one per GPU.

    What the clients' uploads are delivered by is called in the process that serves the client: one
    that remembers uploads remembers those of its own process alone.
    """

    def __init__(
        self,
        clients: Clients,
        block: int,
        workers: int = 0,
        pool: Callable[[], WorkerPool] = ForkedPool,
    ) -> None:
        self.clients, self.workers, self.pool = clients, workers, pool()
        self.blocks = -(-len(clients.federation.declared) // block)

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.stop()

    def serve(
        self, exchange: Exchange, blocks: Sequence[Sequence[int]], states: ClientStates
    ) -> Iterator[BlockResult]:
        """Whatever goes wrong, no process is left with half a job."""
        store = self.clients.federation.hub.store
        try:
            jobs = jobs_of(exchange, blocks, states.states)
            dispatch = Dispatch(exchange, jobs, self.pool, self._start())
            for place in range(len(blocks)):
                yield over_store(dispatch.result(place), store)
        except BaseException:
            self.pool.stop()
            raise

    def _start(self) -> Sequence[Worker]:
        return self.pool.start(self.workers, self.blocks, BlockServer(self.clients))


class Dispatch:
    """The parent's side of one exchange: who serves which block, and what has come back."""

    def __init__(
        self, exchange: Exchange, jobs: Iterator[Job], pool: WorkerPool, workers: Sequence[Worker]
    ) -> None:
        self.round, self.jobs = exchange.round, deque(jobs)
        self.pool, self.free = pool, list(workers)
        self.busy: dict[Worker, Job] = {}
        self.results: dict[int, BlockResult | Exception] = {}
        self.informed: set[Worker] = set()
        self.message = pool.pack_for_all(common_part(exchange))
        self._hand_out()

    def result(self, place: int) -> BlockResult:
        """What the block at that place came to; waits for it."""
        while place not in self.results:
            self._take_back()
            self._hand_out()
        result = self.results.pop(place)
        if isinstance(result, Exception):
            raise result
        return result

    def _hand_out(self) -> None:
        while self.free and self.jobs:
            worker, job = self.free.pop(), self.jobs.popleft()
            self.busy[worker] = job
            with self._alive(job):
                if worker not in self.informed:
                    worker.send(self.message)
                    self.informed.add(worker)
                worker.send(self.pool.pack(job))

    def _take_back(self) -> None:
        for worker in self.pool.wait(list(self.busy)):
            with self._alive(self.busy.pop(worker)):
                place, result = worker.receive()
            self.results[place] = result
            self.free.append(worker)

    @contextmanager
    def _alive(self, job: Job) -> Iterator[None]:
        try:
            yield
        except WorkerDied as error:
            raise RoundError(
                f"round {self.round}: {error} while it had {job.clients}; "
                "the checkpointed rounds are safe, and the run can be resumed from them"
            ) from error

"""Workers that serve blocks: what all kinds must do, and forked processes behind a pipe."""

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess, SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from fedglean.engine.block_server import BlockServer
from fedglean.errors import ConfigError


class WorkerDied(Exception):
    """A worker that will not answer any more: which one it was, and how it ended."""


class Worker(Protocol):
    """Somebody to whom packed things are sent, and who answers the last of them."""

    def send(self, content: Any) -> None: ...

    def receive(self) -> Any: ...


class WorkerPool(Protocol):
    """The workers of one run, if they have been started."""

    def start(self, wanted: int, most: int, server: BlockServer) -> Sequence[Worker]:
        """Copies of the server, as many as wanted (0: one per core), at most `most`; once a run."""

    def pack(self, value: Any) -> Any:
        """What a worker can be sent."""

    def pack_for_all(self, value: Any) -> Any:
        """What every worker can be sent."""

    def wait(self, busy: Sequence[Any]) -> Sequence[Any]:
        """Those that have answered or are gone; waits for the first."""

    def stop(self) -> None: ...


def cores() -> int:
    """The number of cores that this process may use, if the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Plain(ForkingPickler):
    """Pickles for a pipe between a process and its own fork; never reads what is from outside."""

    def reducer_override(self, value: Any) -> Any:
        return as_bytes(value) if isinstance(value, Tensor) else NotImplemented


def as_bytes(value: Tensor) -> Any:
    """How a tensor is pickled: torch would send a shared file each, until no more can be opened."""
    # One element is contiguous with any stride, but a view as bytes wants a stride of one.
    flat = value.detach().cpu().contiguous().as_strided((value.numel(),), (1,))
    content = flat.view(torch.uint8).numpy()
    return _tensor, (content, value.dtype, tuple(value.shape), value.device.type)


def _tensor(
    content: "np.ndarray[Any, Any]", dtype: torch.dtype, shape: tuple[int, ...], device: str
) -> Tensor:
    """One of a GPU is put on the GPU of the process that reads it, whichever that is."""
    # Cloned into memory that torch aligned: how a product is summed up may depend on the alignment.
    return torch.from_numpy(content).view(dtype).reshape(shape).clone().to(device)


def pack(value: Any) -> memoryview:
    """What `Connection.send_bytes` sends and `Connection.recv` reads."""
    try:
        content: memoryview = _Plain.dumps(value)
    except Exception as error:  # of several kinds, by what it was and by the version of Python
        raise ConfigError(
            f"something cannot be sent to a worker process ({error}); a net, its init and all that "
            "a method sends must be functions or classes at the top level of their module, or "
            "tensors, numbers and text"
        ) from error
    return content


def unpack(content: bytes) -> Any:
    return _Plain.loads(content)


@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """A process and the parent's end of the pipe to it."""

    process: ForkProcess | SpawnProcess
    line: Connection

    def send(self, content: memoryview) -> None:
        with self._alive():
            self.line.send_bytes(content)

    def receive(self) -> Any:
        with self._alive():
            return self.line.recv()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self.process.join(timeout=5)
            code = self.process.exitcode
            how = (
                f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            )
            raise WorkerDied(f"a worker (process {self.process.pid}) died {how}") from error


class ForkedPool:
    """The processes of one run, if they have been started."""

    def __init__(self) -> None:
        self.workers: list[WorkerProcess] = []
        self.owner = os.getpid()
        weakref.finalize(self, _end, self.workers, self.owner)

    def start(self, wanted: int, most: int, server: BlockServer) -> list[WorkerProcess]:
        while len(self.workers) < min(wanted or cores(), most):
            self.workers.append(_fork(server, [worker.line for worker in self.workers]))
        return self.workers

    def pack(self, value: Any) -> memoryview:
        return pack(value)

    def pack_for_all(self, value: Any) -> memoryview:
        return pack(value)

    def wait(self, busy: Sequence[WorkerProcess]) -> list[WorkerProcess]:
        # The line of a process that died is ready too.
        ready = connection.wait([worker.line for worker in busy])
        return [worker for worker in busy if worker.line in ready]

    def stop(self) -> None:
        _end(self.workers, self.owner)


def _fork(server: BlockServer, others: Sequence[Connection]) -> WorkerProcess:
    ours, theirs = multiprocessing.Pipe()

    def begin() -> None:
        # Else a worker would keep its siblings from seeing that the parent is gone.
        for line in (ours, *others):
            line.close()
        work(theirs, server)

    process = multiprocessing.get_context("fork").Process(target=begin, daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of locks that another thread, such as a progress bar's, may hold for
        # ever in the child. A worker takes none of them: it prints nothing, computes with one
        # thread and leaves by os._exit.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        process.start()
    theirs.close()
    return WorkerProcess(process, ours)


def work(line: Connection, server: BlockServer) -> NoReturn:
    """The life of a worker: it leaves when the parent is gone, and tidies up nothing of its."""
    # Ctrl-C reaches all processes; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    torch.set_num_threads(1)
    try:
        while True:
            outcome = server.handle(line.recv())
            if outcome is not None:
                line.send_bytes(pack(outcome))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _end(workers: list[WorkerProcess], owner: int) -> None:
    """Kill the workers, which hold nothing that could be lost; only their own parent may."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.process.kill()
    while workers:
        worker = workers.pop()
        worker.process.join()
        worker.process.close()
        worker.line.close()

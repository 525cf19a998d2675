"""Forked processes at the end of a pipe: how they begin, what travels to them, and that none is left over."""

import multiprocessing
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

Work = Callable[[Connection], NoReturn]


class _Plain(ForkingPickler):
    """Pickles for a pipe between a process and its own fork: nothing from outside is ever read with it.

    Tensors travel as their bytes. As torch would send them each one is a shared file, and a long run is out of files.
    """

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().contiguous().reshape(-1)
        return _tensor, (flat.view(torch.uint8).numpy(), value.dtype, tuple(value.shape))


def _tensor(content: "np.ndarray[Any, Any]", dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # Cloned into memory that torch aligned: how a product is summed up may depend on the alignment.
    return torch.from_numpy(content).view(dtype).reshape(shape).clone()


def packed(value: Any) -> memoryview:
    """What `Connection.send_bytes` sends and `Connection.recv` reads."""
    content: memoryview = _Plain.dumps(value)
    return content


@dataclass(frozen=True, eq=False)
class Worker:
    """A process and the parent's end of the pipe to it."""

    process: ForkProcess
    line: Connection


class Pool:
    """The processes of one run, if they have been started."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.owner = os.getpid()
        weakref.finalize(self, _end, self.workers, self.owner)

    def started(self, count: int, work: Work) -> list[Worker]:
        while len(self.workers) < count:
            self.workers.append(_forked(work, [worker.line for worker in self.workers]))
        return self.workers

    def stop(self) -> None:
        _end(self.workers, self.owner)


def _forked(work: Work, others: Sequence[Connection]) -> Worker:
    ours, theirs = multiprocessing.Pipe()

    def begin() -> None:
        for line in (ours, *others):  # else a worker would keep its siblings from seeing that the parent is gone
            line.close()
        work(theirs)

    process = multiprocessing.get_context("fork").Process(target=begin, daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of locks that another thread, such as a progress bar's, may hold for ever in the child.
        # A worker takes none of them: it prints nothing, computes with one thread and leaves by os._exit.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        process.start()
    theirs.close()
    return Worker(process, ours)


def _end(workers: list[Worker], owner: int) -> None:
    """Workers hold nothing that could be lost, so they are killed. A forked copy of the parent ends nobody."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.process.kill()
    while workers:
        worker = workers.pop()
        worker.process.join()
        worker.process.close()
        worker.line.close()

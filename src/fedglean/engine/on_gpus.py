"""The workers of the placement `workers` on CUDA: one process per GPU.

CUDA does not survive a fork, so these processes start anew. The images are sent to each of them
once, through shared memory, and stay on its GPU from then on; everything else is as with forked
workers.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from fedglean.engine.block_server import BlockServer, with_images, without_images
from fedglean.engine.pool import ForkedPool, WorkerProcess, pack, unpack, work


class GpuPool(ForkedPool):
    """One process a GPU; `first` is what each must do before it reads what it is sent."""

    def __init__(self, first: Callable[[], object]) -> None:
        super().__init__()
        self.first = first

    def start(self, wanted: int, most: int, server: BlockServer) -> list[WorkerProcess]:
        gpus = torch.cuda.device_count()
        missing = range(len(self.workers), min(wanted or gpus or 1, most))
        if missing:
            pixels = server.clients.federation.hub.store.cpu()
            clients = bytes(pack(without_images(server.clients)))
        for number in missing:
            gpu = number % gpus if gpus else None
            self.workers.append(_spawn(self.first, gpu, pixels, clients))
        return self.workers


def _spawn(
    first: Callable[[], object], gpu: int | None, pixels: Tensor, clients: bytes
) -> WorkerProcess:
    ours, theirs = multiprocessing.Pipe()
    given = (theirs, first, gpu, pixels, clients)
    process = multiprocessing.get_context("spawn").Process(target=_begin, args=given, daemon=True)
    process.start()
    theirs.close()
    return WorkerProcess(process, ours)


def _begin(
    line: Connection, first: Callable[[], object], gpu: int | None, pixels: Tensor, clients: bytes
) -> None:
    if gpu is not None:
        torch.cuda.set_device(gpu)
    first()
    store = pixels if gpu is None else pixels.cuda()
    work(line, BlockServer(with_images(unpack(clients), store)))

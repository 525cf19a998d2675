"""The workers of the placement `ray`: actors on the machines of a Ray cluster.

Machines of a cluster need not share a disk, so the images travel, once: Ray's object store has one
copy per machine, which its actors read without a copy of their own. The message of an exchange goes
the same way. From then on an actor gets client numbers with what those clients kept and returns one
partial sum, as a forked worker does.

Everything travels pickled, as on Ray anyway: anyone who can reach a cluster and has its token can
run code there.
"""

import io
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from ray.cloudpickle import CloudPickler, register_pickle_by_value
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from torch import Tensor

from fedglean.engine.block_server import BlockServer, with_images, without_images
from fedglean.engine.clients import Clients
from fedglean.engine.device import settle
from fedglean.engine.pool import WorkerDied, as_bytes, cores, unpack
from fedglean.engine.task import PartyError
from fedglean.errors import ConfigError, RoundError
from fedglean.version import __version__

#: Seconds that actors have to start: they import torch, and wait for free CPUs.
PATIENCE = 300.0


class _Portable(CloudPickler):  # type: ignore[misc]
    """Pickles for another machine, methods of a script or a notebook included."""

    def reducer_override(self, value: Any) -> Any:
        return as_bytes(value) if isinstance(value, Tensor) else super().reducer_override(value)


def pack(value: Any) -> bytes:
    for name, module in sys.modules.copy().items():
        if name.startswith("fedglean_use_"):  # a user's file, which the other machine lacks
            register_pickle_by_value(module)
    content = io.BytesIO()
    _Portable(content).dump(value)
    return content.getvalue()


class Actor:
    """A block server on some machine."""

    def __init__(self, pixels: "np.ndarray[Any, Any]", clients: bytes) -> None:
        settle(torch.device("cpu"), threads=1, deterministic=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the images cannot be written, and need not be
            store = torch.from_numpy(pixels)
        self.server = BlockServer(with_images(unpack(clients), store))

    def about(self) -> tuple[str, dict[str, str]]:
        """Who this is, and what its results depend on."""
        return f"process {os.getpid()} on {ray.util.get_node_ip_address()}", _versions()

    def handle(self, content: bytes) -> bytes:
        return pack(self.server.handle(unpack(content)))


@dataclass(eq=False)
class RayWorker:
    """An actor, and what it was sent and has not answered."""

    actor: Any
    name: str = "not started yet"
    sent: list[Any] = field(default_factory=list)

    def send(self, content: Any) -> None:
        self.sent.append(self.actor.handle.remote(content))

    def receive(self) -> Any:
        try:
            *_, answer = ray.get(self.sent)
        except RayActorError as error:
            raise WorkerDied(f"a Ray worker ({self.name}) died") from error
        except RayTaskError as error:
            raise PartyError(
                f"a Ray worker ({self.name}) cannot read what it was sent: {error.cause}"
            ) from error
        self.sent.clear()
        return unpack(answer)


class RayPool:
    """The actors of one run, if they have been started; a Ray started for them ends with them."""

    def __init__(self) -> None:
        self.workers: list[RayWorker] = []
        self.ours = False

    def start(self, wanted: int, most: int, server: BlockServer) -> list[RayWorker]:
        if not self.workers:
            try:
                self._start(wanted, most, server.clients)
            except BaseException:
                self.stop()
                raise
        return self.workers

    def pack(self, value: Any) -> bytes:
        return pack(value)

    def pack_for_all(self, value: Any) -> Any:
        return ray.put(pack(value))

    def wait(self, busy: Sequence[RayWorker]) -> list[RayWorker]:
        # What an actor that died was sent is ready too.
        ready, _ = ray.wait([worker.sent[-1] for worker in busy])
        return [worker for worker in busy if worker.sent[-1] in ready]

    def stop(self) -> None:
        if ray.is_initialized():
            for worker in self.workers:
                ray.kill(worker.actor)
            if self.ours:
                ray.shutdown()
        self.workers, self.ours = [], False

    def _start(self, wanted: int, most: int, clients: Clients) -> None:
        if not ray.is_initialized():
            self.ours = True
            connect(wanted)
        there = int(ray.cluster_resources().get("CPU", 0))
        if wanted > there:
            raise ConfigError(
                f"engine.workers is {wanted}, but the Ray cluster has {there} CPUs; 0 uses all of "
                "them"
            )
        pixels = ray.put(clients.federation.hub.store.numpy())
        rest = ray.put(pack(without_images(clients)))
        kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Actor)
        self.workers = [
            RayWorker(kind.remote(pixels, rest)) for _ in range(min(wanted or there, most))
        ]
        with _explain_failed_start():
            asked = [worker.actor.about.remote() for worker in self.workers]
            answers = ray.get(asked, timeout=PATIENCE)
        for worker, (name, versions) in zip(self.workers, answers, strict=True):
            worker.name = name
            if versions != _versions():
                raise ConfigError(
                    f"Ray's {name} has {versions}, but this machine has {_versions()}; install the "
                    "same"
                )


def connect(wanted: int) -> None:
    """Connect to the cluster that $RAY_ADDRESS names; if it is not set, start one here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address := os.environ.get("RAY_ADDRESS"):
        try:
            _knock(address)
            ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"cannot connect to the Ray cluster at RAY_ADDRESS '{address}': {reason}; "
                "is its token in ~/.ray/auth_token, and RAY_AUTH_MODE set to 'token' here?"
            ) from error
        return
    own = os.umask(0o077)  # Ray writes its token into the home folder for all to read
    try:
        context = ray.init(
            address="local", num_cpus=max(wanted, cores()), include_dashboard=False, **quiet
        )
    finally:
        os.umask(own)
    print(
        f"Ray {ray.__version__} was started here for this run and ends with it. Its processes "
        "listen on all network "
        f"interfaces of this machine ({context.address_info['gcs_address']} and other ports), "
        "guarded by Ray's token.",
        file=sys.stderr,
    )


def _knock(address: str) -> None:
    """Where nobody listens, Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.rpartition("/")[2], int(port)), timeout=10).close()


@contextmanager
def _explain_failed_start() -> Iterator[None]:
    """Say in a sentence why actors did not start."""
    try:
        yield
    except GetTimeoutError as error:
        raise RoundError(
            f"not all Ray workers started within {PATIENCE:g} s; are that many CPUs of the cluster "
            "free?"
        ) from error
    except (RayActorError, RayTaskError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise RoundError(
            f"a Ray worker did not start: {lines[-1].strip()}; is fedglean installed there?"
        ) from error


def _versions() -> dict[str, str]:
    return {"fedglean": __version__, "torch": torch.__version__}

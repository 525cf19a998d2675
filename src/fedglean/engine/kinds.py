"""The package's own executors and placements, by name."""

import multiprocessing
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec

from fedglean.engine.clients import Clients
from fedglean.engine.device import chosen_device, settle
from fedglean.engine.executor import ExecutorKind
from fedglean.engine.loop import Loop
from fedglean.engine.on_gpus import GpuPool
from fedglean.engine.placement import Here, Placement, PlacementKind, RunConfig
from fedglean.engine.pool import ForkedPool
from fedglean.engine.stack import Stack
from fedglean.engine.workers import Workers
from fedglean.errors import ConfigError

EXECUTORS: Mapping[str, ExecutorKind] = {
    "loop": ExecutorKind(Loop, "one client after the other: the reference"),
    "stack": ExecutorKind(Stack, "the clients of a block side by side, as one tensor program"),
}


def _here(clients: Clients, config: RunConfig) -> Placement:
    return Here(clients)


def _workers(clients: Clients, config: RunConfig) -> Placement:
    engine = config.engine
    if chosen_device(engine.device).type == "cpu":
        return Workers(clients, engine.block, engine.workers, ForkedPool)
    pool = partial(GpuPool, partial(_settle_again, config))
    return Workers(clients, engine.block, engine.workers, pool)


def _ray(clients: Clients, config: RunConfig) -> Placement:
    from fedglean.engine.on_ray import RayPool

    return Workers(clients, config.engine.block, config.engine.workers, RayPool)


def _settle_again(config: RunConfig) -> None:
    """What a process must do first that did not begin as a copy of this one."""
    engine = config.engine
    settle(chosen_device(engine.device), engine.threads, engine.deterministic)


def check_workers(config: RunConfig) -> None:
    """Refuse what worker processes cannot serve."""
    _check_threads(config, "workers")
    on_cpu = chosen_device(config.engine.device).type == "cpu"
    if on_cpu and "fork" not in multiprocessing.get_all_start_methods():
        raise ConfigError(
            "placement 'workers' forks processes, which this system cannot do; use placement 'here'"
        )


def check_ray(config: RunConfig) -> None:
    """Refuse what a Ray cluster cannot serve."""
    if chosen_device(config.engine.device).type != "cpu":
        raise ConfigError(
            "placement 'ray' runs on CPU cores only; use placement 'workers' for one process per "
            "GPU"
        )
    _check_threads(config, "ray")
    if find_spec("ray") is None:
        raise ConfigError(
            "placement 'ray' needs Ray; install it with pip install 'fedglean[ray]', or use "
            "placement 'workers'"
        )


def _check_threads(config: RunConfig, name: str) -> None:
    threads = config.engine.threads
    if threads != 1:
        raise ConfigError(
            f"placement '{name}' runs one thread per process, but engine.threads is {threads}; use "
            "--threads 1"
        )


PLACEMENTS: Mapping[str, PlacementKind] = {
    "here": PlacementKind(_here, "in this process"),
    "workers": PlacementKind(_workers, "in one process a core, on CUDA one a GPU", check_workers),
    "ray": PlacementKind(_ray, "on the machines of a Ray cluster", check_ray),
}

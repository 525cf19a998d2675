"""The placement `workers`: the bits of `here`, and no process left over."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglean import tree
from fedglean.engine.clients import Deliver, deliver_straight
from fedglean.engine.on_gpus import GpuPool
from fedglean.engine.placement import Here
from fedglean.engine.pool import ForkedPool, cores, pack
from fedglean.engine.signature import signature_of
from fedglean.engine.task import PartyError
from fedglean.engine.workers import Workers
from fedglean.errors import ConfigError, RoundError
from fedglean.exchange.exchange import BlockResult
from fedglean.exchange.states import ClientStates
from fedglean.method import Me, Predict, Stream, Train
from fedglean.methods.semifl import SemiFL
from fedglean.models import Architecture
from fedglean.optimiser import SGD
from fedglean.runs.config import Config, configure, fingerprint
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress, RunFolder
from fedglean.runs.rounds import LiveRun, play
from fedglean.testing.engines import variant
from fedglean.testing.faults import Damage, chain, drop, duplicate, garbage, not_a_number, poison
from fedglean.tree import Record
from single_runs import resume, run

COMMON: dict[str, Any] = {"clients": 5, "block": 2, "rounds": 2, "epochs": 1, "device": "cpu"}
METHODS: dict[str, dict[str, Any]] = {
    "semifl": {
        "labels": "hub:100",
        "client_batch": 50,
        "hub_batch": 50,
        "threshold": 0.2,
        "active": 1.0,
    },
    "hassle": {"labels": "fraction:0.1", "residual_steps": 1, "active": 1.0, "batch": 100},
    "fed-shvr": {"labels": "fraction:0.1", "model": "cnn", "unlabelled_batch": 100},
}


def small(method: str = "semifl", **options: Any) -> Config:
    return configure(method, **COMMON | METHODS[method] | {"executor": "loop"} | options)


def under(
    config: Config, kind: Any, deliver: Deliver = deliver_straight, **changes: Any
) -> Experiment:
    """The experiment with a placement of that kind."""
    experiment = prepare(config)
    if kind is not Here:
        kind = partial(kind, block=config.engine.block, **changes)
    executor = experiment.executor
    return variant(experiment, type(executor), kind, executor.setting.record_after, deliver)


def everything(experiment: Experiment, folder: RunFolder | None = None) -> dict[str, Any]:
    """What a run came to, to the bit: state, kept states, and the lines but for their seconds."""
    progress = Progress(0, experiment.start(), ClientStates(), [])
    play([LiveRun(experiment, progress, folder)], lambda lines: None)
    return {"tensors": tensors(progress), "lines": lines(progress.history)}


def tensors(progress: Progress) -> dict[str, bytes]:
    found = tree.named(
        {"state": progress.state, "kept": dict(sorted(progress.kept.states.items()))}
    )
    return {name: leaf.numpy().tobytes() for name, leaf in found.items()}


def lines(history: list[dict[str, Any]]) -> list[str]:
    timeless = [
        {name: value for name, value in line.items() if name not in ("seconds", "phases")}
        for line in history
    ]
    return [json.dumps(line, sort_keys=True) for line in timeless]


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    before = set(multiprocessing.active_children())
    yield
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize("method", METHODS)
def test_one_and_two_workers_give_the_bits_of_here(method: str, executor: str) -> None:
    config = small(
        method, executor=executor, dtype="float64"
    )  # in float32 the rounding would hide a wrong order
    here = everything(under(config, Here))
    assert all('"answered": 5' in line for line in here["lines"][:2])
    for count in (1, 2):
        assert everything(under(config, Workers, workers=count)) == here


def test_a_step_is_known_again_though_its_method_was_unpickled_anew() -> None:
    experiment = prepare(small("hassle"))
    model, images = experiment.start().models["supervised"], experiment.federation.labelled[0]
    streams = {"images": Stream(images, batch=5)}

    def signature(method: Any) -> Any:
        return signature_of(Train(model, streams, method.dual_loss, SGD(method.rate), epochs=1))

    method = experiment.method
    assert signature(pickle.loads(pickle.dumps(method))) == signature(method)
    assert signature(replace(method, proximity=False)) != signature(method)


class Reversed(Workers):
    def serve(self, *arguments: Any) -> Iterator[BlockResult]:
        return iter(list(super().serve(*arguments))[::-1])


def test_blocks_in_another_order_would_have_been_other_bits() -> None:
    config = small("fed-shvr", rounds=1, dtype="float64")
    assert (
        everything(under(config, Reversed, workers=2))["tensors"]
        != everything(under(config, Here))["tensors"]
    )


def test_pseudo_labels_are_measured_as_they_are_here() -> None:
    config = small()
    here, there = (
        run(replace(config, engine=replace(config.engine, placement=name)))
        for name in ("here", "workers")
    )
    assert 0 < there.history[0]["pseudo"]["confident_share"] <= 1
    assert lines(there.history) == lines(here.history)


@pytest.mark.parametrize("damage", [not_a_number, garbage])
def test_a_poisoned_upload_is_refused_as_it_is_here(damage: Damage) -> None:
    config = small("fed-shvr", rounds=1)
    deliver = chain(poison(damage, (1, 1)), duplicate((1, 2)), drop((1, 3)))
    here = everything(under(config, Here, deliver=deliver))
    assert '"client": 1' in here["lines"][0] and '"client": 2' in here["lines"][0]
    assert everything(under(config, Workers, workers=2, deliver=deliver)) == here


@pytest.mark.parametrize("claimed", [0, 4])
def test_nobody_answers_for_a_client_of_another_block(claimed: int) -> None:
    config = small("fed-shvr", rounds=1)

    def deliver(envelope: Any) -> list[Any]:
        return [replace(envelope, client=claimed) if envelope.client == 2 else envelope]

    here = everything(under(config, Here, deliver=deliver))
    lost = everything(under(config, Here, deliver=drop((1, 2))))
    assert here["tensors"] == lost["tensors"] and "answers in another block" in here["lines"][0]
    assert everything(under(config, Workers, workers=2, deliver=deliver)) == here


@dataclass(frozen=True)
class Breaking(SemiFL):
    """The last clients fail between two requests, each in its own block."""

    async def client(self, me: Me, message: Record) -> Any:
        if me.number in (3, 4):
            await Predict(message.model, me.unlabelled)
            raise ZeroDivisionError(f"client {me.number} divided by nothing")
        return await super().client(me, message)


@dataclass(frozen=True)
class Dying(SemiFL):
    """The process that serves client 2 is killed, as one is that has no memory left."""

    async def client(self, me: Me, message: Record) -> Any:
        if me.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().client(me, message)


def with_method(kind: type[SemiFL], placement: Any = Workers, **changes: Any) -> Experiment:
    config = small()
    return replace(under(config, placement, **changes), method=kind(**config.settings))


def test_an_exception_in_a_client_is_told_as_it_is_here() -> None:
    with pytest.raises(PartyError) as here:
        everything(with_method(Breaking, Here))
    for count in (1, 2):
        experiment = with_method(Breaking, workers=count)
        with pytest.raises(PartyError) as there:
            everything(experiment)
        assert str(there.value) == str(here.value)
        assert str(there.value).startswith(
            "round 1, client 3, after request 0 (Predict): ZeroDivisionError"
        )
        assert (
            "in client" in there.value.__notes__[0]
            and "divided by nothing" in there.value.__notes__[0]
        )


def test_a_round_without_a_quorum_stops_with_the_words_of_here() -> None:
    config = small("fed-shvr", rounds=1)
    told = []
    for kind in (Here, Workers):
        with pytest.raises(RoundError) as error:
            everything(under(config, kind, deliver=lambda envelope: []))
        told.append(str(error.value))
    assert told[0] == told[1] and "only 0 of 5 clients" in told[0]


def test_a_worker_that_dies_is_noticed_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(
        RoundError,
        match=r"round 1: a worker .* died by signal 9 while it had clients 2 to 3; .*resumed",
    ):
        everything(with_method(Dying, workers=2))
    assert time.monotonic() - began < 10


def test_a_finished_run_is_shown_without_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a cluster may be gone by then."""
    for method in ("semifl", "hassle"):  # with and without something after the last round
        config = small(method, rounds=1, placement="workers", workers=1)
        whole = run(config, tmp_path / method)
        with monkeypatch.context() as patch:
            patch.setattr(ForkedPool, "start", lambda *given: pytest.fail("a worker was started"))
            assert resume(tmp_path / method).history == whole.history


def test_a_run_whose_idle_worker_was_killed_resumes_to_the_same_result(tmp_path: Path) -> None:
    config = small(rounds=3)
    whole = run(config, tmp_path / "whole")
    experiment = under(
        replace(config, engine=replace(config.engine, placement="workers")), Workers, workers=2
    )
    folder = RunFolder.create(tmp_path / "killed", experiment.config, experiment.split)

    def strike(lines: list[dict[str, Any]]) -> None:
        process = experiment.placement.pool.workers[0].process  # type: ignore[attr-defined]
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    with pytest.raises(RoundError, match=r"round 2: a worker .* died by signal 9"):
        play(
            [LiveRun(experiment, Progress(0, experiment.start(), ClientStates(), []), folder)],
            strike,
        )
    resumed = resume(tmp_path / "killed")
    assert resumed.config.engine.placement == "workers" and lines(resumed.history) == lines(
        whole.history
    )
    models = [
        (path / "model.safetensors").read_bytes()
        for path in (tmp_path / "whole", tmp_path / "killed")
    ]
    assert models[0] == models[1]


SCRIPT = """
import os, sys
from fedglean.runs.config import configure
from fedglean.runs.experiment import prepare
from fedglean.runs.rounds import LiveRun, play

config = configure("semifl", clients=4, block=1, labels="hub:50", epochs=1, rounds=500,
                   executor="loop", device="cpu", placement="workers", workers=2)
experiment = prepare(config)
def tell(lines):
    print(*[worker.process.pid for worker in experiment.placement.pool.workers], flush=True)
play([LiveRun.new(experiment, None)], tell)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_workers_end_with_their_parent(number: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2 and not any(gone(pid) for pid in workers)
        (os.killpg if number == signal.SIGINT else os.kill)(parent.pid, number)
        _, errors = parent.communicate(timeout=20)
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0)
    limit = time.monotonic() + 10
    while not all(gone(pid) for pid in workers) and time.monotonic() < limit:
        time.sleep(0.05)
    assert all(gone(pid) for pid in workers)


def test_processes_live_as_long_as_the_run_and_are_as_many_as_there_is_work_for() -> None:
    placement = under(small(), Workers, workers=7).placement
    assert isinstance(placement, Workers)
    with placement:
        assert len(placement.pool.workers) == 3 == len(multiprocessing.active_children())
    assert placement.pool.workers == []
    assert cores() == len(os.sched_getaffinity(0))


def test_a_pool_that_is_forgotten_ends_its_processes() -> None:
    placement = under(small(), Workers, workers=2).placement
    placement.__enter__()
    assert len(multiprocessing.active_children()) == 2
    del placement
    gc.collect()
    assert multiprocessing.active_children() == []


def test_trees_travel_as_plain_bytes_and_stay_what_they_were() -> None:
    model = Architecture("cnn", (1, 8, 8), 10).initial(3)
    shared = torch.arange(6.0).reshape(2, 3).T
    numbers = [
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        shared[1:],
    ]
    ours, theirs = multiprocessing.Pipe()
    ours.send_bytes(pack(Record(model=model, twice=(shared, shared), numbers=numbers)))
    got = theirs.recv()
    assert got.model.architecture == model.architecture and got.twice[0] is got.twice[1]
    for a, b in zip(
        tree.named(got).values(), tree.named([model, shared, shared, numbers]).values(), strict=True
    ):
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        assert not a.is_shared() and a.data_ptr() % 16 == 0  # type: ignore[no-untyped-call]
    whole = torch.zeros(1_000_000)
    assert len(pack(whole[:10])) < 1000


def test_what_cannot_be_sent_to_a_worker_is_named() -> None:
    def local_net() -> None: ...

    with pytest.raises(ConfigError, match=r"local_net.*top level") as raised:
        pack({"net": local_net})
    assert raised.value.__cause__ is not None


def test_neither_placement_nor_workers_are_part_of_what_a_result_is_called() -> None:
    assert fingerprint(small(placement="workers", workers=3)) == fingerprint(small())


def test_what_workers_cannot_do_is_refused_before_any_work() -> None:
    with pytest.raises(
        ConfigError, match=r"one thread per process, but engine.threads is 2; use --threads 1"
    ):
        prepare(small(placement="workers", threads=2))
    with pytest.raises(ConfigError, match=r"engine.workers must be at least 0, not -1"):
        small(workers=-1)


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_begin_afresh_give_the_bits_of_here(method: str) -> None:
    # Those of GPUs; where there is none, they compute as the others do.
    config = small(method)
    afresh = under(config, Workers, workers=2, pool=partial(GpuPool, bool))
    assert everything(afresh) == everything(under(config, Here))


def test_a_forked_copy_of_a_pool_ends_nobody() -> None:
    placement = under(small(), Workers, workers=1).placement
    assert isinstance(placement, Workers)
    with placement:
        process = multiprocessing.get_context("fork").Process(target=placement.pool.stop)
        process.start()
        process.join()
        assert process.exitcode == 0 and placement.pool.workers[0].process.is_alive()

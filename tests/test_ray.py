"""The placement `ray`: the bits of `here`, and a killed actor loses nothing.

One cluster of two CPUs for all tests of this file, which stay together under `pytest -n 2 --dist
loadgroup`.
"""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglean import tree
from fedglean.engine.block_server import without_images
from fedglean.engine.clients import Deliver, deliver_straight
from fedglean.engine.kinds import check_ray
from fedglean.engine.placement import Here
from fedglean.engine.task import PartyError
from fedglean.engine.workers import Workers
from fedglean.errors import ConfigError, RoundError
from fedglean.exchange.states import ClientStates
from fedglean.method import Me, Predict
from fedglean.methods.semifl import SemiFL
from fedglean.runs.config import Config, configure, fingerprint
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress, RunFolder
from fedglean.runs.rounds import LiveRun, play
from fedglean.testing.engines import variant
from fedglean.testing.faults import chain, drop, duplicate, garbage, not_a_number, poison
from fedglean.tree import Record
from single_runs import resume, run

ray = pytest.importorskip("ray", reason="needs fedglean[ray]")
on_ray = pytest.importorskip("fedglean.engine.on_ray")

#: A hundred clients as unlike as they come; some have no image at all, or none with a label.
COMMON: dict[str, Any] = {
    "partition": "dirichlet:0.3",
    "clients": 100,
    "block": 8,
    "rounds": 3,
    "dtype": "float64",  # in float32 the rounding would hide a wrong order
    "device": "cpu",
    "evaluate_every": 3,
}
METHODS: dict[str, dict[str, Any]] = {
    "semifl": {
        "labels": "hub:100",
        "threshold": 0.2,
        "active": 0.3,
        "epochs": 1,
        "executor": "loop",
    },
    "hassle": {
        "labels": "fraction:0.3",
        "residual_steps": 1,
        "active": 0.3,
        "epochs": 1,
        "executor": "stack",
    },
    "fed-shvr": {"labels": "fraction:0.3", "model": "mlp", "epochs": 1, "executor": "loop"},
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """Started as a run would start it, for the runs below; yields what was said of it."""
    assert "RAY_ADDRESS" not in os.environ
    with redirect_stderr(io.StringIO()) as told:
        on_ray.connect(2)
    yield told.getvalue()
    assert ray.is_initialized(), "a run shut down a cluster that it had not started"
    ray.shutdown()


def small(method: str = "semifl", **options: Any) -> Config:
    return configure(method, **COMMON | METHODS[method] | options)


def there(
    experiment: Experiment, deliver: Deliver = deliver_straight, **changes: Any
) -> Experiment:
    """The same on two actors."""
    block = experiment.config.engine.block
    workers = partial(Workers, block=block, pool=on_ray.RayPool, **changes)
    executor = experiment.executor
    return variant(experiment, type(executor), workers, executor.setting.record_after, deliver)


def everything(experiment: Experiment) -> dict[str, Any]:
    """What a run came to, to the bit: state, kept states, and the lines but for their seconds."""
    progress = Progress(0, experiment.start(), ClientStates(), [])
    play([LiveRun(experiment, progress)], lambda lines: None)
    found = tree.named(
        {"state": progress.state, "kept": dict(sorted(progress.kept.states.items()))}
    )
    return {
        "tensors": {name: leaf.numpy().tobytes() for name, leaf in found.items()},
        "lines": lines(progress.history),
    }


def lines(history: list[dict[str, Any]]) -> list[str]:
    timeless = [
        {name: value for name, value in line.items() if name not in ("seconds", "phases")}
        for line in history
    ]
    return [json.dumps(line, sort_keys=True) for line in timeless]


@pytest.mark.parametrize("method", METHODS)
def test_a_hundred_ragged_clients_give_the_bits_of_here_refusals_included(method: str) -> None:
    experiment = prepare(small(method))
    asked = {client for client, own in enumerate(experiment.federation.declared) if own.total}
    every = [(1, client) for client in asked]
    faults = chain(
        poison(not_a_number, *every[::7]), poison(garbage, *every[1::7]), duplicate(*every[2::7])
    )
    faults = chain(faults, drop(*every[3::7]))
    here = everything(
        variant(
            experiment,
            type(experiment.executor),
            Here,
            experiment.executor.setting.record_after,
            faults,
        )
    )
    assert (
        len(json.loads(here["lines"][0])["refused"]) > 5
        and json.loads(here["lines"][2])["answered"] > 10
    )
    assert bool([name for name in here["tensors"] if name.startswith("kept")]) == (
        method != "hassle"
    )
    assert everything(there(experiment, deliver=faults)) == here


def test_what_listens_beyond_this_machine_is_said_when_it_is_started(cluster: str) -> None:
    assert "listen on all network interfaces" in cluster and cluster.count("\n") == 1
    assert ray.get_runtime_context().gcs_address in cluster


def test_neither_the_truth_nor_the_labels_of_the_hub_travel() -> None:
    experiment = prepare(small("hassle"))
    bare = without_images(experiment.placement.clients)  # type: ignore[attr-defined]
    sent = on_ray.unpack(on_ray.pack(bare))
    assert len(sent.federation.hub) == 0 and sent.federation.hub.label is None
    assert all(part.label is None and not part.store.numel() for part in sent.federation.unlabelled)


def breaking() -> type[SemiFL]:
    """A method that no actor can import, as if written in a notebook: it travels whole."""

    @dataclass(frozen=True)
    class Breaking(SemiFL):
        async def client(self, me: Me, message: Record) -> Any:
            if me.number == 3:
                await Predict(message.model, me.unlabelled)
                raise ZeroDivisionError(f"client {me.number} divided by nothing")
            return await super().client(me, message)

    return Breaking


def test_an_exception_in_a_client_is_told_as_it_is_here() -> None:
    config = small(active=1.0, clients=8, block=8)
    experiment = replace(prepare(config), method=breaking()(**config.settings))
    with pytest.raises(PartyError) as here:
        everything(experiment)
    sent_out = there(experiment)
    with sent_out.placement as placement:
        assert isinstance(placement, Workers) and isinstance(placement.pool, on_ray.RayPool)
        assert len(placement.pool.workers) == 1, "there are two CPUs, but a single block"
        with pytest.raises(PartyError) as away:
            everything(sent_out)
    assert not placement.pool.workers
    assert str(away.value) == str(here.value)
    assert "after request 0 (Predict): ZeroDivisionError: client 3 divided by nothing" in str(
        away.value
    )
    assert "in client" in away.value.__notes__[0]


def test_a_run_whose_actor_was_killed_resumes_to_the_same_result(tmp_path: Path) -> None:
    config = small("fed-shvr", clients=12, block=4, rounds=2)
    whole = run(config, tmp_path / "whole")
    experiment = prepare(replace(config, engine=replace(config.engine, placement="ray", workers=2)))
    folder = RunFolder.create(tmp_path / "killed", experiment.config, experiment.split)

    def strike(lines: list[dict[str, Any]]) -> None:
        pool = experiment.placement.pool  # type: ignore[attr-defined]
        assert len(pool.workers) == 2
        os.kill(int(pool.workers[0].name.split()[1]), signal.SIGKILL)

    with pytest.raises(
        RoundError,
        match=r"round 2: a Ray worker \(process \d+ on \S+\) died while it had clients .*resumed",
    ):
        play(
            [LiveRun(experiment, Progress(0, experiment.start(), ClientStates(), []), folder)],
            strike,
        )
    resumed = resume(tmp_path / "killed")
    assert resumed.config.engine.placement == "ray" and lines(resumed.history) == lines(
        whole.history
    )
    models = [
        (path / "model.safetensors").read_bytes()
        for path in (tmp_path / "whole", tmp_path / "killed")
    ]
    assert models[0] == models[1]


OWN = """
from dataclasses import dataclass
from fedglean.methods.supervised import FedAvg
from fedglean.models.nets import mlp

@dataclass(frozen=True)
class Mine(FedAvg):
    pass

METHODS, MODELS = {"mine": Mine}, {"my-net": mlp}
"""


def test_the_command_finds_the_cluster_at_ray_address_and_actors_know_a_file_of_ones_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = (
        "run mine --use own.py --model my-net --labels fraction:0.5 --clients 6 --block 6 --rounds "
        "1 --executor loop"
    )
    program = [sys.executable, "-m", "fedglean", *words.split()]
    command = [*program, "--device", "cpu", "--placement", "ray", "--out", "run"]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Ray" not in done.stderr, "nothing was started, so there is nothing to say"
    assert RunFolder(tmp_path / "run").config().engine.placement == "ray"


def test_what_ray_cannot_do_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"placement 'ray' runs one thread per process, but engine.threads is 2"
    ):
        prepare(small(placement="ray", threads=2))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(ConfigError, match="one process per GPU"):
            check_ray(small(placement="ray", device="cuda"))
    with pytest.raises(
        ConfigError,
        match=r"engine\.workers is 3, but the Ray cluster has 2 CPUs; 0 uses all of them",
    ):
        run(small(placement="ray", workers=3))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(
        ConfigError,
        match=r"cannot connect to the Ray cluster at RAY_ADDRESS '127\.0\.0\.1:9': .*refused",
    ):
        on_ray.connect(1)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedglean\[ray\]'"):
        prepare(small(placement="ray"))


def test_the_placement_is_no_part_of_what_a_result_is_called() -> None:
    assert fingerprint(small(placement="ray", workers=2)) == fingerprint(small())
    assert type(prepare(small()).placement) is Here

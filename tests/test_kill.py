"""A run that is killed at any instant and resumed is, bit for bit, one that was not."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from fedglean.data.sources import load
from fedglean.data.split_file import save_split
from fedglean.errors import StorageError
from fedglean.randomness import key, uniform
from fedglean.runs.checkpoint import Checkpoints
from fedglean.runs.config import Config, configure
from fedglean.runs.folder import RunFolder
from fedglean.testing.difference import difference
from fedglean.testing.small_federation import small_split
from single_runs import resume, run

# Children are forked from a server that has imported everything, what torch imports late too, and
# started no thread.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["fedglean.testing", "pytest", "sklearn.datasets", "torch._dynamo"])


def start_or_resume(
    config: Config, out: Path, on_round: Callable[[Any], None] | None = None
) -> None:
    """What a user does after a crash: the same command again, or `resume` once there is a run."""
    if (out / "config.toml").exists():
        resume(out, on_round)
    else:
        run(config, out, on_round)


def child(config: Config, out: Path, begun: Any, trap: tuple[str, int, bool] | None = None) -> None:
    if trap is not None:
        set_trap(*trap)
    begun.set()
    try:
        start_or_resume(config, out)
    except KeyboardInterrupt:
        os._exit(130)


def set_trap(name: str, number: int, before: bool) -> None:
    """This process dies at the number-th call of os.<name>, before or after it is done."""
    original, calls = getattr(os, name), iter(range(1, 10**9))

    def trapped(*arguments: Any, **options: Any) -> Any:
        last = next(calls) == number
        if last and before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = original(*arguments, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(os, name, trapped)


def begin(
    config: Config, out: Path, trap: tuple[str, int, bool] | None = None
) -> ForkServerProcess:
    begun = CONTEXT.Event()
    process = CONTEXT.Process(target=child, args=(config, out, begun, trap))
    process.start()
    assert begun.wait(60)
    return process


def to_the_end(config: Config, out: Path) -> float:
    """Seconds it took once the process was there."""
    process = begin(config, out)
    clock = time.perf_counter()
    process.join(120)
    assert process.exitcode == 0
    return time.perf_counter() - clock


def kill_after(seconds: float, config: Config, out: Path) -> int | None:
    process = begin(config, out)
    time.sleep(seconds)
    process.kill()
    process.join(60)
    return process.exitcode


def wait_for_a_round(process: ForkServerProcess, out: Path) -> None:
    while process.is_alive() and (not (out / "metrics.jsonl").exists() or not lines(out)):
        time.sleep(0.01)


def lines(out: Path) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "phases")}
        for line in parsed
    ]


def assert_same_run(a: Path, b: Path) -> None:
    assert lines(a) == lines(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    (done, state, clients, _), (other_done, other_state, other_clients, _) = (
        Checkpoints(out / "checkpoint").load() for out in (a, b)
    )
    assert done == other_done and clients.keys() == other_clients.keys() and clients
    assert difference(state, other_state) is None
    assert all(difference(clients[client], other_clients[client]) is None for client in clients)


class Runs:
    """One configuration and the run of it that nobody disturbed."""

    def __init__(self, folder: Path, method: str, **settings: Any) -> None:
        save_split(folder / "split.json", small_split(load("digits").train_labels))
        self.config = configure(
            method,
            split_file=str(folder / "split.json"),
            device="cpu",
            model="cnn",
            quorum=0.0,
            **settings,
        )
        self.whole = folder / "whole"
        to_the_end(self.config, folder / "warm-up")
        self.seconds = to_the_end(self.config, self.whole)


@pytest.fixture(scope="module")
def semifl(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("semifl")
    return Runs(folder, "semifl", rounds=8, threshold=0.2, active=0.5, epochs=1)


@pytest.fixture(scope="module")
def fed_shvr(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("fed-shvr")
    return Runs(folder, "fed-shvr", rounds=6, epochs=1, labelled_batch=8, unlabelled_batch=8)


def test_clients_do_train_and_keep_momentum_in_the_undisturbed_run(semifl: Runs) -> None:
    history = lines(semifl.whole)
    assert len(history) == 9 and sum(line["answered"] for line in history) > 8
    assert len(Checkpoints(semifl.whole / "checkpoint").load()[2]) > 3


def test_twenty_runs_killed_at_random_instants_go_on_as_if_nothing_had_been(
    semifl: Runs, tmp_path: Path
) -> None:
    codes = []
    for attempt in range(20):
        out = tmp_path / str(attempt)
        for again in range(2 if attempt % 4 == 0 else 1):
            instant = float(uniform(key(0, "kill", attempt, again))) * semifl.seconds
            codes.append(kill_after(instant, semifl.config, out))
        to_the_end(semifl.config, out)
        assert_same_run(semifl.whole, out)
    assert codes.count(-signal.SIGKILL) >= 8, "most runs were over before they were killed"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("name", "number"),
    [("replace", 1), ("replace", 4), ("replace", 7), ("fsync", 2), ("fsync", 9), ("fsync", 32)],
)
def test_a_run_killed_while_it_writes_goes_on_as_if_nothing_had_been(
    semifl: Runs, tmp_path: Path, name: str, number: int, before: bool
) -> None:
    process = begin(semifl.config, tmp_path, (name, number, before))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    to_the_end(semifl.config, tmp_path)
    assert_same_run(semifl.whole, tmp_path)


@pytest.mark.parametrize("attempt", range(4))
def test_fed_shvr_survives_kills_with_its_corrections_intact(
    fed_shvr: Runs, tmp_path: Path, attempt: int
) -> None:
    kill_after(
        float(uniform(key(1, "kill", attempt))) * fed_shvr.seconds, fed_shvr.config, tmp_path
    )
    to_the_end(fed_shvr.config, tmp_path)
    assert_same_run(fed_shvr.whole, tmp_path)


def test_control_c_leaves_a_run_that_can_be_resumed(semifl: Runs, tmp_path: Path) -> None:
    process = begin(semifl.config, tmp_path)
    wait_for_a_round(process, tmp_path)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert not (tmp_path / "model.safetensors").exists()
    to_the_end(semifl.config, tmp_path)
    assert_same_run(semifl.whole, tmp_path)


def test_a_finished_run_is_not_changed_by_resuming_it(semifl: Runs, tmp_path: Path) -> None:
    to_the_end(semifl.config, tmp_path)
    before = {file: file.stat() for file in tmp_path.rglob("*") if file.is_file()}
    to_the_end(semifl.config, tmp_path)
    after = {file: file.stat() for file in tmp_path.rglob("*") if file.is_file()}
    assert {file: (each.st_ino, each.st_mtime_ns) for file, each in before.items()} == {
        file: (each.st_ino, each.st_mtime_ns) for file, each in after.items()
    }
    assert_same_run(semifl.whole, tmp_path)


def test_nothing_of_a_killed_process_is_left_over(semifl: Runs, tmp_path: Path) -> None:
    begin(semifl.config, tmp_path, ("replace", 20, True)).join(60)
    to_the_end(semifl.config, tmp_path)
    names = {file.relative_to(tmp_path) for file in tmp_path.rglob("*")}
    assert names == {file.relative_to(semifl.whole) for file in semifl.whole.rglob("*")}
    assert RunFolder(tmp_path).model()


@pytest.mark.parametrize("placement", ["here", "workers"])
def test_a_folder_belongs_to_one_process_until_that_is_killed(
    semifl: Runs, tmp_path: Path, placement: str
) -> None:
    long = replace(semifl.config, rounds=10000)
    long = replace(long, engine=replace(long.engine, placement=placement))
    process = begin(long, tmp_path)
    wait_for_a_round(process, tmp_path)
    with pytest.raises(StorageError, match=r"another process is working in .*; wait until it ends"):
        resume(tmp_path)
    process.kill()
    process.join(60)
    rounds = len(lines(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path, stop_at_once)
    assert len(lines(tmp_path)) in (
        rounds,
        rounds + 1,
    )  # the last line may be one of a round that was not finished


def stop_at_once(line: dict[str, Any]) -> None:
    raise KeyboardInterrupt

"""Real processes on loopback: what docs/deploy.md tells a new user to type, typed."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedglean.config import configure
from fedglean.deploy.commands import Address, HubOptions, Tools, superlink_command, supernode_command
from fedglean.deploy.keys import HubKeys, make_branch_key, make_hub_keys
from fedglean.engines.here import Deliver
from fedglean.experiment import prepare
from fedglean.folder import RunFolder
from fedglean.run import Run, play
from fedglean.testing.compare import difference
from fedglean.testing.faults import drop

# Six minutes of processes that wait for each other; on a busy machine Flower's own timeouts strike.
pytestmark = pytest.mark.skipif(
    "FEDGLEAN_PROCESSES" not in os.environ, reason="starts Flower's processes for minutes; set FEDGLEAN_PROCESSES=1"
)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "deploy.md"
BIN = Path(sys.executable).parent


def blocks() -> list[tuple[str, str]]:
    """(where, what) of the page's shell blocks, in order."""
    found = re.findall(r"^```sh\n# ([^\n]+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    port = _free_port()
    return [(where, what.replace("18443", str(port))) for where, what in found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def typed(script: str, folder: Path, **options: object) -> "subprocess.Popen[str]":
    """As a user would have it: a shell of its own, with the environment's commands in reach."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        ["bash", "-ec", script], cwd=folder, env=environment, text=True, start_new_session=True, **options
    )  # type: ignore[call-overload,no-any-return]


@contextmanager
def running(script: str, folder: Path, log: Path) -> Iterator["subprocess.Popen[str]"]:
    with open(log, "w") as file:
        process = typed(f"exec {script}", folder, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)  # to one that was killed, this does nothing
            process.wait(30)


def finished(script: str, folder: Path, seconds: float) -> str:
    process = typed(script, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output: str = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output = process.communicate(timeout=30)[0]
        pytest.fail(f"not finished after {seconds:g} s: {script}\n{output}")
    assert process.returncode == 0, f"exit code {process.returncode}: {script}\n{output}"
    return output


def test_the_page_about_deployment_works_as_it_is_written(tmp_path: Path) -> None:
    page = blocks()
    assert [where for where, _ in page] == [
        "anywhere", "on the hub", "on north", "on south", "on north, to be left running",
        "on south, to be left running", "on the hub", "on the hub",
    ]  # fmt: skip
    for _, script in page[:4]:
        finished(script, tmp_path, 60)
    finished("fedglean deploy keys keys-stranger && cp keys-hub/ca.crt keys-stranger/", tmp_path, 60)
    stranger = page[4][1].replace("keys-north", "keys-stranger").replace("north-state", "stranger-state")
    logs = {name: tmp_path / f"{name}.log" for name in ("north", "south", "stranger")}
    with (
        running(page[4][1], tmp_path, logs["north"]),
        running(page[5][1], tmp_path, logs["south"]),
        running(stranger, tmp_path, logs["stranger"]),  # says that it is branch 0, with a key that nobody admitted
    ):
        said = finished(page[6][1], tmp_path, 170)
    assert "round   2 of 2" in said and "2 trained" in said and "refused" not in said
    assert "the node ended with status 1" in logs["stranger"].read_text()
    predicted, resumed = finished(page[7][1], tmp_path, 60).strip().rsplit("\n", 1)
    assert "north-images/200.png" in predicted and resumed == "first-run was finished already"
    secrets = [(tmp_path / f"keys-{name}").read_text() for name in ("hub/server.key", "north/branch.key")]
    told = said + "".join(path.read_text() for path in [*logs.values(), tmp_path / "first-run/flower/superlink.log"])
    assert not [line for secret in secrets for line in secret.splitlines()[1:-1] if line in told]
    _check_same_as_a_simulation(tmp_path)
    _check_nothing_is_left_running(tmp_path)


def test_a_branch_and_the_hub_are_killed_in_mid_round_and_come_back(tmp_path: Path) -> None:
    page = [what for _, what in blocks()]
    for script in page[:4]:
        finished(script, tmp_path, 60)
    north, south = page[4], page[5]
    hub = page[6].replace("--rounds 2", "--rounds 6 --grace 2")
    with running(north, tmp_path, tmp_path / "north.log"), running(south, tmp_path, tmp_path / "south.log"):
        with running(hub, tmp_path, tmp_path / "hub.log"):
            _wait_for_order(tmp_path, "south", 1)
            killed = time.monotonic()
            _kill(tmp_path, "south-state")
            with running(south, tmp_path, tmp_path / "south-again.log"):
                _wait_for_order(tmp_path, "north", 3)
                assert time.monotonic() - killed < 60, "the rounds waited for a branch that Flower had not given up yet"
                _kill(tmp_path, "first-run")
        lines = _metrics(tmp_path)
        assert [line["refused"] for line in lines[:1]] == [[]] and len(lines) in (2, 3)
        assert [each["client"] for line in lines[1:] for each in line["refused"]] == [1] * (len(lines) - 1)
        assert "starting it again" in (tmp_path / "south-again.log").read_text()
        with running(south, tmp_path, tmp_path / "south-later.log"):
            time.sleep(max(0.0, 65 - (time.monotonic() - killed)))
            said = finished("fedglean resume first-run", tmp_path, 170)
    assert f"going on after round {len(lines)} of 6" in said
    lines = _metrics(tmp_path)
    missing = {(line["round"], each["client"]) for line in lines for each in line["refused"]}
    assert not {(number, 1) for number in (4, 5, 6)} <= missing, f"the branch did not come back: {said}"
    _check_same_as_a_simulation(tmp_path, rounds=6, deliver=drop(*missing))
    _check_nothing_is_left_running(tmp_path)


def _wait_for_order(folder: Path, branch: str, done: int, seconds: float = 150) -> None:
    """Until so many rounds are done and the branch has its order of the next."""
    end = time.monotonic() + seconds
    while len(_metrics(folder)) < done:
        assert time.monotonic() < end, (folder / "hub.log").read_text()
        time.sleep(0.1)
    log = folder / f"{branch}.log"
    while f"ROUND {done + 1}-" not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "first-run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _kill(folder: Path, word: str) -> None:
    """-9, every process of this test that has the word in its command line, and all of its group.

    The youngest first: one whose starter is killed is asked to end, and would say goodbye to the hub.
    """
    for number in sorted(_processes(folder), reverse=True):
        with suppress(ProcessLookupError, FileNotFoundError):
            if word.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                os.killpg(os.getpgid(number), signal.SIGKILL)


def _processes(folder: Path) -> list[int]:
    """Those that work in the folder, or whose command line or environment names it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            about = [(place / name).read_bytes() for name in ("cmdline", "environ")] + [
                os.readlink(place / "cwd").encode()
            ]
            if any(str(folder).encode() in text for text in about):
                found.append(int(place.name))
    return found


def _check_same_as_a_simulation(folder: Path, rounds: int = 2, deliver: Deliver | None = None) -> None:
    root = folder / "simulated"
    (root / "clients").mkdir(parents=True)
    (root / "hub").symlink_to(folder / "hub-images" / "hub")
    for name in ("north", "south"):
        (root / "clients" / name).symlink_to(folder / f"{name}-images")
    options = {"active": 1.0, "epochs": 1, "threshold": 0.5, "dtype": "float64", "executor": "loop", "device": "cpu"}
    experiment = prepare(configure("semifl", data="folder", data_root=root, model="mlp", rounds=rounds, **options))
    if deliver is not None:
        experiment = replace(experiment, placement=replace(experiment.placement, deliver=deliver))
    result = play([Run.new(experiment, None)], lambda lines: None)[0]
    predictors, _ = RunFolder(folder / "first-run").predictors()
    found = difference(dict(result.predictors), predictors, 1e-10)
    assert found is None, found


def _check_nothing_is_left_running(folder: Path) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        left = _processes(folder)
        if not left:
            return
        time.sleep(0.5)
    raise AssertionError(left)


def test_nobody_is_let_in_without_an_admitted_key_and_the_hubs_certificate(tmp_path: Path) -> None:
    """A SuperLink and one whose certificate has expired; none of these nodes may come to stay."""
    good = make_hub_keys(tmp_path / "good", ["127.0.0.1"])
    expired = make_hub_keys(tmp_path / "expired", ["127.0.0.1"], days=-1)
    make_branch_key(tmp_path / "branch.key")
    ports = {keys: Address("127.0.0.1", _free_port()) for keys in (good, expired)}
    tries: dict[str, tuple[HubKeys, Path | None]] = {
        "a key that was not admitted": (good, good.authority),
        "another authority": (good, expired.authority),
        "no TLS": (good, None),
        "an expired certificate": (expired, expired.authority),
    }
    with ExitStack() as stack:
        for keys, address in ports.items():
            (tmp_path / "links" / keys.folder.name).mkdir(parents=True)
            home = tmp_path / "links" / keys.folder.name
            options = HubOptions(tmp_path, home, 1, address, keys.folder, [], 9, 9, 9)
            command = superlink_command(options, home / "state.db")
            stack.enter_context(Tools(home, print).started(command, home / "log"))
            _wait_for_port(address)
        nodes = {}
        for number, (name, (keys, authority)) in enumerate(tries.items()):
            home = tmp_path / f"node {number}"
            home.mkdir()
            key = tmp_path / "branch.key" if authority else None
            command = supernode_command(number, name, tmp_path, home, ports[keys], authority, key)
            nodes[name] = stack.enter_context(Tools(home, print).started(command, home / "log"))
        for number, (name, node) in enumerate(nodes.items()):
            log = tmp_path / f"node {number}" / "log"
            end = time.monotonic() + 60
            while node.poll() is None and log.read_text().count("Connection attempt failed") < 4:
                assert time.monotonic() < end, f"a node with {name} is still there:\n{log.read_text()}"
                time.sleep(0.2)
            assert node.poll() in (1, None), name
        refused = (tmp_path / "links" / "good" / "log").read_text()
    assert refused.count("No SuperNode found with the given public key") == 1
    for keys in ports:
        with closing(sqlite3.connect(tmp_path / "links" / keys.folder.name / "state.db")) as database:
            assert database.execute("select count(*) from node").fetchone() == (0,)


def _wait_for_port(address: Address, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((address.host, address.port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {address}")

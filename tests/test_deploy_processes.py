"""Real processes on loopback: what docs/deploy.md tells a new user to type, typed; and killed.

Four to seven minutes on two cores. Nothing waits for a time, everything for something to happen;
what is started in a test's folder is killed with it, whatever becomes of the test.
"""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedglean.engine.clients import Deliver
from fedglean.federation.flower.processes import FlowerCommands
from fedglean.federation.flower.start_branch import supernode_command
from fedglean.federation.flower.start_hub import superlink_command
from fedglean.federation.keys import make_branch_key, make_hub_keys
from fedglean.runs.config import configure
from fedglean.runs.deploy_options import Address, BranchOptions, HubOptions
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import RunFolder
from fedglean.runs.rounds import LiveRun, play
from fedglean.testing.difference import difference
from fedglean.testing.engines import with_delivery
from fedglean.testing.faults import drop

PAGE = Path(__file__).resolve().parents[1] / "docs" / "deploy.md"
BIN = Path(sys.executable).parent
#: Seconds after which something will not happen any more, on a machine that is very busy.
LONG = 600.0


def blocks() -> list[str]:
    """The page's shell blocks, in order."""
    found = re.findall(r"^```sh\n# ([^\n]+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert [where for where, _ in found] == [
        "anywhere",
        "on the hub",
        "on north",
        "on south",
        "on north, to be left running",
        "on south, to be left running",
        "on the hub",
        "on the hub",
    ]
    port = _free_port()
    return [what.replace("18443", str(port)) for _, what in found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def typed(script: str, folder: Path, **options: object) -> "subprocess.Popen[str]":
    """As a user would have it: a shell of its own, with the environment's commands in reach."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        ["bash", "-ec", script],
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
        **options,
    )  # type: ignore[call-overload,no-any-return]


@contextmanager
def running(script: str, folder: Path, log: Path) -> Iterator["subprocess.Popen[str]"]:
    with open(log, "w") as file:
        process = typed(f"exec {script}", folder, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)  # to one that was killed, this does nothing
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)


def finished(script: str, folder: Path, code: int = 0) -> str:
    process = typed(script, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output: str = process.communicate(timeout=LONG)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
        pytest.fail(f"not finished after {LONG:g} s: {script}\n{output}\n{_logs(folder)}")
    assert process.returncode == code, (
        f"exit code {process.returncode}: {script}\n{output}\n{_logs(folder)}"
    )
    return output


def wait_until(
    happens: Callable[[], Any], folder: Path, what: str, *working: "subprocess.Popen[str]"
) -> None:
    """Those who work on it must not end before it happens."""
    end = time.monotonic() + LONG
    while not happens():
        ended = time.monotonic() > end or any(each.poll() is not None for each in working)
        assert not ended, f"{what} has not happened\n{_logs(folder)}"
        time.sleep(0.1)


def _logs(folder: Path) -> str:
    """The end of every log, for whoever reads of a failure."""
    return "\n".join(
        f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(folder.rglob("*.log"))
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and keys, as the first blocks of the page make them in an empty folder."""
    place = tmp_path_factory.mktemp("page")
    for script in blocks()[:4]:
        finished(script, place)
    return place


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of those. Nothing that works there, or was told of it, outlives the test."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    try:
        yield tmp_path
    finally:
        _kill(tmp_path, "")


def _kill(folder: Path, word: str) -> None:
    """-9, every process of this test that has the word in its command line, and all of its group.

    The youngest first: one whose starter is killed is asked to end, and would say goodbye to the
    hub.
    """
    for number in sorted(_processes(folder, word), reverse=True):
        with suppress(ProcessLookupError):
            os.killpg(os.getpgid(number), signal.SIGKILL)


def _linger(folder: Path, word: str) -> None:
    """A process of this test hears of nothing any more, as on a machine that is busy."""
    (number,) = _processes(folder, word)
    os.kill(number, signal.SIGSTOP)


def _processes(folder: Path, word: str = "") -> list[int]:
    """Those that work in the folder, or whose command line or environment names it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (place / "cmdline").read_bytes()
            about = [command, (place / "environ").read_bytes(), os.readlink(place / "cwd").encode()]
            is_here = any(str(folder).encode() in text for text in about)
            if is_here and word.encode() in command and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def _check_nothing_is_left_running(folder: Path) -> None:
    wait_until(lambda: not _processes(folder), folder, "the end of all processes")


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "first-run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_page_about_deployment_works_as_it_is_written(folder: Path) -> None:
    north, south, hub, after = blocks()[4:]
    make_branch_key(folder / "keys-stranger" / "branch.key")
    shutil.copy(folder / "keys-hub" / "ca.crt", folder / "keys-stranger")
    stranger = north.replace("keys-north", "keys-stranger").replace("north-state", "stranger-state")
    logs = {name: folder / f"{name}.log" for name in ("north", "south", "stranger")}
    with (
        running(north, folder, logs["north"]),
        running(south, folder, logs["south"]),
        running(
            stranger, folder, logs["stranger"]
        ),  # says that it is branch 0, with a key that nobody admitted
    ):
        said = finished(hub, folder)
        wait_until(
            lambda: "the node ended with status 1" in logs["stranger"].read_text(),
            folder,
            "a refusal",
        )
    assert re.findall(r"^[-0-9]+ [:0-9]+ \d of 2 {3,}(\d of 2)", said, re.M) == ["2 of 2"] * 2, said
    assert not [each for line in _metrics(folder) for each in line["refused"]], said
    refused = logs["stranger"].read_text()
    assert "the hub does not let it in: its key was not admitted" in refused
    assert "\x1b" not in refused + said and "$ FLWR" not in said
    predicted, resumed = finished(after, folder).strip().rsplit("\n", 1)
    assert "north-images/200.png" in predicted and resumed == "first-run is already finished"
    secrets = [
        (folder / f"keys-{name}").read_text() for name in ("hub/server.key", "north/branch.key")
    ]
    told = said + "".join(
        path.read_text() for path in [*folder.rglob("*.log"), *folder.rglob("*.jsonl")]
    )
    assert not [line for secret in secrets for line in secret.splitlines()[1:-1] if line in told]
    _check_same_as_a_simulation(folder)
    _check_nothing_is_left_running(folder)


def test_a_branch_and_the_hub_are_killed_in_mid_round_and_come_back(folder: Path) -> None:
    north, south, hub, _ = blocks()[4:]
    hub = hub.replace("--rounds 2", "--rounds 3")
    with (
        running(north, folder, folder / "north.log") as at_north,
        running(f"{hub.strip()} --grace 20", folder, folder / "hub.log") as at_hub,
    ):
        with running(south, folder, folder / "south.log") as branch:
            _wait_for_order(folder, "south", 2, branch)
            _kill(folder, "south-state")
        _wait_for_order(folder, "north", 3, at_north, at_hub)
        _linger(folder, "flwr-serverapp")
        at_hub.kill()
        wait_until(
            lambda: not _processes(folder, "first-run") + _processes(folder, "flwr-serverapp"),
            folder,
            "the end of what the hub had started",
        )
        before = _metrics(folder)
        missed = [each for line in before for each in line["refused"]]
        assert before[1]["refused"] and {each["client"] for each in missed} == {1}, before
        assert {each["reason"] for each in missed[1:]} <= {"not there when it was asked"}, (
            "waited for once more"
        )
        with running(south, folder, folder / "south-again.log") as branch:
            said = finished(f"{hub.strip()} --grace 60", folder)
            branch.kill()
    assert f"continuing after round {len(before)} of 3" in said
    lines = _metrics(folder)
    assert len(lines) >= 3 and not [
        each for line in lines[len(before) :] for each in line["refused"]
    ], said
    missing = {(line["round"], each["client"]) for line in lines for each in line["refused"]}
    _check_same_as_a_simulation(folder, rounds=3, deliver=drop(*missing))
    _check_nothing_is_left_running(folder)


def _wait_for_order(
    folder: Path, branch: str, round: int, *working: "subprocess.Popen[str]"
) -> None:
    log, what = (
        folder / f"{branch}-state" / "flower" / "node.log",
        f"an order of round {round} to {branch}",
    )
    wait_until(
        lambda: log.exists() and f"ROUND {round}-" in log.read_text(), folder, what, *working
    )


def _check_same_as_a_simulation(
    folder: Path, rounds: int = 2, deliver: Deliver | None = None
) -> None:
    root = folder / "simulated"
    (root / "clients").mkdir(parents=True)
    (root / "hub").symlink_to(folder / "hub-images" / "hub")
    for name in ("north", "south"):
        (root / "clients" / name).symlink_to(folder / f"{name}-images")
    options = {
        "active": 1.0,
        "epochs": 1,
        "threshold": 0.5,
        "dtype": "float64",
        "executor": "loop",
        "device": "cpu",
    }
    experiment = prepare(
        configure("semifl", data="folder", data_root=root, model="mlp", rounds=rounds, **options)
    )
    if deliver is not None:
        experiment = with_delivery(experiment, deliver)
    result = play([LiveRun.new(experiment, None)], lambda lines: None)[0]
    predictors = RunFolder(folder / "first-run").model().predictors
    found = difference(dict(result.predictors), predictors, 1e-10)
    assert found is None, found


def test_a_model_of_90_megabytes_passes_after_a_hub_that_nobody_came_to(folder: Path) -> None:
    for place in sorted((folder / "hub-images" / "hub").glob("*/*"))[:80]:
        kind = (
            folder
            / ("branch-images" if int(place.stem) % 9 == 0 else "images/test")
            / place.parent.name
        )
        kind.mkdir(parents=True, exist_ok=True)
        shutil.copy(place, kind)
    (folder / "images").mkdir(exist_ok=True)
    address = f"127.0.0.1:{_free_port()}"
    hub = (
        "fedglean deploy hub fedavg --images images --branches 1 --out first-run --listen "
        f"{address} --insecure"
    )
    options = "--model wrn-28-8 --norm group --rounds 1 --set epochs=1 --set evaluate_every=1"
    alone = finished(f"{hub} {options} --gathering 1", folder, code=5)
    assert "0 of 1 branches have joined, the quorum is 1; waiting up to 1 s for branch 0" in alone
    assert "branch 0 did not join within 1 s" in alone
    branch = (
        f"fedglean deploy branch --number 0 --images branch-images --state state --hub {address} "
        "--insecure"
    )
    with running(branch, folder, folder / "branch.log"):
        said = finished(f"{hub} {options} --gathering {LONG:g}", folder)
    assert "no protection" in said
    line = _metrics(folder)[0]
    assert (
        line["answered"] == 1
        and not line["refused"]
        and min(line["bytes_down"], line["bytes_up"]) > 90e6
    ), said
    assert (
        sum(leaf.nbytes for leaf in load_file(folder / "first-run" / "model.safetensors").values())
        > 90e6
    )
    _check_nothing_is_left_running(folder)


def test_nobody_is_let_in_without_an_admitted_key_and_the_hubs_certificate(folder: Path) -> None:
    """A SuperLink and one whose certificate has expired; none of these nodes may come to stay."""
    good = make_hub_keys(folder / "good", ["127.0.0.1"])
    expired = make_hub_keys(folder / "expired", ["127.0.0.1"], days=-1)
    make_branch_key(folder / "branch.key")
    ports = {keys: Address("127.0.0.1", _free_port()) for keys in (good, expired)}
    tries: dict[str, tuple[Path, Path | None, str]] = {
        "a key that was not admitted": (good, good, "could not be activated|activat"),
        "another authority": (good, expired, "(?i)ssl|certificate"),
        "no TLS": (good, None, "(?i)disconnected|connection|protocol"),
        "an expired certificate": (expired, expired, "(?i)ssl|certificate"),
    }
    with ExitStack() as stack:
        for keys, address in ports.items():
            home = folder / "links" / keys.parent.name
            home.mkdir(parents=True)
            options = HubOptions(folder, 1, home, str(address), keys.parent)
            command = superlink_command(options, home / "state.db")
            stack.enter_context(FlowerCommands(home).start(command, home / "link.log"))
        for address in ports.values():
            wait_until(
                lambda address=address: _listens(address),
                folder,
                f"somebody listening on {address}",
            )  # type: ignore[misc]
        nodes = {}
        for number, (name, (keys, authority, _)) in enumerate(tries.items()):
            home = folder / f"node {number}"
            home.mkdir()
            key = folder / "branch.key" if authority else None
            options = BranchOptions(images=folder, number=number, state=home, name=name)
            command = supernode_command(options, ports[keys], authority, key)
            nodes[name] = stack.enter_context(
                FlowerCommands(home).start(command, home / "node.log")
            )
        for number, (name, node) in enumerate(nodes.items()):
            log = folder / f"node {number}" / "node.log"
            failures = lambda log=log: log.read_text().count("Connection attempt failed")  # noqa: E731
            wait_until(
                lambda node=node, failures=failures: node.poll() is not None or failures() >= 4,
                folder,
                f"a refusal of {name}",
            )
            assert node.poll() in (1, None), name
            assert re.search(tries[name][2], log.read_text()), log.read_text()
        refused = (folder / "links" / "good" / "link.log").read_text()
    assert refused.count("No SuperNode found with the given public key") == 1
    for keys in ports:
        with closing(sqlite3.connect(folder / "links" / keys.parent.name / "state.db")) as database:
            assert database.execute("select count(*) from node").fetchone() == (0,)


def _listens(address: Address) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address.host, address.port)) == 0

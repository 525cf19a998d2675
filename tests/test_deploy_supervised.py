"""What is started for a hub or a branch ends when its starter does, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedglean.federation.flower.processes import FlowerCommands

#: As Flower does: a process that starts others, one of them in a session of its own.
FAMILY = """
import subprocess, sys, time
colour = chr(27) + "[92mINFO" + chr(27) + "[0m"
print(colour, "started", flush=True)
more = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", more], start_new_session=True)
subprocess.Popen(["sleep", "600"])
time.sleep(600)
"""
STARTER = """
import sys, time
from pathlib import Path
from fedglean.federation.flower.processes import FlowerCommands
place = Path(sys.argv[1])
with FlowerCommands(place).start([sys.executable, "-c", sys.argv[2]], place / "log"):
    time.sleep(600)
"""


def processes(folder: Path) -> set[int]:
    """Those that were started for a folder, as their environment says, but for the starter."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"FLWR_HOME={folder}".encode() in (place / "environ").read_bytes():
                found.add(int(place.name))
    return found


def wait_until(happens: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has started a family of five, the one that watches over it included."""
    with subprocess.Popen([sys.executable, "-c", STARTER, tmp_path, FAMILY]) as process:
        wait_until(lambda: len(processes(tmp_path)) == 5)
        yield process
        process.kill()
    for number in processes(tmp_path):
        os.kill(number, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_starter_that_was_killed(
    kind: signal.Signals, starter: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    starter.send_signal(kind)
    wait_until(lambda: not processes(tmp_path), 15)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_outlives_a_command_that_was_killed(
    starter: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """A stopped process does not answer a signal that asks it to end."""
    _, command, *others = sorted(processes(tmp_path))
    os.kill(others[-1], signal.SIGSTOP)
    os.kill(command, signal.SIGKILL)
    wait_until(lambda: not processes(tmp_path), 15)


def test_a_command_is_over_when_its_block_is_and_tells_its_status(tmp_path: Path) -> None:
    flower = FlowerCommands(tmp_path)
    with flower.start(["sleep", "600"], tmp_path / "log") as process:
        assert process.poll() is None
    assert process.returncode == 128 + signal.SIGTERM
    with flower.start(["bash", "-c", "exit 3"], tmp_path / "log") as process:
        assert process.wait(30) == 3


def test_a_log_has_times_and_no_colours(tmp_path: Path) -> None:
    script = r"printf '\033[92mINFO\033[0m : started\nlast words'"
    with FlowerCommands(tmp_path).start(["bash", "-c", script], tmp_path / "log") as process:
        process.wait(30)
    first, last = (tmp_path / "log").read_text().splitlines()
    assert first[19:] == " INFO : started" and last[19:] == " last words"
    time.strptime(first[:19], "%Y-%m-%d %H:%M:%S")
    assert "bash" in (tmp_path / "commands.log").read_text()

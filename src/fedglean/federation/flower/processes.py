"""Flower's commands as processes of this one: started quietly, waited for, ended with it."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedglean.errors import ConfigError, RoundError, StorageError
from fedglean.federation.flower import supervised
from fedglean.runs.deploy_options import Address

#: Nothing calls home, and nothing is installed.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
Show = Callable[[str], None]


@dataclass(frozen=True)
class FlowerCommands:
    """Flower's commands, with `home` for its own files; each is written into commands.log there."""

    home: Path

    @property
    def environment(self) -> Mapping[str, str]:
        beside = Path(sys.executable).parent  # Flower's commands start each other by name
        path = os.pathsep.join([str(beside), os.environ.get("PATH", "")])
        return {**os.environ, **self._own, "PATH": path}

    @contextmanager
    def start(self, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A process that ends when this block does, and when this process is killed."""
        self._note(command)
        log.touch()
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-P", supervised.__file__, str(reading), str(log), *command],
            env=self.environment,
            start_new_session=True,
            pass_fds=[reading],
        )
        os.close(reading)
        try:
            yield process
        finally:
            os.close(writing)
            process.wait()

    def run(self, command: Sequence[str]) -> str:
        self._note(command)
        try:
            done = subprocess.run(
                list(command), env=self.environment, capture_output=True, text=True, timeout=300
            )
        except subprocess.TimeoutExpired:
            raise RoundError(f"'{shlex.join(command)}' did not end within 300 s") from None
        if done.returncode:
            said = " ".join((done.stdout + done.stderr).split())[-600:]
            raise StorageError(f"'{shlex.join(command)}' failed: {said}")
        return done.stdout

    @property
    def _own(self) -> dict[str, str]:
        return {**QUIET, "FLWR_HOME": str(self.home.resolve())}

    def _note(self, command: Sequence[str]) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        environment = [f"{name}={value}" for name, value in self._own.items()]
        with open(self.home / "commands.log", "a", encoding="utf-8") as log:
            log.write(f"{moment} $ {shlex.join([*environment, *command])}\n")


def wait_for(address: Address, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if _listens(address):
            return
        if process.poll() is not None:
            raise RoundError(
                f"the SuperLink ended with status {process.returncode}; is {address} in use?"
            )
        time.sleep(0.1)
    raise RoundError(f"the SuperLink did not listen on {address} within {seconds:g} s")


def wait_until_free(address: Address, seconds: float = 30) -> None:
    """The link of a killed hub listens until it has ended, and would be taken for the new one."""
    end = time.monotonic() + seconds
    while _listens(address):
        if time.monotonic() > end:
            raise ConfigError(
                f"another program is listening on {address}; end it, or choose another address "
                "with --listen"
            )
        time.sleep(0.1)


def _listens(address: Address) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        try:
            return probe.connect_ex((address.host, address.port)) == 0
        except socket.gaierror:
            raise ConfigError(
                f"'{address.host}' is not a name or IPv4 address that this machine knows"
            ) from None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_tidily() -> None:
    """To be terminated is to be interrupted: what was started is ended."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def need_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError(
            "a federation needs Flower; install it with pip install 'fedglean[deploy]'"
        ) from None

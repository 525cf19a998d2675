"""Flower's commands as processes of this one: started quietly, waited for, ended with it."""

import ctypes
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
from typing import Any

from fedglean.errors import ConfigError, RoundError, StorageError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
Show = Callable[[str], None]


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> "Address":
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"'{text}' is not an address; write it as host:port, such as hub.example.org:8000"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def near(self) -> "Address":
        """How this machine itself reaches what listens there."""
        return Address("127.0.0.1", self.port) if self.host == "0.0.0.0" else self


@dataclass(frozen=True)
class Tools:
    """Flower's commands, with everything off that would call home."""

    home: Path
    show: Show

    @property
    def environment(self) -> Mapping[str, str]:
        beside = Path(
            sys.executable
        ).parent  # where pip put Flower's commands, which start each other by name
        path = os.pathsep.join([str(beside), os.environ.get("PATH", "")])
        return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(self.home.resolve())}

    @contextmanager
    def started(
        self, command: Sequence[str], log: Path | None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process that ends when this block does, and when this process is killed."""
        self._print(command)
        with open(log or os.devnull, "ab") as file:
            output: Any = {"stdout": file, "stderr": subprocess.STDOUT} if log else {}
            process = subprocess.Popen(
                list(command),
                env=self.environment,
                start_new_session=True,
                preexec_fn=_as_a_child,
                **output,
            )
        try:
            yield process
        finally:
            _end(process)

    def run(self, command: Sequence[str]) -> str:
        self._print(command)
        try:
            done = subprocess.run(
                list(command), env=self.environment, capture_output=True, text=True, timeout=300
            )
        except subprocess.TimeoutExpired:
            raise RoundError(f"'{shlex.join(command)}' did not end within 300 s") from None
        if done.returncode:
            raise StorageError(
                f"'{shlex.join(command)}' failed: "
                f"{' '.join((done.stdout + done.stderr).split())[-600:]}"
            )
        return done.stdout

    def _print(self, command: Sequence[str]) -> None:
        own = {**QUIET, "FLWR_HOME": str(self.home.resolve())}
        self.show(
            "$ "
            + " ".join([*(f"{name}={value}" for name, value in own.items()), shlex.join(command)])
        )


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
    """The link of a hub that was killed listens on until it has ended, and would be taken for the
    new one.
    """
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


def end_tidily() -> None:
    """To be terminated is to be interrupted: what was started is ended, with all that it
    started.
    """

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not; a process of Flower's may outlive the one that started it, and is in its
    group.
    """
    for kind, wait in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, kind)
            process.wait(wait)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _as_a_child() -> None:
    """A process whose starter was killed is ended too, where it can be asked for: on Linux.

    Flower ends its own by SIGINT, which they would ignore where a script has started this one in
    the background.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def need_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError(
            "a federation needs Flower; install it with pip install 'fedglean[deploy]'"
        ) from None

"""Starts a branch: Flower's SuperNode, again whenever it ends or is stuck."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedglean.errors import StorageError
from fedglean.federation.flower import guarded
from fedglean.federation.flower.guarded import NODE
from fedglean.federation.flower.processes import (
    FlowerCommands,
    Show,
    end_tidily,
    free_port,
    need_flower,
)
from fedglean.federation.flower.watch import Watch
from fedglean.runs.deploy_options import Address, BranchOptions, key_file
from fedglean.sealed import hold, is_held, locked, make_folder, write_whole

#: Seconds until a node is started again, at first and after many times.
PAUSE, LONGEST_PAUSE = 3.0, 30.0


def supernode_command(
    options: BranchOptions, hub: Address, authority: Path | None = None, key: Path | None = None
) -> list[str]:
    """`authority` and `key` are the hub's certificate and this branch's private key."""
    command = [sys.executable, "-P", guarded.__file__, NODE, "--superlink", str(hub)]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--node-config", options.as_text()]
    if authority is None or key is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(key_file(authority).resolve())]
    return [*command, "--auth-supernode-private-key", str(key_file(key).resolve())]


def run_branch(
    command: Sequence[str], state: Path, show: Show, key: Path | None = None, give_up: float = 600.0
) -> int:
    """For a minute after a crash Flower refuses a node that comes back, so it is started again."""
    need_flower()
    end_tidily()
    work = state / "flower"
    make_folder(work)
    with locked(work / "lock", state), _alone_with(key):
        return _run(command, work, show, give_up)


@contextmanager
def _alone_with(key: Path | None) -> Iterator[None]:
    """Two nodes with one key would keep each other from the hub."""
    if key is None:
        yield
        return
    with open(key, "rb") as file:
        if is_held(file):
            raise StorageError(
                f"another branch is running with the key {key}; each branch has a key of its own"
            )
        hold(file)
        yield


def _run(command: Sequence[str], work: Path, show: Show, give_up: float) -> int:
    log, flower = work / "node.log", FlowerCommands(work)
    write_whole(log, b"")
    failing_since, pause = None, PAUSE
    while True:
        began = time.monotonic()
        with flower.start(command, log) as node, Watch(work, log) as watch:
            end = watch_node(node, watch, show)
        now = time.monotonic()
        if now - began > 120:  # it was connected
            failing_since, pause = now, PAUSE
        else:
            failing_since = failing_since or began
            pause = min(1.5 * pause, LONGEST_PAUSE)
        if now - failing_since > give_up:
            show(f"the node has failed to stay connected for {give_up:g} s; giving up")
            return 1
        show(f"{end}; starting it again in {pause:.0f} s")
        time.sleep(pause)


def watch_node(node: "subprocess.Popen[bytes]", watch: Watch, show: Show) -> str:
    """Show what a node logs until it ends, or must be ended; why it was."""
    while True:
        status = node.poll()
        for line in watch.lines():
            show(line)
        if status is not None:
            return f"the node ended with status {status}{watch.cause}"
        if trouble := watch.trouble():
            return trouble
        time.sleep(0.2)

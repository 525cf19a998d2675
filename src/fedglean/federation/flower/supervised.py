"""Runs a command for as long as its starter lives: python supervised.py FD LOG COMMAND.

A process that is killed cannot end its children. So this one stands between it and Flower, and
reads from a pipe, FD, whose other end is open in the starter alone: when the starter ends, however
it ends, the pipe does. (Linux can send a signal at a parent's death; but to the child alone, also
when the starting thread ends, and whoever gets it may ignore it.) The command is then asked to end,
and a little later all that it has started is killed, as it is when the command ends by itself.
Flower starts processes in sessions of their own, which no signal to a group reaches, so on Linux
this process adopts those whose parents end.

What they say is written into LOG, each line with the time and without a terminal's colours.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

#: Seconds that a command has to end by itself.
GRACE = 20.0
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER, of linux/prctl.h


def main() -> None:
    pipe, log, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, for what is ignored would be ignored by the command as well.
        signal.signal(number, lambda number, frame: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    process = subprocess.Popen(
        command, process_group=0, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    writer = Thread(target=_write_log, args=(process.stdout, log), daemon=True)
    writer.start()
    Thread(target=_end_with_starter, args=(pipe, process), daemon=True).start()
    status = process.wait()
    _kill_what_is_left(process.pid)
    writer.join(5)
    sys.exit(status if status >= 0 else 128 - status)


def _end_with_starter(pipe: int, process: "subprocess.Popen[bytes]") -> None:
    os.read(pipe, 1)  # nothing is ever written: this returns when the other end is closed
    process.terminate()
    time.sleep(GRACE)
    process.kill()


def _write_log(lines: IO[bytes], path: str) -> None:
    with open(path, "ab", buffering=0) as log:
        for line in lines:
            moment = time.strftime("%Y-%m-%d %H:%M:%S ").encode()
            with suppress(OSError):  # a full disk must not stop who speaks
                log.write(moment + COLOUR.sub(b"", line))


def _kill_what_is_left(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while children := _children():  # those of whoever is killed become children of this process
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _children() -> list[int]:
    """Of this process, as Linux tells; elsewhere none."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = place.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(place.parent.name))
    return found


if __name__ == "__main__":
    main()

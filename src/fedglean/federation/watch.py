"""Watches whether a node still does its work: what its log says, and whether an app of it is
running.

A SuperNode takes one message at a time and then waits for one answer, whatever it answers. Two
things confuse it for good. Where a hub dies between handing out a message and hearing that it
arrived, the node drops the message, but its app answers it all the same; that answer is sent in the
place of the next one, and from then on every answer waits for another message. And where an app
ends before it has taken its message, the node waits for its answer for ever. In both cases only a
start from anew helps.
"""

import re
import time
from pathlib import Path
from typing import IO, Any, BinaryIO

from fedglean.runs.checkpoint import make_folder

try:
    import fcntl
except ImportError:  # not on Windows: there a silent node is taken to be at work
    fcntl = None  # type: ignore[assignment]

#: What a SuperNode logs, as Flower 1.41 words it.
DROPPED, TAKEN, ANSWERED = (
    re.compile(r"Failed to receive message|Ignoring message"),
    "Received successfully",
    "Sending: ",
)
#: Seconds within which an app must have begun its work.
SILENCE = 120.0


def take_work(folder: Path) -> BinaryIO:
    """Say that an app is at work, until its process ends."""
    make_folder(folder)
    place = open(folder / "at-work", "ab")  # noqa: SIM115
    hold(place)
    return place


def is_at_work(folder: Path) -> bool:
    try:
        with open(folder / "at-work", "rb") as place:
            return is_held(place)
    except FileNotFoundError:
        return False


def hold(file: IO[Any]) -> None:
    """Say that this process works on a file, until it is closed or the process ends."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH)


def is_held(file: IO[Any]) -> bool:
    """Whether another process says so of this very file, not of one that had its name before."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def is_let_go(file: IO[Any], seconds: float) -> bool:
    """Whether no process works on a file any more, within so many seconds; where none can say so,
    none does.
    """
    end = time.monotonic() + seconds
    while fcntl is not None and is_held(file):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Watch:
    """Over one start of a node, whose log is appended to a file in the folder of its apps."""

    def __init__(self, folder: Path, log: Path, silence: float = SILENCE) -> None:
        self.folder, self.silence, self.text = folder, silence, ""
        self.log = open(log, encoding="utf-8", errors="replace")  # noqa: SIM115
        self.log.seek(0, 2)
        self.waiting: float | None = None
        self.dropped = False

    def lines(self) -> list[str]:
        """What the node has logged since the last look."""
        self.text += self.log.read()
        *whole, self.text = self.text.split("\n")
        for line in whole:
            self.dropped |= bool(DROPPED.search(line))
            if TAKEN in line:
                self.waiting = time.monotonic()
            if ANSWERED in line:
                self.waiting = None
        return whole

    def trouble(self) -> str | None:
        """Why the node must be started again, if it must."""
        if self.dropped:
            return "the node dropped a message, and would take its answer for that to the next one"
        if self.waiting is not None and is_at_work(self.folder):
            self.waiting = time.monotonic()
        if self.waiting is not None and time.monotonic() - self.waiting > self.silence:
            return f"the node took a message {self.silence:g} s ago, and nothing is working on it"
        return None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()

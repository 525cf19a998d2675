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
from typing import BinaryIO

from fedglean.sealed import hold, is_held, make_folder

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

"""Watches whether a node still works: what its log says, and whether an app of it runs.

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
from typing import BinaryIO, Self

from fedglean.sealed import hold, is_held, make_folder

#: What a SuperNode logs, as Flower 1.41 and 1.42 word it.
DROPPED = re.compile(r"Failed to receive message|Ignoring message")
TAKEN, ANSWERED = "Received successfully", "Sending: "
#: What it logs before it ends, and what that means.
CAUSES = {
    "Failed to activate SuperNode": "the hub does not let it in: its key was not admitted, another "
    "node with that key is connected, or one was killed less than a minute ago",
    "CERTIFICATE_VERIFY_FAILED": "the hub's certificate has expired or is not of the ca.crt here",
}
#: Seconds within which an app must have begun its work.
SILENCE = 120.0
#: Length of the time at the beginning of a line.
TIME = len("2026-01-01 00:00:00 ")


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
        self.folder, self.silence, self.rest = folder, silence, ""
        self.log = open(log, encoding="utf-8", errors="replace")  # noqa: SIM115
        self.log.seek(0, 2)
        self.waiting: float | None = None
        self.has_dropped = False
        self.cause = ""

    def lines(self) -> list[str]:
        """What the node has logged since the last look, without the times."""
        self.rest += self.log.read()
        *whole, self.rest = self.rest.split("\n")
        for line in whole:
            self.has_dropped |= bool(DROPPED.search(line))
            if TAKEN in line:
                self.waiting = time.monotonic()
            if ANSWERED in line:
                self.waiting = None
            for words, meaning in CAUSES.items():
                if words in line:
                    self.cause = f" ({meaning})"
        return [line[TIME:] for line in whole]

    def trouble(self) -> str | None:
        """Why the node must be started again, if it must."""
        if self.has_dropped:
            return "the node dropped a message, and would take its answer for that to the next one"
        if self.waiting is not None and is_at_work(self.folder):
            self.waiting = time.monotonic()
        if self.waiting is not None and time.monotonic() - self.waiting > self.silence:
            return f"the node took a message {self.silence:g} s ago, and nothing is working on it"
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()

"""What the hub's app tells the process that started it: a file of lines, one JSON object each.

{"told": SENTENCE}                 for people
{"line": LINE, "asked": NUMBER}    a round, as in metrics.jsonl, and how many were asked
{"told": SENTENCE, "code": CODE}   the end
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from fedglean.errors import RoundError, plain
from fedglean.sealed import is_held

#: Seconds within which the hub's app must have been started.
START = 300.0
OnRound = Callable[[Mapping[str, Any], int], None]


class Journal:
    """Writes lines into the file that was there at the start.

    The last words of a hub's app are not for a hub that was started since, which has a new file in
    that place.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def tell(self, sentence: str) -> None:
        self._append({"told": plain(sentence)})

    def show_round(self, line: Mapping[str, Any], asked: int) -> None:
        self._append({"line": line, "asked": asked})

    def end(self, code: int, sentence: str) -> None:
        self._append({"told": plain(sentence), "code": code})

    def _append(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def follow(
    path: Path,
    link_status: Callable[[], int | None],
    show: Callable[[str], None],
    on_round: OnRound,
) -> int:
    """Show what the run tells until it tells its exit code, or is seen to be dead."""
    has_begun, latest, log = False, time.monotonic() + START, path.with_name("superlink.log")
    with open(path, encoding="utf-8") as file:
        rest = ""
        while True:
            is_working = is_held(file)  # before the last words are read
            rest += file.read()
            *whole, rest = rest.split("\n")
            for line in map(json.loads, whole):
                if "line" in line:
                    on_round(line["line"], line["asked"])
                else:
                    show(line["told"])
                if "code" in line:
                    return int(line["code"])
            if (status := link_status()) is not None:
                raise RoundError(f"the SuperLink ended with status {status}; see its log {log}")
            has_begun = has_begun or is_working
            if has_begun and not is_working:
                raise RoundError(
                    "the hub's app was killed, perhaps because memory ran out; the same command "
                    "continues the run"
                )
            if not has_begun and time.monotonic() > latest:
                raise RoundError(
                    f"the hub's app did not start within {START:g} s; see the log {log}"
                )
            time.sleep(0.2)

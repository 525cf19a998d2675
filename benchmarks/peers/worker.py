"""What all workers share: they play in turns, on request, and say what each turn cost.

A worker plays one turn to warm up and reports it; then it waits for a line: `go` is another turn,
anything else the end. Reports are lines of JSON on what was standard output; all that a system
prints itself goes to standard error.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from task import Task

TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> Iterator[list[str]]:
    """The fields of /proc/PID/stat, from the state on, of all processes below one."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stats[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # gone since the listing
    family, fresh = {root}, {root}
    while fresh:
        fresh = {
            pid for pid, fields in stats.items() if int(fields[1]) in fresh and pid not in family
        }
        family |= fresh
        yield from (stats[pid] for pid in fresh)


def children_seconds() -> float:
    """CPU of all processes that this one started, directly or not, including those that have
    ended.
    """
    running = sum(sum(map(int, fields[11:15])) for fields in descendants(os.getpid())) / TICKS
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return running + ended.ru_utime + ended.ru_stime


class Turns:
    """Counts rounds, times turns, talks to the driver."""

    def __init__(self, task: Task, *packages: str) -> None:
        self.size = self.left = task.turn
        self.versions = {name: version(name) for name in packages}
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._start()

    def enough(self) -> bool:
        """To be called after every round; holds the system here until its next turn."""
        self.left -= 1
        if self.left > 0:
            return False
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        cpu += children_seconds() - self.children
        self._say(wall=wall / self.size, cpu=cpu / self.size)
        if sys.stdin.readline().strip() != "go":
            return True
        self._start()
        return False

    def end(self, accuracy: float) -> None:
        """The last report."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._say(accuracy=accuracy, peak_mb=peak, versions=self.versions)

    def _start(self) -> None:
        self.left, self.children = self.size, children_seconds()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def _say(self, **report: Any) -> None:
        self.out.write(json.dumps(report) + "\n")

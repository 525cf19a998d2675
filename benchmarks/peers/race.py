"""One race: workers are started and warmed up one after the other, then play turn by turn, round
robin.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from systems import SIDE, System, interpreter
from task import Task

HERE = Path(__file__).resolve().parent
ALONE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Failed(Exception):
    """A system did not install or run; the reason is one line."""


@dataclass
class Entry:
    """What is known of one system in one race."""

    system: str
    warm_up: dict[str, float] = field(default_factory=dict)
    turns: list[dict[str, float]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None

    def cost(self, kind: str) -> float:
        """Median seconds of `wall` or `cpu` a round."""
        return median(turn[kind] for turn in self.turns)


class Worker:
    """A system's process, as the driver sees it."""

    def __init__(self, system: System, task: Task, data: Path) -> None:
        try:
            python = interpreter(system)
        except subprocess.CalledProcessError as error:
            raise Failed(f"does not install: {_last_line(error.stderr)}") from error
        self.log = SIDE / "logs" / f"{task.name}-{system.name.replace(' ', '-')}.txt"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [python, HERE / f"{system.script}.py", task.name, data]
        command += [system.argument] if system.argument else []
        with self.log.open("w") as log:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=os.environ | ALONE
            )

    def listen(self) -> dict[str, Any]:
        """The worker's next report."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Failed(f"stopped: {_last_line(self.log.read_text())}")
        report: dict[str, Any] = json.loads(line)
        return report

    def ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `listen` finds out why
        return self.listen()

    def leave(self) -> None:
        """Wait for a worker that was told to end; end one that was not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()


def race(task: Task, systems: Sequence[System], data: Path, turns: int) -> list[Entry]:
    """All systems in one run; one that fails is left behind with its reason."""
    entries = {system.name: Entry(system.name) for system in systems}
    workers: dict[str, Worker] = {}
    try:
        for system in systems:
            _attempt(entries[system.name], _start, workers, system, task, data)
        for _ in range(turns):
            for name in list(workers):
                _attempt(entries[name], _turn, workers)
        for name in list(workers):
            _attempt(entries[name], _end, workers)
    finally:
        for worker in workers.values():
            worker.leave()
    return list(entries.values())


def other_seeds(task: Task, data: Path, turns: int, seeds: Sequence[int]) -> list[float]:
    """What the loop by hand comes to after as many rounds with other seeds: which clients came
    decides much of it.
    """
    found = []
    for seed in seeds:
        worker = Worker(System(f"by hand {seed}", "by_hand", str(seed)), task, data)
        worker.listen()
        for _ in range(turns):
            worker.ask("go")
        found.append(float(worker.ask("end")["accuracy"]))
        worker.leave()
    return found


def _attempt(entry: Entry, act: Any, workers: dict[str, Worker], *more: Any) -> None:
    try:
        act(entry, workers, *more)
    except Failed as failure:
        entry.failed = str(failure)
        if worker := workers.pop(entry.system, None):
            worker.leave()


def _start(
    entry: Entry, workers: dict[str, Worker], system: System, task: Task, data: Path
) -> None:
    workers[system.name] = Worker(system, task, data)
    entry.warm_up = workers[system.name].listen()


def _turn(entry: Entry, workers: dict[str, Worker]) -> None:
    entry.turns.append(workers[entry.system].ask("go"))


def _end(entry: Entry, workers: dict[str, Worker]) -> None:
    entry.end = workers[entry.system].ask("end")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"

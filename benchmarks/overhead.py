"""Claim: where clients take more than a few steps, less than a tenth of a round is spent outside
serving requests.

Serving is what an executor does for `Train`, `Predict` and `Statistics`; the rest is the round
loop, the parties' generators, the gate, the sums and the placement. Tests and checkpoints are off.

    OMP_NUM_THREADS=1 python benchmarks/overhead.py

Prints a table and writes benchmarks/results/overhead.json (or --out): CPU seconds over some rounds
after the first few, and the share that is not serving.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from clients import commit, machine
from rich.console import Console
from rich.table import Table

from fedglean.engine.executor import Executor
from fedglean.engine.kinds import EXECUTORS
from fedglean.exchange.states import ClientStates
from fedglean.runs.config import Config, configure
from fedglean.runs.experiment import prepare, settled_for
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round

METHODS = ("semifl", "hassle", "fed-shvr", "fedavg")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=10, help="rounds that are timed, after as many that are not"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "overhead.json"
    )
    options = parser.parse_args()
    rows = [
        measured(method, executor, options.rounds) for method in METHODS for executor in EXECUTORS
    ]
    table = Table(
        "method", "executor", "CPU s a round", "outside serving", title=f"digits, {machine()}"
    )
    for row in rows:
        table.add_row(
            row["method"], row["executor"], f"{row['seconds']:.3f}", f"{100 * row['outside']:.1f} %"
        )
    Console().print(table)
    options.out.write_text(
        json.dumps({"machine": machine(), "commit": commit(), "rows": rows}, indent=1) + "\n"
    )


def measured(method: str, executor: str, rounds: int) -> dict[str, Any]:
    """Rounds that come after as many that are not counted: steps are written down and pseudo-labels
    found there.
    """
    config = configure(
        method,
        data="digits",
        executor=executor,
        device="cpu",
        evaluate_every=10**6,
        rounds=2 * rounds,
    )
    with settled_for(config):
        return _measured(method, executor, rounds, config)


def _measured(method: str, executor: str, rounds: int, config: Config) -> dict[str, Any]:
    experiment = prepare(config)
    progress = Progress(0, experiment.start(), ClientStates(), [])
    served = Stopwatch(experiment.executor)
    for number in range(1, rounds + 1):
        play_round(experiment, progress, number)
    served.seconds, began = 0.0, time.process_time()
    for number in range(rounds + 1, 2 * rounds):  # the last round is tested
        play_round(experiment, progress, number)
    total = time.process_time() - began
    return {
        "method": method,
        "executor": executor,
        "seconds": total / (rounds - 1),
        "outside": 1 - served.seconds / total,
    }


class Stopwatch:
    """Adds up the CPU seconds that an executor takes to answer."""

    def __init__(self, executor: Executor) -> None:
        self.seconds, self.answer = 0.0, executor.answer
        executor.answer = self._timed  # type: ignore[method-assign]

    def _timed(self, calls: Any) -> Any:
        began = time.process_time()
        try:
            return self.answer(calls)
        finally:
            self.seconds += time.process_time() - began


if __name__ == "__main__":
    main()

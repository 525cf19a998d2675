"""The benchmark's command line."""

import argparse
import json

from outcome import circumstances, rows, table
from race import other_seeds, race
from rich.console import Console
from systems import REPOSITORY, SIDE, SYSTEMS
from task import TASKS, write

SEEDS = range(1, 6)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="fedglean and its peers, CPU and wall seconds a round"
    )
    parser.add_argument("tasks", nargs="*", help="S1, S2; both if left out")
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each system")
    names = [system.name for system in SYSTEMS]
    told = "of: " + " ".join(f'"{name}"' for name in names)
    parser.add_argument("--only", nargs="+", default=[], choices=names, metavar="SYSTEM", help=told)
    given = parser.parse_args()
    if unknown := set(given.tasks) - set(TASKS):
        parser.error(f"there is no {min(unknown)}; known are {', '.join(TASKS)}")
    chosen = [system for system in SYSTEMS if not given.only or system.name in given.only]
    report, screen = circumstances() | {"tasks": {}}, Console(width=100)
    for name in given.tasks or TASKS:
        task, data = TASKS[name], SIDE / "data" / name
        write(task, data)
        by_hand = other_seeds(task, data, given.turns, SEEDS)
        found = rows(race(task, chosen, data, given.turns), by_hand)
        report["tasks"][name] = {
            "rounds_a_turn": task.turn,
            "turns": given.turns,
            "by_hand_over_seeds": by_hand,
            "systems": found,
        }
        screen.print(table(task, found))
    path = REPOSITORY / "benchmarks" / "results" / "peers.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    screen.print(f"written to {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()

"""Writes docs/leaderboard.md from docs/results/runs.csv; with --print, to the screen."""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

DOCS = Path(__file__).resolve().parent
SETTING = ("data", "model", "partition", "labels", "clients", "rounds")

HEAD = """# Leaderboard

Every line is one run that anybody can replay: [`runs.csv`](results/runs.csv) has its command, machine, version and the digest of its final model, and

    fedglean verify docs/results/runs.csv --cell CELL --seed SEED --data-root DATA

trains it once more and compares the bits (the same kind of machine, torch and version; elsewhere it says how far apart the last rounds are).
No entry has been replayed by a second person yet.

Methods are ordered by the mean of their last 20 rounds, which no test set chose; the best round did. The settings are those of papers' tables.

**To submit an entry**, train it by [a campaign](howto/campaign.md) with deterministic kernels (the default), see that `verify` finds the same bits, and open a
pull request with the lines of your `runs.csv`, the campaign's file and, for a method of your own, its file.
"""


def rows_of(path: Path) -> list[dict[str, str]]:
    """One line a run: that of its result, the predictor that stands first."""
    rows = []
    seen = set()
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            run = row["cell"], row["seed"]
            is_default = "deterministic=false" not in row["command"]
            if run not in seen and is_default and not is_changed(row):
                rows.append(row)
            seen.add(run)
    return rows


def is_changed(row: Mapping[str, str]) -> bool:
    """Whether a cell is a reading of a paper, not its preset."""
    return row["cell"] != row["command"].split("--preset ")[-1].split(" ")[0].replace("/", "-")


def page(rows: Iterable[Mapping[str, str]]) -> str:
    settings: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        settings.setdefault(tuple(row[key] for key in SETTING), []).append(row)
    parts = [HEAD]
    for setting, of_setting in sorted(settings.items()):
        data, model, partition, labels, clients, rounds = setting
        parts.append(f"\n## {data}, labels {labels}, {partition}\n")
        common = ", ".join(seeds_of(of_setting))
        parts.append(f"{clients} clients, {model}, {rounds} rounds; seed {common}.\n")
        parts.append("| method | mean of the last 20 | last | best | other seeds | cell |")
        parts.append("|---|---|---|---|---|---|")
        parts += lines(of_setting)
    return "\n".join(parts) + "\n"


def seeds_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The seeds that every method has."""
    common = {row["seed"] for row in rows}
    for method in {row["method"] for row in rows}:
        common &= {row["seed"] for row in rows if row["method"] == method}
    return sorted(common)


def lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Ranked over the seeds that all methods have; other seeds are shown beside."""
    methods: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in rows:
        methods.setdefault(row["method"], {})[row["seed"]] = row
    common = seeds_of(rows)
    ranked = []
    for method, runs in methods.items():
        shared = [runs[seed] for seed in common]
        steady = fmean(float(run["mean_of_last_20"]) for run in shared)
        last = fmean(float(run["last"]) for run in shared)
        best = fmean(float(run["best"]) for run in shared)
        others = [
            f"{run['mean_of_last_20']} (seed {seed})"
            for seed, run in runs.items()
            if seed not in common
        ]
        cell = shared[0]["cell"]
        numbers = f"{steady:.1f} | {last:.1f} | {best:.1f}"
        ranked.append((-steady, f"| {method} | {numbers} | {', '.join(others)} | {cell} |"))
    return [line for _, line in sorted(ranked)]


if __name__ == "__main__":
    written = page(rows_of(DOCS / "results/runs.csv"))
    if "--print" in sys.argv:
        print(written, end="")
    else:
        (DOCS / "leaderboard.md").write_text(written, "utf-8")

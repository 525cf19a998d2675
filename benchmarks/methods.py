"""Question: do the unlabelled images help? Every method on one data set, over several seeds, beside its labels alone.

    python benchmarks/methods.py                                        # digits: every method, minutes on two cores
    python benchmarks/methods.py --only semifl,fedmatch --seeds 5
    python benchmarks/methods.py --only hassle,fedmatch,rscfed --set partition=hassle-dirichlet:0.1 --set labels=ALL:10%
    python benchmarks/methods.py --data mnist --data-root DATA --model cnn --rounds-share 0.5 --processes 4   # a GPU

Every method runs with what it brings along (`Entry.defaults`), and methods are grouped by the split that this gives.
Beside each, the labels of that very split alone: hub-only where the hub has them, else FedAvg with the method's own
participation, once with its own optimiser and in two ways that suit few labels (`LABELS_ALONE`); same model, norm and
rounds. The best of these in the mean is the floor: it is chosen on the test set, against the method. Where all images
are labelled nothing is left to help, and the floor says what the method adds to FedAvg.

Accuracy is the mean over a seed's last five tests, for single rounds swing. The gain is paired: the same split, the
same seed; its uncertainty is the half-width of the 95 % t-interval of the mean over seeds, wide for three of them.

Runs lie below --runs and are resumed or taken as they are: remove that folder after a change to a method. Prints
tables in Markdown, progress on stderr, and writes JSON to --out.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from clients import commit, machine
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit

from fedglean import Config, FedgleanError, Result, configure
from fedglean.cli.shared import assignment
from fedglean.config import fingerprint
from fedglean.methods import METHODS
from fedglean.report.terminal import duration
from fedglean.seeds import is_group, resume_seeds, run_seeds

#: Floors and ceilings are measured by nothing else.
REFERENCES = ("fedavg", "fedavg-all", "hub-only", "hub-all")
#: FedAvg on few labels: plain images and a large rate suit an MLP, weak views and momentum a convolutional net.
LABELS_ALONE: tuple[dict[str, Any], ...] = (
    {"epochs": 2, "batch": 32, "rate": 0.1, "momentum": 0.0, "decay": 0.0, "view": "plain"},
    {"epochs": 5, "batch": 10, "rate": 0.03, "momentum": 0.9, "decay": 0.0, "view": "weak"},
)
TESTS = 5


def main() -> None:
    options = parsed()
    configs = {name: configured(name, options) for name in (options.only.split(",") if options.only else METHODS)}
    floors = {name: labels_alone(config) for name, config in configs.items()}
    scores = played([*configs.values(), *(floor for each in floors.values() for floor in each)], options)
    rows = [row(config, floors[name], scores) for name, config in configs.items()]
    show(rows)
    facts = {"machine": machine(), "cores": os.cpu_count(), "commit": commit(), "data": options.data}
    facts["command"] = " ".join(["benchmarks/methods.py", *sys.argv[1:]])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**facts, "seeds": options.seeds, "rows": rows}, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="methods, with commas between them")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--rounds-share", type=float, default=1.0, help="this share of every method's rounds")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root")
    parser.add_argument("--model", help="one for all, in place of each method's own")
    parser.add_argument("--set", action="append", default=[], help="any other key, for all: labels=hub:50, rate=0.1")
    parser.add_argument("--processes", type=int, default=2, help="methods that run at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "methods.json")
    return parser.parse_args()


def configured(name: str, options: argparse.Namespace) -> Config:
    rounds = max(1, round(configure(name).rounds * options.rounds_share))
    given = {"data": options.data, "data_root": options.data_root, "model": options.model, "rounds": rounds}
    return configure(name, **{**given, "checkpoint_every": 10, **dict(map(assignment, options.set))})


def labels_alone(config: Config) -> list[Config]:
    """Ways to train on the labels of a configuration's split."""
    if config.method in REFERENCES:
        return []
    same: dict[str, Any] = {part: asdict(getattr(config, part)) for part in ("data", "split", "model", "engine")}
    if config.split.labels.startswith("hub:"):
        return [configure("hub-only", rounds=config.rounds, **same)]
    own = dict(config.settings) | {"batch": config.settings.get("batch", config.settings.get("labelled_batch"))}
    alike = {name: own[name] for name in ("epochs", "batch", "rate", "momentum", "decay", "view") if own.get(name)}
    active = {"active": own.get("active", 1.0)}
    ways = (alike, *LABELS_ALONE)
    return [configure("fedavg", rounds=config.rounds, **same, settings={**active, **way}) for way in ways]


def played(configs: Iterable[Config], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What came of each configuration, by fingerprint; each is run once, methods side by side in several processes."""
    jobs = {fingerprint(config): config for config in configs}
    scores: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        waiting = {}
        for mark, config in jobs.items():
            folder = options.runs / f"{config.method}-{mark[:12]}-{options.seeds}"
            waiting[pool.submit(trained, config, options.seeds, folder)] = mark
        for done in as_completed(waiting):
            mark = waiting[done]
            scores[mark] = found = done.result()
            told = found.get("error") or f"{spread(found['accuracy'])} %, {duration(found['seconds'])}"
            print(f"{len(scores)}/{len(jobs)} {jobs[mark].method}: {told}", file=sys.stderr, flush=True)
    return scores


def trained(config: Config, seeds: int, folder: Path) -> dict[str, Any]:
    try:
        if is_group(folder):
            group = resume_seeds(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # stopped before its first round
            group = run_seeds(config, seeds, folder)
    except FedgleanError as error:
        return {"error": str(error)}
    return facts_of(group.results)


def facts_of(results: list[Result]) -> dict[str, Any]:
    """Accuracies in per cent, a number a seed; bytes and seconds are of all seeds together."""

    def by_seed(values: Iterable[float]) -> list[float]:
        return [round(100 * value, 2) for value in values]

    tests = [[line["accuracy"] for line in result.history if "accuracy" in line] for result in results]
    names = results[0].names
    curve = [fmean(test[names[0]] for test in at) for at in zip(*tests, strict=True)]
    return {
        "accuracy": by_seed(result.mean_of_last(TESTS) for result in results),
        "last": by_seed(result.last.accuracy for result in results),
        "best": by_seed(result.best.accuracy for result in results),
        "predictors": {name: by_seed(result.mean_of_last(TESTS, name) for result in results) for name in names},
        "curve": by_seed(curve),
        "bytes": [sum(way) for way in zip(*(result.bytes_sent for result in results), strict=True)],
        "seconds": round(sum(result.seconds for result in results), 1),
        "executor": results[0].config.engine.executor,
    }


def row(config: Config, floors: list[Config], scores: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A method, what it reached, and what it gained over the best of its floors."""
    own = {"method": config.method, "rounds": config.rounds, **asdict(config.split), "model": config.model.name}
    own |= {"norm": config.model.norm, "settings": dict(config.settings), **scores[fingerprint(config)]}
    tried = [(floor, scores[fingerprint(floor)]) for floor in floors]
    tried = [(floor, found) for floor, found in tried if "accuracy" in found]
    if not tried or "accuracy" not in own:
        return own
    floor, found = max(tried, key=lambda each: fmean(each[1]["accuracy"]))
    gains = [round(mine - its, 2) for mine, its in zip(own["accuracy"], found["accuracy"], strict=True)]
    return own | {
        "floor": {"method": floor.method, "settings": dict(floor.settings), **found},
        "gain": {"mean": fmean(gains), "within": half_width(gains), "by_seed": gains},
    }


def half_width(values: list[float]) -> float | None:
    """Of the 95 % t-interval of the mean."""
    if len(values) < 2:
        return None
    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))


def show(rows: list[dict[str, Any]]) -> None:
    """A table a split, its methods in the order of METHODS."""
    console = Console(width=200, highlight=False)
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in rows:
        split = f"labels={each['labels']} partition={each['partition']} clients={each['clients']}"
        groups.setdefault(split, []).append(each)
    for split, members in groups.items():
        table = Table("method", "rounds", "accuracy", "last", "labels alone", "gain", "helped", "seconds", box=MARKDOWN)
        for each in members:
            table.add_row(*cells(each))
        console.print(f"\n### `{split}`", table, sep="\n")


def cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["method"], str(row["rounds"]), row["error"], "", "", "", "", ""]
    reached = [row["method"], str(row["rounds"]), spread(row["accuracy"]), spread(row["last"])]
    if "gain" not in row:
        return [*reached, "-", "-", "-", f"{row['seconds']:.0f}"]
    gain, within = row["gain"]["mean"], row["gain"]["within"]
    sure = within is not None and abs(gain) > within
    helped = "unclear" if not sure else "yes" if gain > 0 else "it hurt"
    stated = f"{gain:+.1f}" if within is None else f"{gain:+.1f} ± {within:.1f}"
    return [*reached, spread(row["floor"]["accuracy"]), stated, helped, f"{row['seconds']:.0f}"]


def spread(values: list[float]) -> str:
    """Mean and standard deviation over the seeds."""
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()

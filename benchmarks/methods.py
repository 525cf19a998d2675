"""Question: do the unlabelled images help? Every method on one data set, over several seeds, beside
its labels alone.

    # Digits: every method, minutes on two cores.
    python benchmarks/methods.py
    python benchmarks/methods.py --only semifl,fedmatch --seeds 5
    python benchmarks/methods.py --only hassle,fedmatch,rscfed --set labels=ALL:10% \\
        --set partition=hassle-dirichlet:0.1
    python benchmarks/methods.py --data mnist --data-root DATA --device cuda --model cnn \\
        --rounds-share 0.5
    # A fifth of it.
    python benchmarks/methods.py (the same options) --set images=12000 --set compile=true
    # Trains nothing.
    python benchmarks/methods.py (the same options) --collect --page tables.md

Every method runs with what it brings along (`Entry.defaults`; on data sets larger than digits with
`LARGE` on top), and methods are grouped by the split that this gives. Beside each, the labels of
that very split alone: hub-only where the hub has them, else FedAvg with the method's own
participation, once with its own optimiser and in two ways that suit few labels (`LABELS_ALONE`);
same model, norm and rounds. The best of these in the mean is the floor: it is chosen on the test
set, against the method. Where all images are labelled nothing is left to help, and the floor says
what the method adds to FedAvg.

Accuracy is the mean over a seed's last five tests, for single rounds swing. The gain is paired: the
same split, the same seed; its uncertainty is the half-width of the 95 % t-interval of the mean over
seeds, wide for three of them.

Runs lie below --runs and are resumed or taken as they are: a command that was killed goes on where
it was, and --collect makes the tables of what is finished, for which each one's facts.json is
enough. Remove that folder after a change to a method. Prints a page in Markdown, progress on
stderr, and writes JSON to --out. Its tables stand in docs/results/methods-*.md, below what an
editor made of them.
"""

import argparse
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from io import StringIO
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

from fedglean import Config, FedgleanError, Runs, configure
from fedglean.cli.options import assignment
from fedglean.names import Names
from fedglean.report.terminal import duration
from fedglean.runs.config import fingerprint
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.seeds import resume_seeds, train_seeds
from fedglean.sealed import write_whole

#: What has no row: another form of semifl, which as it stands is semifl, and one of hassle.
LEFT_OUT = ("semifl-table2", "hassle-release")
METHODS = [name for name in Names.of().tables["METHODS"] if name not in LEFT_OUT]
#: Floors and ceilings are measured by nothing else.
REFERENCES = ("fedavg", "fedavg-all", "hub-only", "hub-all")
#: FedAvg on few labels: plain images and a large rate suit an MLP, weak views and momentum a
#: convolutional net.
LABELS_ALONE: tuple[dict[str, Any], ...] = (
    {"epochs": 2, "batch": 32, "rate": 0.1, "momentum": 0.0, "decay": 0.0, "view": "plain"},
    {"epochs": 5, "batch": 10, "rate": 0.03, "momentum": 0.9, "decay": 0.0, "view": "weak"},
)
TESTS = 5

HEAD = """# Every method on {data}, {seeds} seeds

    {command}

Machine: {machine}, {cores} cores; commit {commit}; {training_seconds} s of training in all, all processes added up.

* **Accuracy** is the mean of a seed's last {tests} tests, in %; ± is the standard deviation over the seeds.
  **Last** is the last test.
* **Labels alone** is the best of one (labels at the hub) or up to three ways (labels at clients) to train on just the
  same labels, with the same model, rounds and participation. It is chosen on the test set, so in its favour.
* **Gain** is paired by seed; ± is the half-width of its 95 % interval. **Helped** says "yes" or "it hurt" if that
  interval leaves out zero, else "unclear". Where all images are labelled, the gain is over FedAvg.
* **Compare rows within a table only:** other tables have other labels. **Seconds** are for all seeds together, beside
  other processes.
"""

_MANY_CLIENTS = {"clients": 100, "active": 0.1}
_AT_HUB = {**_MANY_CLIENTS, "labels": "hub:100"}
_TEN_EACH = {"labels": "each:10", "clients": 10}
_FIVE_EACH = {"labels": "each:5", "clients": 20}
# At their own rate of 0.1 both hardly learned anything in ten of thirty rounds.
_SHORT_VISITS = {**_FIVE_EACH, "epochs": 1, "rate": 0.01}
_TEN_OF_TWO = {"labels": "mismatch-digits:10", "clients": 10}
_SHIFTED = {**_TEN_OF_TWO, "perturb": "shift"}
# A tenth of the images, all of them at one client: with fewer, those without labels outweigh it.
_ONE_LABELLED = {"labels": "LU:10%", "clients": 10, "batch": 64}
# At their own 0.03 the small CNN, whose last layer has 1,568 inputs on 28 x 28 pixels, is lost in a
# seed of three.
_ONE_SITE = {"labels": "each:100", "steps": 100, "average": 0.99, "rate": 0.01}
#: On 60,000 images: a hundred labels where methods are meant for few, and clients whose visits stay
#: short.
LARGE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("semifl", "fedavg-fixmatch-hub", "fedmatch-hub", "fedmatch-semifl", "fl2"), _AT_HUB
    ),
    "fedrgd-semifl": {**_AT_HUB, "rate": 0.01},
    "fedsgd-fixmatch": {**_AT_HUB, "steps": 25},
    "fedrgd": {**_MANY_CLIENTS, "labels": "hub:1000", "steps": 16, "batch": 64},
    "hub-only": {"labels": "hub:100", "clients": 100},
    "hub-all": {"clients": 100, "batch": 250},
    # With its own momentum of 0.9 two seeds of three swing by twenty points from round to round.
    "hassle": {
        "labels": "ALL:10%",
        "partition": "hassle-dirichlet:0.1",
        "active": 0.4,
        "batch": 32,
        "rate": 0.1,
        "momentum": 0.0,
        "residual_steps": 10,
        "proximity_weight": 0.1,
    },
    **dict.fromkeys(("fedsem", "fed-mt", "fedavg"), _TEN_OF_TWO),
    **dict.fromkeys(("fed-shvr", "fed-pseudo"), _SHIFTED),
    "fedavg-all": {"clients": 10},
    "fedavg-fixmatch": {**_TEN_EACH, "labelled_batch": 20, "unlabelled_batch": 40},
    "fedavg-mixmatch": {**_TEN_EACH, "batch": 20},
    "fedmatch": {**_FIVE_EACH, "unlabelled_batch": 100},
    **dict.fromkeys(("sage", "proxyfl"), _SHORT_VISITS),
    "rscfed": {**_ONE_LABELLED, "epochs": 1},
    "cbafed": _ONE_LABELLED,
    **dict.fromkeys(
        ("fedprox", "fednova", "scaffold", "fedavgm", "heterofl", "heterofl-semifl"), _MANY_CLIENTS
    ),
    "vrl-sgd": {"clients": 20},
    **dict.fromkeys(
        (
            "pi-model",
            "pseudo-labeling",
            "mean-teacher",
            "mixmatch",
            "uda",
            "remixmatch",
            "fixmatch",
        ),
        _ONE_SITE,
    ),
}


def main() -> None:
    options, began = parsed(), time.time()
    configs = {
        name: configured(name, options)
        for name in (options.only.split(",") if options.only else METHODS)
    }
    floors = {
        name: labels_alone(config) if options.floors else [] for name, config in configs.items()
    }
    scores = played(
        [*configs.values(), *(floor for each in floors.values() for floor in each)], options
    )
    rows = [row(config, floors[name], scores) for name, config in configs.items()]
    facts = {
        "machine": machine(),
        "cores": os.cpu_count(),
        "commit": commit(),
        "data": options.data,
    }
    facts |= {"command": " ".join(["benchmarks/methods.py", *sys.argv[1:]]), "seeds": options.seeds}
    facts["training_seconds"] = round(sum(found.get("seconds", 0) for found in scores.values()))
    facts["wall_seconds"] = round(time.time() - began)
    for path, text in (
        (options.page, page(facts, rows)),
        (options.out, json.dumps({**facts, "rows": rows}, indent=1)),
    ):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    print(page(facts, rows))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="methods, with commas between them")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument(
        "--rounds-share", type=float, default=1.0, help="this share of every method's rounds"
    )
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="cuda: everything stacked, seeds side by side"
    )
    parser.add_argument("--model", help="one for all, in place of each method's own")
    parser.add_argument(
        "--set", action="append", default=[], help="any other key, for all: labels=hub:50, rate=0.1"
    )
    parser.add_argument("--processes", type=int, default=2, help="methods that run at a time")
    parser.add_argument(
        "--no-floors", dest="floors", action="store_false", help="leave the labels alone out"
    )
    parser.add_argument(
        "--collect", action="store_true", help="train nothing, take what is finished"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--page", type=Path, help="write the page here too")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "methods.json"
    )
    return parser.parse_args()


def configured(name: str, options: argparse.Namespace) -> Config:
    rounds = max(1, round(configure(name).rounds * options.rounds_share))
    given = {
        "data": options.data,
        "data_root": options.data_root,
        "model": options.model,
        "rounds": rounds,
    }
    given |= {"device": options.device, "executor": "stack" if options.device == "cuda" else None}
    large = LARGE[name] if options.data != "digits" else {}
    return configure(
        name, **{**large, **given, "checkpoint_every": 10, **dict(map(assignment, options.set))}
    )


def labels_alone(config: Config) -> list[Config]:
    """Ways to train on the labels of a configuration's split."""
    if config.method in REFERENCES:
        return []
    same: dict[str, Any] = {
        part: asdict(getattr(config, part)) for part in ("data", "split", "model", "engine")
    }
    if config.split.labels.startswith("hub:"):
        return [configure("hub-only", rounds=config.rounds, **same)]
    own = dict(config.settings) | {
        "batch": config.settings.get("batch", config.settings.get("labelled_batch"))
    }
    alike = {
        name: own[name]
        for name in ("epochs", "batch", "rate", "momentum", "decay", "view")
        if own.get(name)
    }
    active = {"active": own.get("active", 1.0)}
    ways = (alike, *LABELS_ALONE)
    return [
        configure("fedavg", rounds=config.rounds, **same, settings={**active, **way})
        for way in ways
    ]


def played(configs: Iterable[Config], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What came of each configuration, by fingerprint; each is run once, methods side by side in
    several processes.
    """
    jobs = {fingerprint(config): config for config in configs}
    scores: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        waiting = {}
        for mark, config in jobs.items():
            folder = options.runs / f"{config.method}-{mark[:12]}-{options.seeds}"
            waiting[pool.submit(trained, config, options.seeds, folder, options.collect)] = mark
        for done in as_completed(waiting):
            mark = waiting[done]
            scores[mark] = found = done.result()
            told = (
                found.get("error") or f"{spread(found['accuracy'])} %, {duration(found['seconds'])}"
            )
            print(
                f"{len(scores)}/{len(jobs)} {jobs[mark].method}: {told}",
                file=sys.stderr,
                flush=True,
            )
    return scores


def trained(
    config: Config, seeds: int, folder: Path, only_finished: bool = False
) -> dict[str, Any]:
    """One method's failure is told in its row and on stderr, and the others go on."""
    kept = folder / "facts.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    if only_finished:
        return {"error": "not finished"}
    try:
        if kind_of(folder) is Kind.SEEDS:
            group = resume_seeds(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)  # stopped before its first round
            group = train_seeds(config, seeds, folder)
    except FedgleanError as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    found = facts_of(group)
    write_whole(kept, json.dumps(found).encode())
    return found


def facts_of(results: Runs) -> dict[str, Any]:
    """Accuracies in per cent, a number a seed; bytes and seconds are of all seeds together."""

    def by_seed(values: Iterable[float]) -> list[float]:
        return [round(100 * value, 2) for value in values]

    tests = [
        [line["accuracy"] for line in result.history if "accuracy" in line] for result in results
    ]
    names = results[0].names
    return {
        "accuracy": by_seed(result.mean_of_last(TESTS) for result in results),
        "last": by_seed(result.last.accuracy for result in results),
        "best": by_seed(result.best.accuracy for result in results),
        "predictors": {
            name: by_seed(result.mean_of_last(TESTS, name) for result in results) for name in names
        },
        "curves": {
            name: by_seed(fmean(test[name] for test in at) for at in zip(*tests, strict=True))
            for name in names
        },
        **{part: late_means(results, part) for part in ("pseudo", "report")},
        "bytes": [sum(way) for way in zip(*(result.bytes_sent for result in results), strict=True)],
        "seconds": round(sum(result.seconds for result in results), 1),
        "executor": results[0].config.engine.executor,
    }


def late_means(results: Runs, part: str) -> dict[str, list[float]]:
    """The numbers that the last lines of a history have under `part`, a mean a seed."""
    lines = [
        [line[part] for line in result.history if line.get(part)][-TESTS:] for result in results
    ]
    names = (
        sorted(set.intersection(*(set(line) for seed in lines for line in seed)))
        if all(lines)
        else []
    )
    return {
        name: [round(fmean(line[name] for line in seed), 4) for seed in lines] for name in names
    }


def row(config: Config, floors: list[Config], scores: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A method, what it reached, and what it gained over the best of its floors."""
    own = {
        "method": config.method,
        "rounds": config.rounds,
        **asdict(config.split),
        "model": config.model.name,
    }
    own |= {
        "norm": config.model.norm,
        "settings": dict(config.settings),
        **scores[fingerprint(config)],
    }
    tried = [(floor, scores[fingerprint(floor)]) for floor in floors]
    tried = [(floor, found) for floor, found in tried if "accuracy" in found]
    if not tried or "accuracy" not in own:
        return own
    floor, found = max(tried, key=lambda each: fmean(each[1]["accuracy"]))
    gains = [
        round(mine - its, 2) for mine, its in zip(own["accuracy"], found["accuracy"], strict=True)
    ]
    return own | {
        "floor": {"method": floor.method, "settings": dict(floor.settings), **found},
        "gain": {"mean": fmean(gains), "within": half_width(gains), "by_seed": gains},
    }


def half_width(values: list[float]) -> float | None:
    """Of the 95 % t-interval of the mean."""
    if len(values) < 2:
        return None
    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))


def page(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """What was run, how to read it, and a table a split, its methods in the order of METHODS."""
    written = StringIO()
    console = Console(width=200, highlight=False, file=written)
    console.print(HEAD.format(**facts, tests=TESTS), soft_wrap=True)
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in rows:
        split = f"labels={each['labels']} partition={each['partition']} clients={each['clients']}"
        groups.setdefault(split, []).append(each)
    for split, members in groups.items():
        table = Table(
            "method",
            "rounds",
            "accuracy",
            "last",
            "labels alone",
            "gain",
            "helped",
            "seconds",
            box=MARKDOWN,
        )
        for each in members:
            table.add_row(*cells(each))
        console.print(f"## `{split}`", table, sep="\n")
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())


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

"""Runs as one HTML page that needs nothing else: its own script draws SVG from data inside.

A plotting library would make the page a hundred times as large and is seldom there where a GPU is.
"""

import base64
import hashlib
import html
import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from fedglean.errors import ConfigError, UntrustedError
from fedglean.report import story
from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.tracker import Lines
from fedglean.runs.config import Config, to_toml
from fedglean.runs.run import Line, Run, Runs, Score
from fedglean.runs.verdict import at_one_place
from fedglean.sealed import write_whole
from fedglean.trust import allow

COLUMNS = ("round", "final", "bytes_down", "bytes_up", "seconds", "answered", "abstained")


def write_page(
    folders: Sequence[Path], out: Path, title: str | None = None, trust: bool = False
) -> Path:
    """The page of what folders hold; with `trust`, code that they name may run for it."""
    for folder in folders if trust else ():
        allow(folder)
    data = page_data(gather(folders), ModelReport(), title)
    write_whole(out, page(data).encode(errors="replace"))
    return out


def page(data: Mapping[str, Any]) -> str:
    """The page with its data.

    Whatever names hold, nothing in it ends the script or begins a tag; and should it, the page's
    policy lets a browser use this style and this script alone.
    """
    style, script = _asset("page.css"), _asset("charts.js") + _asset("page.js")
    parts = {
        "title": html.escape(data["title"]),
        "data": embed(data),
        "style": style,
        "script": script,
        "style hash": _hash(style),
        "script hash": _hash(script),
    }
    return re.sub(r"\{\{([\w ]+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files("fedglean.report") / "static" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """As a content security policy names what may stand in the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embed(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(
    found: Sequence[Runs], report: ModelReport, title: str | None = None, live: bool = False
) -> dict[str, Any]:
    """All that the page shows, as JSON takes it."""
    groups = [runs for runs in found if runs]
    coming = [runs for runs in found if not runs]
    about, gaps = story.headline(groups), story.gaps_to_best(groups, report)
    return {
        "title": title or about["sentence"],
        "headline": about,
        "help": story.help_section(groups, report, coming),
        "against": {label: gap and asdict(gap) for label, gap in gaps.items()},
        "groups": [_group(runs, report) for runs in groups],
        "coming": [runs.name for runs in coming],
        "live": live,
    }


def _group(runs: Runs, report: ModelReport) -> dict[str, Any]:
    config, names, hub = runs.config, runs.names, story.hub_of(runs)
    last, best = {}, {}
    for name in names:
        scores = runs.score(name)
        last[name], best[name] = map(_score, scores)
    resume = None if runs.finished else shlex.join(["fedglean", "resume", str(runs.folder)])
    return {
        "label": runs.name,
        "method": config.method,
        "summary": _summary(config),
        "role": story.role_of(runs),
        "federated": not at_one_place(config),
        "data": config.data.title,
        "rounds": config.rounds,
        "finished": runs.finished,
        "failed": runs.failed,
        "predictors": names,
        "last": last,
        "best": best,
        "runs": [_run(run, names) for run in runs],
        "refused": _refusals(runs),
        "holders": report.holders(runs[0]),
        "exam": report.examples(runs[0]),
        "config": to_toml(config),
        "command": _command(runs, report),
        "resume": resume,
        "deployed": hub is not None,
        "exact": config.engine.deterministic or config.engine.device == "cpu",
    }


def _score(score: Score) -> dict[str, Any]:
    spread = score.spread
    seeds = {"values": list(score.values), "rounds": list(score.rounds)}
    return {**seeds, "mean": spread.mean, "deviation": spread.deviation}


def _run(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """The history by column, as metrics.jsonl has it; null where a round has no such number."""
    history = run.history
    accuracies = [line.get("accuracy", {}) for line in history]
    pseudo = [line.get("pseudo", {}) for line in history]
    per_class = run.tested[-1].get("per_class") if run.tested else None
    phases: Counter[str] = Counter()
    for line in history:
        phases.update(line.get("phases", {}))
    return {
        "seed": run.seed,
        **_columns(history, COLUMNS),
        "accuracy": _columns(accuracies, names),
        "pseudo": _columns(pseudo, dict.fromkeys(chain.from_iterable(pseudo))),
        "per_class": per_class[names[0]] if per_class else None,
        "phases": dict(phases),
    }


def _columns(lines: Sequence[Line], names: Iterable[str]) -> dict[str, list[Any]]:
    columns = {}
    for name in names:
        columns[name] = [line.get(name) for line in lines]
    return columns


def _summary(config: Config) -> str:
    with suppress(UntrustedError):
        return str(config.names.find("METHODS", config.method).summary)
    return f"A method of {config.use}, which is not run: --trust allows it."


def _refusals(runs: Runs) -> list[dict[str, Any]]:
    """Refusals by reason, the most frequent first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        for line in run.history:
            for each in line.get("refused", ()):
                found.setdefault(each["reason"], []).append((each["client"], line["round"]))
    table = []
    for reason, cases in found.items():
        clients = sorted({client for client, _ in cases})
        rounds = [number for _, number in cases]
        row = {"reason": reason, "count": len(cases), "clients": clients}
        table.append(row | {"rounds": [min(rounds), max(rounds)]})
    return sorted(table, key=lambda row: -row["count"])


def _command(runs: Runs, report: ModelReport) -> str:
    """What repeats the runs; where they did not draw their splits, one by one from those."""
    hub = story.hub_of(runs)
    if hub is not None:
        again = story.folder_beside(runs, "again")
        return hub.command("--config", f"{runs.folder}/config.toml", out=again)
    first = ["fedglean", "run", "--config", f"{runs[0].folder}/config.toml"]
    if report.draws_its_split(runs[0]):
        return shlex.join([*first, "--seeds", str(len(runs))] if len(runs) > 1 else first)
    commands = []
    for run in runs:
        words = ["fedglean", "run", "--config", f"{run.folder}/config.toml"]
        commands.append(shlex.join([*words, "--split-file", f"{run.folder}/split.json"]))
    return "\n".join(commands)


class Page:
    """A tracker that keeps report.html beside the runs up to date."""

    def __init__(self, pause: float = 10.0) -> None:
        self.pause = pause
        self.written = 0.0
        self.folder: Path | None = None

    def begin(self, runs: Runs) -> None:
        if runs.folder is None:
            raise ConfigError("a page is of what lies in folders; give the run one with `out`")
        self.folder = runs.folder

    def round(self, lines: Lines) -> None:
        if time.monotonic() - self.written > self.pause:
            self._write()

    def end(self, runs: Runs) -> None:
        self._write()

    def _write(self) -> None:
        assert self.folder is not None, "begin comes first"
        write_page([self.folder], self.folder / "report.html")
        self.written = time.monotonic()

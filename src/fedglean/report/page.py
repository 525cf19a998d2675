"""Runs as one HTML page that needs nothing else: its charts are SVG, drawn by a script of its own
from data inside.

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedglean.errors import ConfigError, UntrustedError
from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.story import (
    folder_beside,
    gaps_to_best,
    headline,
    help_section,
    hub_of,
    role_of,
)
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
    """The page of runs, of several seeds or of comparisons. With `trust`, code that they name may
    run for it.
    """
    for folder in folders if trust else ():
        allow(folder)
    data = page_data(gather(folders), ModelReport(), title)
    write_whole(out, page(data).encode(errors="replace"))
    return out


def page(data: Mapping[str, Any]) -> str:
    """The page with its data. Whatever names hold, nothing in it ends the script or begins a tag;
    and should it, the page's policy lets a browser use this style and this script alone.
    """
    style, script = _asset("page.css"), _asset("charts.js") + _asset("page.js")
    parts = {
        "title": html.escape(data["title"]),
        "data": embedded(data),
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


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(
    found: Sequence[Runs], report: ModelReport, title: str | None = None, live: bool = False
) -> dict[str, Any]:
    """All that the page shows, as JSON takes it."""
    groups = [runs for runs in found if runs]
    coming = [runs for runs in found if not runs]
    story, gaps = headline(groups), gaps_to_best(groups, report)
    return {
        "title": title or story["sentence"],
        "headline": story,
        "help": help_section(groups, report, coming),
        "against": {label: gap and asdict(gap) for label, gap in gaps.items()},
        "groups": [_group(runs, report) for runs in groups],
        "coming": [runs.name for runs in coming],
        "live": live,
    }


def _group(runs: Runs, report: ModelReport) -> dict[str, Any]:
    config, names, hub = runs.config, runs.names, hub_of(runs)
    scores = {name: runs.score(name) for name in names}
    resume = shlex.join(["fedglean", "resume", str(runs.folder)])
    return {
        "label": runs.name,
        "method": config.method,
        "summary": _summary(config),
        "role": role_of(runs),
        "federated": not at_one_place(config),
        "data": config.data.title,
        "rounds": config.rounds,
        "finished": runs.finished,
        "failed": runs.failed,
        "predictors": names,
        "last": {name: _score(last) for name, (last, _) in scores.items()},
        "best": {name: _score(best) for name, (_, best) in scores.items()},
        "runs": [_run(run, names) for run in runs],
        "refused": _refused(runs),
        "holders": report.holders(runs[0]),
        "exam": report.examples(runs[0]),
        "config": to_toml(config),
        "command": _command(runs, report),
        "resume": None if runs.finished else resume,
        "deployed": hub is not None,
        "exact": config.engine.deterministic or config.engine.device == "cpu",
    }


def _score(score: Score) -> dict[str, Any]:
    spread = score.spread
    return {
        "values": list(score.values),
        "rounds": list(score.rounds),
        "mean": spread.mean,
        "deviation": spread.deviation,
    }


def _run(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """The history by column, as metrics.jsonl has it; null where a round has no such number."""
    history = run.history
    kinds = list(dict.fromkeys(kind for line in history for kind in line.get("pseudo", {})))
    per_class = run.tested[-1].get("per_class") if run.tested else None
    return {
        "seed": run.seed,
        **{name: [line.get(name) for line in history] for name in COLUMNS},
        "accuracy": _columns(history, "accuracy", names),
        "pseudo": _columns(history, "pseudo", kinds),
        "per_class": per_class[names[0]] if per_class else None,
        "phases": _phases(history),
    }


def _columns(history: Sequence[Line], table: str, names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [line.get(table, {}).get(name) for line in history] for name in names}


def _phases(history: Sequence[Line]) -> dict[str, float]:
    """Seconds by phase, of all rounds together."""
    total: Counter[str] = Counter()
    for line in history:
        total.update(line.get("phases", {}))
    return dict(total)


def _summary(config: Config) -> str:
    with suppress(UntrustedError):
        return str(config.names.find("METHODS", config.method).summary)
    return f"A method of {config.use}, which is not run: --trust allows it."


def _refused(runs: Runs) -> list[dict[str, Any]]:
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
    """What repeats the runs; one by one, from the splits that they were given, where they did not
    draw their own.
    """
    hub = hub_of(runs)
    if hub is not None:
        again = folder_beside(runs, "again")
        return hub.command("--config", f"{runs.folder}/config.toml", out=again)
    first = ["fedglean", "run", "--config", f"{runs[0].folder}/config.toml"]
    if report.draws_its_split(runs[0]):
        return shlex.join(first + ["--seeds", str(len(runs))] * (len(runs) > 1))
    commands = []
    for run in runs:
        files = [
            "--config",
            f"{run.folder}/config.toml",
            "--split-file",
            f"{run.folder}/split.json",
        ]
        commands.append(shlex.join(["fedglean", "run", *files]))
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

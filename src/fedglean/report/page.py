"""Runs as one HTML page that needs nothing else: its charts are SVG, drawn by a script of its own
from data inside.

A plotting library would make the page a hundred times as large and is seldom there where a GPU is.
"""

import html
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedglean.errors import UntrustedError
from fedglean.report.examine import Examiner
from fedglean.report.gather import Coming, Group, Told, survey
from fedglean.report.story import Scores, against_the_best, best, did_it_help, headline, last, role
from fedglean.runs.config import Config, to_toml
from fedglean.runs.verdict import at_one_place
from fedglean.sealed import write_whole
from fedglean.trust import allow

COLUMNS = ("round", "final", "bytes_down", "bytes_up", "seconds", "answered", "abstained")


def write_page(
    folders: Mapping[str, Path] | Sequence[Path],
    out: Path,
    title: str | None = None,
    trust: bool = False,
) -> Path:
    """The page of run folders, groups of seeds or comparisons; in a mapping, by the labels that
    they shall have. With `trust`, code that they name may run for it.
    """
    for folder in _places(folders) if trust else ():
        allow(folder)
    groups, coming = survey(folders)
    write_whole(out, page(told(groups, Examiner(), title, coming=coming)).encode(errors="replace"))
    return out


def _places(folders: Mapping[str, Path] | Sequence[Path]) -> list[Path]:
    return list(folders.values() if isinstance(folders, Mapping) else folders)


def page(data: Mapping[str, Any]) -> str:
    """The page with its data. Whatever names hold, nothing in it ends the script or begins a
    tag.
    """
    assets = files("fedglean.report") / "static"
    names = ("page.html", "page.css", "charts.js", "page.js")
    parts = {name: (assets / name).read_text("utf-8") for name in names}
    parts |= {"title": html.escape(data["title"]), "data": embedded(data)}
    return re.sub(r"\{\{([\w.]+)\}\}", lambda place: parts[place[1]], parts["page.html"])


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def told(
    groups: Sequence[Group],
    examiner: Examiner,
    title: str | None = None,
    live: bool = False,
    coming: Sequence[Coming] = (),
) -> dict[str, Any]:
    """All that the page shows, as JSON takes it."""
    story = headline(groups)
    return {
        "title": title or story["sentence"],
        "headline": story,
        "help": did_it_help(groups, examiner, coming),
        "against": {
            label: gap and asdict(gap) for label, gap in against_the_best(groups, examiner).items()
        },
        "groups": [_group(group, examiner) for group in groups],
        "coming": [each.label for each in coming],
        "live": live,
    }


def _group(group: Group, examiner: Examiner) -> dict[str, Any]:
    first, config = group.runs[0], group.config
    names = next((run.names for run in group.runs if run.tested), [])
    return {
        "label": group.label,
        "method": config.method,
        "summary": _summary(config),
        "role": role(group),
        "federated": not at_one_place(config),
        "data": config.data.title,
        "rounds": config.rounds,
        "finished": group.finished,
        "failed": group.failed,
        "predictors": names,
        "last": {name: _scores(last(group.runs, name)) for name in names},
        "best": {name: _scores(best(group.runs, name)) for name in names},
        "runs": [_run(run, names) for run in group.runs],
        "refused": _refused(group.runs),
        "holders": examiner.holders(first),
        "exam": examiner.exam(first),
        "config": to_toml(config),
        "command": _command(group, examiner),
        "resume": None if group.finished else shlex.join(["fedglean", "resume", str(group.path)]),
        "deployed": group.hub is not None,
        "exact": config.engine.deterministic or config.engine.device == "cpu",
    }


def _scores(scores: Scores) -> dict[str, Any]:
    return {
        "values": scores.values,
        "rounds": scores.rounds,
        "mean": scores.mean,
        "deviation": scores.deviation,
    }


def _run(run: Told, names: Sequence[str]) -> dict[str, Any]:
    """The history by column, as metrics.jsonl has it; null where a round has no such number."""
    history, phases = run.history, [line.get("phases") for line in run.history]
    kinds = list(dict.fromkeys(kind for line in history for kind in line.get("pseudo", {})))
    return {
        "seed": run.config.seed,
        **{name: [line.get(name) for line in history] for name in COLUMNS},
        "accuracy": {
            name: [line.get("accuracy", {}).get(name) for line in history] for name in names
        },
        "pseudo": {kind: [line.get("pseudo", {}).get(kind) for line in history] for kind in kinds},
        "per_class": run.tested[-1]["per_class"][names[0]]
        if run.tested and "per_class" in run.tested[-1]
        else None,
        "phases": {
            name: sum(each[name] for each in phases if each)
            for name in next(filter(None, phases), {})
        },
    }


def _summary(config: Config) -> str:
    with suppress(UntrustedError):
        return str(config.names.find("METHODS", config.method).summary)
    return f"A method of {config.use}, which is not run: --trust allows it."


def _refused(runs: Sequence[Told]) -> list[dict[str, Any]]:
    """Refusals by reason, the most frequent first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        for line in run.history:
            for each in line.get("refused", ()):
                found.setdefault(each["reason"], []).append((each["client"], line["round"]))
    table = [
        {
            "reason": reason,
            "count": len(cases),
            "clients": sorted({client for client, _ in cases}),
            "rounds": [min(round for _, round in cases), max(round for _, round in cases)],
        }
        for reason, cases in found.items()
    ]
    return sorted(table, key=lambda entry: -entry["count"])


def _command(group: Group, examiner: Examiner) -> str:
    """What repeats the runs; one by one, from the splits that they were given, where they did not
    draw their own.
    """
    if group.hub is not None:
        return group.hub.command(
            "--config", str(group.path / "config.toml"), out=f"{group.path.name}-again"
        )
    seeds = ["--seeds", str(len(group.runs))] if len(group.runs) > 1 else []
    if examiner.drawn(group.runs[0]):
        return shlex.join(
            ["fedglean", "run", "--config", str(group.runs[0].folder.path / "config.toml"), *seeds]
        )
    files = [
        [str(run.folder.path / name) for name in ("config.toml", "split.json")]
        for run in group.runs
    ]
    return "\n".join(
        shlex.join(["fedglean", "run", "--config", here, "--split-file", split])
        for here, split in files
    )

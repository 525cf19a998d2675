"""The papers' tables, cell by cell: ours beside what was printed. Every preset whose summary names
a table is a cell.

A number is compared as its paper took it: SemiFL prints each run's best round, chosen on the test
set, Fed-SHVR rounds 1 and 100. Where the paper does not say, HASSLE's are compared with best
rounds, and what SemiFL quotes from others with the last. Our last and best rounds stand beside it
whatever the paper did.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.box import MARKDOWN, ROUNDED, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedglean.data.catalogue import PUBLISHED
from fedglean.data.layouts import find
from fedglean.errors import UNREADABLE, DataError, StorageError, unknown
from fedglean.report.terminal import duration, screen
from fedglean.runs.config import DataConfig
from fedglean.runs.run import Run, Runs
from fedglean.runs.verdict import LABELS_ALONE
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce.made_by import made_by
from fedglean_papers.reproduce.trainings import Training, config_of, note, trained

TITLES = {
    "semifl-table1": "SemiFL, Table 1: against its baselines, by data set, labels and partition",
    "semifl-table2": (
        "SemiFL, Table 2: fine-tuning and pseudo-labels of the global model, with and without"
    ),
    "semifl-table3": "SemiFL, Table 3: batch-norm statistics from the hub or from everyone",
    "semifl-table5": "SemiFL, Table 5: epochs, Mixup, global momentum",
    "fed-shvr-table1": "Fed-SHVR, Table I: soft labels and output regulariser, against FedAvg",
    "hassle-table1": "HASSLE, Table 1: against its baselines, by share of labels",
    "hassle-table2": "HASSLE, Table 2: the two alignments, with and without",
    "hassle-table3": "HASSLE, Table 3: width of the residual models",
    "hassle-table6": "HASSLE, Table 6: threshold of the pseudo-labels",
    "hassle-table7": (
        "HASSLE, Table 7: against its baselines, by heterogeneity (alpha 0.1 is in hassle-table1)"
    ),
}
ROMAN = {"I": "1", "II": "2"}
#: About what one image costs in a step, to begin with the cheap cells; an MLP of 5000 units is 1.
WEIGHT = {"mlp": 1, "lenet": 1, "resnet8": 10, "wrn-28-2": 100, "cnn13": 100, "wrn-28-8": 1500}
FAR = 2.0

Cells = Mapping[str, str]
Line = dict[str, Any]


def cells_of(table: str) -> dict[str, str]:
    """Presets by cell, the cheapest first; of two names for one preset the shorter."""
    paper = table.rpartition("-table")[0]
    chosen: dict[str, str] = {}
    for name in sorted((name for name in PRESETS if _table_of(name) == table), key=len):
        short = re.sub(r"^table\d+-", "", name.removeprefix(f"{paper}/"))
        if not any(PRESETS[other] == PRESETS[name] for other in chosen.values()):
            chosen[short] = name
    return dict(sorted(chosen.items(), key=lambda cell: _effort(cell[1])))


def _table_of(preset: str) -> str | None:
    number = re.match(r"Table (\w+)", PRESETS[preset].summary)
    return f"{preset.partition('/')[0]}-table{ROMAN.get(number[1], number[1])}" if number else None


def _effort(name: str) -> float:
    layer = PRESETS[name].layer
    settings, images = layer["settings"], PUBLISHED[layer["data"]["name"]].sizes[0]
    if PRESETS[name].method in LABELS_ALONE:
        images = _labels(layer["split"], images)
    seen = settings.get("epochs", 1) * settings.get("active", 1.0) * images
    if "steps" in settings:
        seen = settings["steps"] * settings.get("batch", 1) * (1 + settings.get("ratio", 1))
    return float(WEIGHT.get(layer["model"]["name"], 10) * layer["rounds"] * seen)


def _labels(split: Mapping[str, Any], images: int) -> int:
    kind, _, value = split["labels"].partition(":")
    if value.endswith("%"):
        return round(float(value[:-1]) / 100 * images)
    return int(value) * (split["clients"] if kind == "each" else 1) if value.isdigit() else images


def run(table: str, asked: StudyOptions) -> None:
    """Every cell that was asked for, in turn; result.json grows with each."""
    chosen = _present(table, _chosen(table, asked.cell), asked)
    note(_announced(table, chosen, asked), asked)
    lines: list[Line] = []
    for cell, preset in chosen.items():
        found = compared(cell, preset, trained(Training(preset), asked), asked)
        lines += found
        _keep(asked.out / "result.json", table, found)
    told(table, lines, screen())


def _announced(table: str, chosen: Cells, asked: StudyOptions) -> str:
    numbers = sum(len(PRESETS[preset].published or {}) for preset in chosen.values())
    seeds = f"{asked.seeds} seed{'s' if asked.seeds > 1 else ''} each"
    short = (
        f"; shortened to {asked.scale:g} of the rounds: a first look" if asked.scale != 1 else ""
    )
    return (
        f"{table}: {len(chosen)} of {len(cells_of(table))} cells, {numbers} printed numbers, "
        f"{seeds}{short}"
    )


def _chosen(table: str, cell: str | None) -> dict[str, str]:
    cells = cells_of(table)
    chosen = {each: preset for each, preset in cells.items() if cell is None or fnmatch(each, cell)}
    if not chosen:
        raise unknown(f"cell of {table}", str(cell), cells)
    return chosen


def _present(table: str, cells: Cells, asked: StudyOptions) -> dict[str, str]:
    """The cells whose data is there. A cell that was named must be; of a whole table, what is
    missing is left out.
    """
    sets = {cell: config_of(Training(preset), asked).data for cell, preset in cells.items()}
    missing = {data.name for data in sets.values() if data.name in PUBLISHED and not _on_disk(data)}
    if missing:
        root = (
            f"which is not in {asked.data_root}"
            if asked.data_root
            else "in a folder given with --data-root"
        )
        needs = " and ".join(f"{name} ({PUBLISHED[name].fetch})" for name in sorted(missing))
        there = [cell for cell, data in sets.items() if data.name not in missing]
        if asked.cell is not None or not there:
            raise DataError(f"{table} needs {needs}, {root}")
        note(f"{len(cells) - len(there)} cells are left out: they need {needs}, {root}", asked)
        return {cell: cells[cell] for cell in there}
    return dict(cells)


def _on_disk(data: DataConfig) -> bool:
    return data.root is not None and find(PUBLISHED[data.name].layouts, Path(data.root)) is not None


def compared(cell: str, preset: str, results: Runs, asked: StudyOptions) -> list[Line]:
    """A line for each number that was printed of the cell."""
    first = results[0]
    common = {
        "cell": cell,
        "preset": preset,
        "seeds": [result.config.seed for result in results],
        "rounds": first.config.rounds,
        "rounds_published": PRESETS[preset].layer["rounds"],
        "scale": asked.scale,
        "options": dict(asked.options),
        "seconds": round(results.seconds, 3),
        **made_by(),
    }
    lines = []
    for number, published in (PRESETS[preset].published or {}).items():
        name = number if number in first.names else first.names[0]
        last, best = (asdict(score.spread) for score in results.score(name))
        ours = [_as_printed(result, number) for result in results]
        tested = [value for value in ours if value is not None]
        mean = 100 * fmean(tested) if len(tested) == len(ours) else None
        gap = mean - published if mean is not None and asked.is_comparable else None
        line = {
            "number": _convention(number, first.config.rounds),
            "published": published,
            "ours": mean,
            "deviation": 100 * stdev(tested) if len(tested) > 1 else None,
            "difference": gap,
            "far": gap is not None and abs(gap) > FAR,
            "last": {key: 100 * value for key, value in last.items()},
            "best": {key: 100 * value for key, value in best.items()},
        }
        lines.append(common | line)
    return lines


def _convention(number: str, rounds: int) -> str:
    if not number.startswith("round "):
        return "best round" if number == "best" else f"{number}, best round"
    return number if int(number.removeprefix("round ")) <= rounds else f"{number}, here {rounds}"


def _as_printed(result: Run, number: str) -> float | None:
    """The accuracy as the paper took it; a shortened run's last round stands for those that it does
    not reach.
    """
    if not number.startswith("round "):
        return result.score(number if number in result.names else result.names[0])[1].accuracy
    wanted = min(int(number.removeprefix("round ")), result.config.rounds)
    found = [
        line["accuracy"]
        for line in result.history
        if line["round"] == wanted and "accuracy" in line
    ]
    return float(found[-1][result.names[0]]) if found else None


def _keep(path: Path, table: str, lines: Sequence[Line]) -> None:
    """Put the lines in the place of those that the file has of the same cells.

    Runs that were only found again keep their lines, which say what command and commit made them.
    """
    before = json.loads(path.read_bytes())["lines"] if path.exists() else []
    known = {(line["cell"], line["number"]): (line["seconds"], line["seeds"]) for line in before}
    new = [
        line
        for line in lines
        if known.get((line["cell"], line["number"])) != (line["seconds"], line["seeds"])
    ]
    places = {(line["cell"], line["number"]) for line in new}
    kept = [line for line in before if (line["cell"], line["number"]) not in places]
    make_folder(path.parent)
    write_whole(path, json.dumps({"study": table, "lines": kept + new}, indent=1).encode())


HEADINGS = (
    "cell",
    "number",
    "published",
    "ours",
    "difference",
    "last",
    "best",
    "seeds",
    "rounds",
    "time",
)
#: Wide enough for any line.
UNFOLDED = 400


def told(table: str, lines: Sequence[Line], paper: Console) -> None:
    """On paper that is too narrow for them, each line becomes two, and what the runs took is left
    out.
    """
    whole = shown(table, lines)
    fits = paper.measure(whole, options=paper.options.update(width=UNFOLDED)).maximum <= paper.width
    paper.print(whole if fits else shown(table, lines, SIMPLE_HEAD, narrow=True))


def shown(table: str, lines: Iterable[Line], box: Any = ROUNDED, narrow: bool = False) -> Table:
    """Ours by the paper's convention and the difference; our last and best rounds apart."""
    drawn = Table(
        title=TITLES.get(table, table),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    drawn.box = box
    for heading in ("cell", *HEADINGS[2:7]) if narrow else HEADINGS:
        words = heading in ("cell", "number")
        drawn.add_column(
            heading,
            justify="left" if words else "right",
            no_wrap=not (words and narrow),
            overflow="fold",
        )
    lines = list(lines)
    for line in lines:
        cell, number, *values = _texts(line)
        folded = [f"{cell}\n  {number}", *(value.replace(" ±", "\n±") for value in values[:5])]
        drawn.add_row(*folded if narrow else (cell, number, *values))
    remarks = ["* more than two points off"] if any(line["far"] for line in lines) else []
    if any(line["scale"] != 1 for line in lines):
        remarks.append("shortened runs: the published numbers are of all rounds")
    changed = {f"{key}={value}" for line in lines for key, value in line["options"].items()}
    remarks += [f"with {', '.join(sorted(changed))}"] if changed else []
    drawn.caption = "; ".join(remarks) or None
    return drawn


def _texts(line: Line) -> list[str]:
    spread = f" ± {line['deviation']:.1f}" if line["deviation"] is not None else ""
    ours = "not tested" if line["ours"] is None else f"{line['ours']:.1f}{spread}"
    gap = (
        ""
        if line["difference"] is None
        else f"{line['difference']:+.1f}{' *' if line['far'] else ''}"
    )
    whole = line["rounds"] == line["rounds_published"]
    return [
        line["cell"],
        line["number"],
        f"{line['published']:g}",
        ours,
        gap,
        f"{line['last']['mean']:.1f}",
        f"{line['best']['mean']:.1f}",
        str(len(line["seeds"])),
        str(line["rounds"]) if whole else f"{line['rounds']} of {line['rounds_published']}",
        duration(line["seconds"]),
    ]


def as_markdown(path: Path) -> str:
    """A result.json as a page for the docs: the table, then the command, machine and commit of each
    cell.
    """
    try:
        content = json.loads(path.read_bytes())
        table, lines = content["study"], content["lines"]
    except UNREADABLE as error:
        raise StorageError(
            f"{path} is not the result of a table; name a table's result.json"
        ) from error
    text = StringIO()
    drawn = shown(table, lines, MARKDOWN)
    caption, drawn.title, drawn.caption = drawn.caption, None, None
    Console(file=text, width=UNFOLDED).print(drawn)
    body = "\n".join(line.rstrip() for line in text.getvalue().splitlines() if line.strip())
    makers: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        cells = makers.setdefault((line["command"], line["machine"], line["commit"]), [])
        cells += [line["cell"]] if line["cell"] not in cells else []
    origin = [
        f"* {', '.join(cells)}: `{command}` ({machine}, commit {commit})"
        for (command, machine, commit), cells in makers.items()
    ]
    remark = "\n" + str(caption).replace("*", "\\*") + "\n" if caption else ""
    return f"# {TITLES.get(table, table)}\n\n{body}\n{remark}\n" + "\n".join(origin) + "\n"


TABLES: dict[str, Study] = {
    table: Study(title, tuple(cells_of(table)), partial(run, table), page=as_markdown)
    for table, title in TITLES.items()
}

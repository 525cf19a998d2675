"""The papers' tables, cell by cell: ours beside what was printed.

Every preset whose summary names a table is a cell.

A number is compared as its paper took it: SemiFL prints each run's best round, chosen on the test
set, Fed-SHVR rounds 1 and 100. Where the paper does not say, HASSLE's are compared with best
rounds, and what SemiFL quotes from others with the last. Our last and best rounds stand beside it
whatever the paper did.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.box import MARKDOWN, ROUNDED, SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table

from fedglean.data.catalogue import PUBLISHED
from fedglean.data.published import find
from fedglean.errors import UNREADABLE, DataError, StorageError
from fedglean.report.terminal import duration, screen
from fedglean.runs.config import DataConfig
from fedglean.runs.run import Run, Runs
from fedglean.runs.verdict import LABELS_ALONE
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce.provenance import provenance
from fedglean_papers.reproduce.trainings import Training, choose, config_of, note, train

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
    for name in sorted(PRESETS, key=len):
        has_twin = any(PRESETS[other] == PRESETS[name] for other in chosen.values())
        if _table_of(name) == table and not has_twin:
            cell = re.sub(r"^table\d+-", "", name.removeprefix(f"{paper}/"))
            chosen[cell] = name
    return {cell: chosen[cell] for cell in sorted(chosen, key=lambda cell: _effort(chosen[cell]))}


def _table_of(preset: str) -> str | None:
    found = re.match(r"Table (\w+)", PRESETS[preset].summary)
    if found is None:
        return None
    return f"{preset.partition('/')[0]}-table{ROMAN.get(found[1], found[1])}"


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
    if not value.isdigit():
        return images
    return int(value) * (split["clients"] if kind == "each" else 1)


def run(table: str, asked: StudyOptions) -> None:
    """Every cell that was asked for, in turn; result.json grows with each."""
    cells = cells_of(table)
    chosen = choose(asked.cell, list(cells), f"cell of {table}")
    available = _leave_out(table, {cell: cells[cell] for cell in chosen}, asked)
    numbers = sum(len(PRESETS[preset].published or {}) for preset in available.values())
    text = f"{table}: {len(available)} of {len(cells)} cells, {numbers} printed numbers, "
    text += f"{asked.seeds} seed{'s' if asked.seeds > 1 else ''} each"
    if asked.scale != 1:
        text += f"; shortened to {asked.scale:g} of the rounds: a first look"
    note(text, asked)
    lines: list[Line] = []
    for cell, preset in available.items():
        found = compare(cell, preset, train(Training(preset), asked), asked)
        lines += found
        _keep(asked.out / "result.json", table, found)
    print_table(table, lines, screen())


def _leave_out(table: str, cells: Cells, asked: StudyOptions) -> Cells:
    """Cells of a whole table whose data is missing; that of a cell that was named must be there."""
    there, missing = {}, set()
    for cell, preset in cells.items():
        data = config_of(Training(preset), asked).data
        if data.name in PUBLISHED and not _is_on_disk(data):
            missing.add(data.name)
        else:
            there[cell] = preset
    if not missing:
        return cells
    needs = " and ".join(f"{name} ({PUBLISHED[name].fetch})" for name in sorted(missing))
    root = "in a folder given with --data-root"
    if asked.data_root:
        root = f"which is not in {asked.data_root}"
    if asked.cell is not None or not there:
        raise DataError(f"{table} needs {needs}, {root}")
    note(f"{len(cells) - len(there)} cells are left out: they need {needs}, {root}", asked)
    return there


def _is_on_disk(data: DataConfig) -> bool:
    return data.root is not None and find(PUBLISHED[data.name].layouts, Path(data.root)) is not None


def compare(cell: str, preset: str, results: Runs, asked: StudyOptions) -> list[Line]:
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
        **provenance(),
    }
    lines = []
    for number, published in (PRESETS[preset].published or {}).items():
        last, best = results.score(number if number in first.names else first.names[0])
        ours = [accuracy_as_printed(result, number) for result in results]
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
            "last": {key: 100 * value for key, value in asdict(last.spread).items()},
            "best": {key: 100 * value for key, value in asdict(best.spread).items()},
        }
        lines.append(common | line)
    return lines


def _convention(number: str, rounds: int) -> str:
    if not number.startswith("round "):
        return "best round" if number == "best" else f"{number}, best round"
    return number if int(number.removeprefix("round ")) <= rounds else f"{number}, here {rounds}"


def accuracy_as_printed(result: Run, number: str) -> float | None:
    """As the paper took it; a shortened run's last round stands for those beyond it."""
    if not number.startswith("round "):
        return result.score(number if number in result.names else result.names[0])[1].accuracy
    wanted = min(int(number.removeprefix("round ")), result.config.rounds)
    found = None
    for line in result.history:
        if line["round"] == wanted and "accuracy" in line:
            found = float(line["accuracy"][result.names[0]])
    return found


def _keep(path: Path, table: str, lines: Sequence[Line]) -> None:
    """Put the lines in the place of those that the file has of the same cells.

    Runs that were only found again keep their lines, which say what command and commit made them.
    """
    before = json.loads(path.read_bytes())["lines"] if path.exists() else []
    known = {_place(line): (line["seconds"], line["seeds"]) for line in before}
    new = [line for line in lines if known.get(_place(line)) != (line["seconds"], line["seeds"])]
    places = {_place(line) for line in new}
    kept = [line for line in before if _place(line) not in places]
    make_folder(path.parent)
    write_whole(path, json.dumps({"study": table, "lines": kept + new}, indent=1).encode())


def _place(line: Line) -> tuple[str, str]:
    return line["cell"], line["number"]


WORDS = ("cell", "number")
NUMBERS = ("published", "ours", "difference", "last", "best")
#: Wide enough for any line.
UNFOLDED = 400


def print_table(table: str, lines: Sequence[Line], paper: Console) -> None:
    """On paper that is too narrow for them each line becomes two, without what the runs took."""
    whole = table_of(table, lines)
    width = paper.measure(whole, options=paper.options.update(width=UNFOLDED)).maximum
    paper.print(whole if width <= paper.width else narrow_table_of(table, lines))


def table_of(table: str, lines: Sequence[Line], box: Box = ROUNDED) -> Table:
    """Ours by the paper's convention and the difference; our last and best rounds apart."""
    drawn = _new_table(table, lines, box)
    for heading in WORDS:
        drawn.add_column(heading, no_wrap=True)
    for heading in (*NUMBERS, "seeds", "rounds", "time"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        took = (str(len(line["seeds"])), _rounds(line), duration(line["seconds"]))
        drawn.add_row(line["cell"], line["number"], *_numbers(line), *took)
    return drawn


def narrow_table_of(table: str, lines: Sequence[Line]) -> Table:
    drawn = _new_table(table, lines, SIMPLE_HEAD)
    drawn.add_column("cell", overflow="fold")
    for heading in NUMBERS:
        drawn.add_column(heading, justify="right", no_wrap=True, overflow="fold")
    for line in lines:
        numbers = [text.replace(" ±", "\n±") for text in _numbers(line)]
        drawn.add_row(f"{line['cell']}\n  {line['number']}", *numbers)
    return drawn


def _new_table(table: str, lines: Sequence[Line], box: Box) -> Table:
    remarks = []
    if any(line["far"] for line in lines):
        remarks.append("* more than two points off")
    if any(line["scale"] != 1 for line in lines):
        remarks.append("shortened runs: the published numbers are of all rounds")
    changed = {f"{key}={value}" for line in lines for key, value in line["options"].items()}
    if changed:
        remarks.append(f"with {', '.join(sorted(changed))}")
    return Table(
        title=TITLES.get(table, table),
        caption="; ".join(remarks) or None,
        box=box,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )


def _numbers(line: Line) -> list[str]:
    ours, gap = "not tested", ""
    if line["ours"] is not None:
        ours = f"{line['ours']:.1f}"
    if line["deviation"] is not None:
        ours += f" ± {line['deviation']:.1f}"
    if line["difference"] is not None:
        gap = f"{line['difference']:+.1f}"
    if line["far"]:
        gap += " *"
    last, best = line["last"]["mean"], line["best"]["mean"]
    return [f"{line['published']:g}", ours, gap, f"{last:.1f}", f"{best:.1f}"]


def _rounds(line: Line) -> str:
    if line["rounds"] == line["rounds_published"]:
        return str(line["rounds"])
    return f"{line['rounds']} of {line['rounds_published']}"


def as_markdown(path: Path) -> str:
    """A result.json as a page for the docs: the table, and what made each cell."""
    try:
        content = json.loads(path.read_bytes())
        table, lines = content["study"], content["lines"]
    except UNREADABLE as error:
        raise StorageError(
            f"{path} is not the result of a table; name a table's result.json"
        ) from error
    text = StringIO()
    drawn = table_of(table, lines, MARKDOWN)
    caption, drawn.title, drawn.caption = drawn.caption, None, None
    Console(file=text, width=UNFOLDED).print(drawn)
    body = "\n".join(line.rstrip() for line in text.getvalue().splitlines() if line.strip())
    makers: dict[str, list[str]] = {}
    for line in lines:
        maker = f"`{line['command']}` ({line['machine']}, commit {line['commit']})"
        cells = makers.setdefault(maker, [])
        if line["cell"] not in cells:
            cells.append(line["cell"])
    origin = [f"* {', '.join(cells)}: {maker}" for maker, cells in makers.items()]
    remark = "\n" + str(caption).replace("*", "\\*") + "\n" if caption else ""
    return f"# {TITLES.get(table, table)}\n\n{body}\n{remark}\n" + "\n".join(origin) + "\n"


TABLES: dict[str, Study] = {
    table: Study(title, tuple(cells_of(table)), partial(run, table), page=as_markdown)
    for table, title in TITLES.items()
}

"""The hub's round table: a row a round, told as it comes, in a terminal and in a log file alike."""

from collections.abc import Mapping
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from fedglean.report.terminal import duration, percent, size

Row = list[str]
#: Headings and widths; what was refused, and why, takes the rest of the line.
COLUMNS = {
    "round": 9,
    "answered": 16,
    "confident": 9,
    "accuracy": 24,
    "sent": 9,
    "received": 9,
    "time": 10,
}
REFUSED = "refused"


def row_of(line: Mapping[str, Any], asked: int, rounds: int) -> Row:
    """A round's line of metrics.jsonl as cells; who had nothing to say has answered too."""
    answered = f"{line['answered'] + line['abstained']} of {asked}" if asked else ""
    if asked and line["abstained"]:
        answered += f", {line['abstained']} idle"
    pseudo, accuracies = line["pseudo"], line.get("accuracy", {})
    shown = [percent(value) for value in accuracies.values()]
    if len(shown) > 1:
        shown = [f"{name} {percent(value)}" for name, value in accuracies.items()]
    refusals = [f"branch {each['client']}: {each['reason']}" for each in line["refused"]]
    return [
        "final" if line["final"] else f"{line['round']} of {rounds}",
        answered,
        percent(pseudo["confident_share"]) if "confident_share" in pseudo else "",
        ", ".join(shown),
        size(line["bytes_down"]),
        size(line["bytes_up"]),
        duration(line["seconds"]),
        "; ".join(refusals),
    ]


def render_row(row: Row, width: int, heading: bool) -> str:
    """A row under those that were printed before; with the headings above the first one."""
    table = Table(box=None, show_header=heading, padding=(0, 2, 0, 0), header_style="")
    table.pad_edge = False
    for name, wide in COLUMNS.items():
        table.add_column(name, min_width=wide, max_width=wide)
    table.add_column(REFUSED)
    table.add_row(*row)
    text = StringIO()
    Console(file=text, width=width, highlight=False, markup=False, emoji=False).print(table)
    return "\n".join(part.rstrip() for part in text.getvalue().splitlines())

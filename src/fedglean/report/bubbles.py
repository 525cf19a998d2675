"""Who holds what: clients across, classes upwards, area for images (HASSLE's Fig. 7).

A bubble is two half discs: the left one counts labelled images and is dark, the right one
unlabelled images and is pale. So a client with few labels shows a small dark half beside a large
pale one. The hub stands apart on the left, with a scale of its own because it may hold a hundred
times more. Many clients are broken into lines like text.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from fedglean.data.partition import Split
from fedglean.errors import ConfigError
from fedglean.sealed import make_folder

Counts = NDArray[np.int64]

LABELLED, UNLABELLED = "#1b4f8a", "#f2a65a"
ROWS = 30
DRAWN = 200


def bubble_chart(split: Split, labels: Tensor, classes: tuple[str, ...], path: Path | str) -> None:
    """Draw the split into a picture file; images without a known label are counted as 'unknown'."""
    known, hidden = holdings(split, labels, len(classes))
    rows = (*classes, "unknown") if (known + hidden)[:, -1].any() else classes
    holders = list(range(0 if len(split.hub) else 1, min(len(known), DRAWN + 1)))
    longest, cell = (40, 0.36) if len(rows) <= 20 else (100, 0.22)
    count = max(1, -(-len(holders) // longest))  # lines, about equally long
    lines = [part.tolist() for part in np.array_split(np.array(holders, np.int64), count)]
    names = holder_names(split)
    foot = 0.6 + 0.06 * max(0, _longest(names, holders) - 3)
    size = (1.5 + cell * (len(lines[0]) + 1), 0.4 + (foot + cell * len(rows)) * len(lines))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, line in zip(figure.subplots(len(lines), squeeze=False)[:, 0], lines, strict=True):
        _draw(axes, known, hidden, line)
        _label(axes, names, line, rows, columns=len(lines[0]))
    _explain(figure.axes[0], figure.axes[-1], known, hidden)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def check_drawable(path: Path) -> None:
    """Before anything is drawn: a picture's kind is in its ending, and its folder must be there."""
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ConfigError(
            f"'{path}' is not a kind of picture; write it as {path.with_suffix('.png')}"
        )
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it")
    make_folder(path.parent)


def split_table(split: Split, labels: Tensor, classes: tuple[str, ...]) -> Table:
    """One row per holder and a last line for all; of very many clients the first ones."""
    known, hidden = holdings(split, labels, len(classes))
    table = Table(title="who holds what")
    table.add_column("")
    table.add_column("labelled", justify="right")
    table.add_column("unlabelled", justify="right")
    table.add_column("classes")

    def add(name: str, rows: slice, has_classes: bool = True) -> None:
        mine, rest = known[rows], hidden[rows]
        largest = _largest((mine + rest).sum(0), classes) if has_classes else ""
        table.add_row(name, str(mine.sum()), str(rest.sum()), largest)

    names, first = holder_names(split), 0 if len(split.hub) else 1
    for row in range(first, min(len(names), ROWS)):
        add(escape(names[row]), slice(row, row + 1))
    if len(names) > ROWS:
        add(f"and {len(names) - ROWS} more clients", slice(ROWS, None), has_classes=False)
    table.add_section()
    add("all", slice(None))
    return table


def holder_names(split: Split) -> list[str]:
    clients = split.names or tuple(str(number) for number in range(len(split.labelled)))
    return ["hub", *clients]


def holdings(split: Split, labels: Tensor, classes: int) -> tuple[Counts, Counts]:
    """Holders x classes, the hub first; the last column counts images without a known label."""
    known = [_histogram(part, labels, classes) for part in (split.hub, *split.labelled)]
    hidden = [_histogram(part, labels, classes) for part in (split.hub[:0], *split.unlabelled)]
    return np.stack(known), np.stack(hidden)


def _histogram(images: Tensor, labels: Tensor, classes: int) -> Counts:
    kinds = labels[images].cpu()
    kinds = torch.where(kinds < 0, classes, kinds)
    counts: Counts = torch.bincount(kinds, minlength=classes + 1).numpy()
    return counts


def _largest(counts: Counts, classes: tuple[str, ...], shown: int = 3) -> str:
    """How many classes there are, and how many images the largest ones have."""
    names = (*classes, "unknown")
    order = [int(kind) for kind in np.argsort(-counts, kind="stable") if counts[kind]]
    if not order:
        return "-"
    text = ", ".join(f"{escape(names[kind])} ({counts[kind]})" for kind in order[:shown])
    known = sum(kind < len(classes) for kind in order)
    if known:
        text = f"{known}: {text}"
    return f"{text}, ..." if len(order) > shown else text


def _draw(axes: Axes, known: Counts, hidden: Counts, line: list[int]) -> None:
    clients = max(known[1:].max(initial=1), hidden[1:].max(initial=1))
    for side, counts, colour in ((90, known, LABELLED), (270, hidden, UNLABELLED)):
        halves = []
        for holder in line:
            largest = clients if holder else known[0].max()
            for kind in np.flatnonzero(counts[holder]):
                radius = 0.5 * max(0.1, float(np.sqrt(counts[holder, kind] / largest)))
                place = (_place(holder, line), float(kind))
                halves.append(Wedge(place, radius, side, side + 180))
        look: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.3}
        axes.add_collection(PatchCollection(halves, **look))


def _place(holder: int, line: list[int]) -> float:
    """The hub stands half a column away from the first client."""
    return holder - line[0] + (0.5 if holder and not line[0] else 0.0)


def _label(
    axes: Axes, names: list[str], line: list[int], rows: tuple[str, ...], columns: int
) -> None:
    places = [_place(holder, line) for holder in line]
    axes.set_xticks(places, [_plain(names[holder]) for holder in line])
    if _longest(names, line) > 3:
        for tick in axes.get_xticklabels():
            tick.set(rotation=60, rotation_mode="anchor", ha="right", va="center")
    axes.set_yticks(range(len(rows)), [_plain(name) for name in rows])
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlim(-0.8, columns + 0.2)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.set_aspect("equal")
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    if not line[0]:
        axes.axvline(0.75, color="0.6", linewidth=0.8)


def _longest(names: list[str], holders: list[int]) -> int:
    return max(len(names[holder]) for holder in holders)


def _plain(name: str) -> str:
    """Between two dollars matplotlib would read a formula."""
    return name.replace("$", r"\$")


def _explain(first: Axes, last: Axes, known: Counts, hidden: Counts) -> None:
    handles = [
        Wedge((0, 0), 1, 90, 270, facecolor=LABELLED),
        Wedge((0, 0), 1, 270, 450, facecolor=UNLABELLED),
    ]
    look: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
    first.legend(handles, ["labelled", "unlabelled"], frameon=False, fontsize=8, **look)
    largest = max(known[1:].max(initial=0), hidden[1:].max(initial=0))
    text = f"client (largest half disc: {largest} images"
    if known[0].any():
        text += f", hub {known[0].max()}"
    text += ")"
    if len(known) > DRAWN + 1:
        text += f", the first {DRAWN} of {len(known) - 1}"
    last.set_xlabel(text, fontsize=8)

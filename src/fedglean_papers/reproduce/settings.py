"""The papers' tables that print settings, not results: what runs here are given.

The symbols of HASSLE's Tables 4 and 5 are lost in the text that we have; it tells the numbers of
ALL with 10 % alone.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from fedglean.data.labels import make_split
from fedglean.report.terminal import names_table, screen
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.presets import PRESETS
from fedglean_papers.presets.semifl import SETS
from fedglean_papers.reproduce.provenance import provenance

Rows = dict[str, dict[str, Any]]

_BATCHES = ("hub_batch", "client_batch", "epochs")
_STEPS = ("rate", "decay", "momentum", "global_momentum")


def _hyper_parameters() -> Rows:
    """SemiFL's Table 4, column by column, as the presets have it."""
    rows: Rows = {}
    for cell in SETS:
        layer = PRESETS[f"semifl/{cell}-iid"].layer
        rows[cell] = {"model": layer["model"]["name"], "rounds": layer["rounds"]}
        for name in (*_BATCHES, *_STEPS):
            rows[cell][name] = layer["settings"][name]
    return rows


def _clients(layouts: Mapping[str, str]) -> Rows:
    """How many of 20 clients have all, some and no labels, in splits of 50,000 images."""
    classes = torch.arange(50_000) % 10
    rows: Rows = {}
    for name, layout in layouts.items():
        split = make_split(classes, 10, 20, "hassle-dirichlet:0.1", layout, seed=0)
        counts = {"fully labelled": 0, "partially labelled": 0, "unlabelled": 0}
        for labelled, unlabelled in zip(split.labelled, split.unlabelled, strict=True):
            if not len(labelled):
                counts["unlabelled"] += 1
            elif len(unlabelled):
                counts["partially labelled"] += 1
            else:
                counts["fully labelled"] += 1
        rows[name] = counts
    return rows


def _run(name: str, title: str, rows: Callable[[], Rows], asked: StudyOptions) -> None:
    found = rows()
    make_folder(asked.out)
    content = {"study": name, "rows": found, **provenance()}
    write_whole(asked.out / "result.json", json.dumps(content, indent=1).encode())
    lines = []
    for row, values in found.items():
        lines.append((row, ", ".join(f"{key} {value}" for key, value in values.items())))
    screen().print(names_table(title, lines))


def _study(name: str, title: str, rows: Callable[[], Rows]) -> Study:
    return Study(title, (), partial(_run, name, title, rows), takes=())


_SHARES = {share: f"ALL:{share}" for share in ("5%", "10%", "20%")}
_LAYOUTS = {layout: f"{layout}:10%" for layout in ("PL", "LPL", "UPL", "LU", "ALL")}
SETTINGS: dict[str, Study] = {
    "semifl-table4": _study(
        "semifl-table4", "SemiFL, Table 4: hyper-parameters of its presets", _hyper_parameters
    ),
    "hassle-table4": _study(
        "hassle-table4",
        "HASSLE, Table 4: clients by share of labels (ours but for 10 %)",
        partial(_clients, _SHARES),
    ),
    "hassle-table5": _study(
        "hassle-table5",
        "HASSLE, Table 5: clients by layout of annotation, 10 % labelled (ours but for PL and ALL)",
        partial(_clients, _LAYOUTS),
    ),
}

"""The papers' tables that print settings, not results: what a run here is given, to be held against
them.

The symbols of HASSLE's Tables 4 and 5 are lost in the text that we have; it tells the numbers of
ALL with 10 % alone.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from fedglean.data.labels import make_split
from fedglean.report.terminal import names_table, screen
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce.made_by import made_by

Rows = dict[str, dict[str, Any]]


def _hyper_parameters() -> Rows:
    """SemiFL's Table 4, column by column, as the presets have it."""
    rows: Rows = {}
    for cell in (
        "cifar10-250",
        "cifar10-4000",
        "svhn-250",
        "svhn-1000",
        "cifar100-2500",
        "cifar100-10000",
    ):
        layer = PRESETS[f"semifl/{cell}-iid"].layer
        names = (
            "hub_batch",
            "client_batch",
            "epochs",
            "rate",
            "decay",
            "momentum",
            "global_momentum",
        )
        rows[cell] = {"model": layer["model"]["name"], "rounds": layer["rounds"]}
        rows[cell] |= {name: layer["settings"][name] for name in names}
    return rows


def _clients(layouts: Mapping[str, str]) -> Rows:
    """How many of 20 clients are fully, partially and not labelled, counted in splits of 50,000
    images.
    """
    classes = torch.arange(50_000) % 10
    rows: Rows = {}
    for name, layout in layouts.items():
        split = make_split(classes, 10, 20, "hassle-dirichlet:0.1", layout, seed=0)
        kinds = Counter(
            "unlabelled"
            if not len(mine)
            else "partially labelled"
            if len(rest)
            else "fully labelled"
            for mine, rest in zip(split.labelled, split.unlabelled, strict=True)
        )
        rows[name] = {
            kind: kinds[kind] for kind in ("fully labelled", "partially labelled", "unlabelled")
        }
    return rows


def _run(name: str, rows: Callable[[], Rows], asked: StudyOptions) -> None:
    found = rows()
    make_folder(asked.out)
    write_whole(
        asked.out / "result.json",
        json.dumps({"study": name, "rows": found, **made_by()}, indent=1).encode(),
    )
    lines = [
        (row, ", ".join(f"{key} {value}" for key, value in values.items()))
        for row, values in found.items()
    ]
    screen().print(names_table(SETTINGS[name].title, lines))


def _study(name: str, title: str, rows: Callable[[], Rows]) -> Study:
    return Study(title, (), partial(_run, name, rows), takes=())


SETTINGS: dict[str, Study] = {
    "semifl-table4": _study(
        "semifl-table4", "SemiFL, Table 4: hyper-parameters of its presets", _hyper_parameters
    ),
    "hassle-table4": _study(
        "hassle-table4",
        "HASSLE, Table 4: clients by share of labels (ours but for 10 %)",
        partial(_clients, {share: f"ALL:{share}" for share in ("5%", "10%", "20%")}),
    ),
    "hassle-table5": _study(
        "hassle-table5",
        "HASSLE, Table 5: clients by layout of annotation, 10 % labelled (ours but for PL and ALL)",
        partial(
            _clients, {layout: f"{layout}:10%" for layout in ("PL", "LPL", "UPL", "LU", "ALL")}
        ),
    ),
}

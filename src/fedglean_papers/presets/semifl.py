"""SemiFL (2022): Tables 1, 2, 3 and 5, and Fig. 2.

Its rows FedMatch, FedRGD and HeteroFL are methods of its own making, under names of their own here.
The centralised rows are quoted from the literature; their settings are TorchSSL's, as the methods'
defaults are.
"""

from collections.abc import Iterator

from fedglean.studies import Preset
from fedglean_papers.presets.cell import Cell, Layer, all_settings, layer
from fedglean_papers.semifl_rows import HALVES

SPREADS = {"k2": "classes:2", "dir0.1": "dirichlet:0.1", "dir0.3": "dirichlet:0.3", "iid": "iid"}

#: Labels at the hub and its batch size by Table 4 (in the released code svhn-1000 has 10 and
#: cifar100-2500 has 250).
SETS = {
    "cifar10-250": ("cifar10", 250, 10),
    "cifar10-4000": ("cifar10", 4000, 250),
    "svhn-250": ("svhn", 250, 10),
    "svhn-1000": ("svhn", 1000, 250),
    "cifar100-2500": ("cifar100", 2500, 10),
    "cifar100-10000": ("cifar100", 10000, 250),
}

_HETEROFL = all_settings(
    "heterofl-semifl",
    active=0.1,
    rate=0.03,
    annealed=True,
    momentum=0.9,
    nesterov=True,
    keep_momentum=True,
    decay=5e-4,
    clip=1.0,
    weigh_by="nothing",
    global_momentum=0.5,
)

#: Rows of Table 1: where their names begin, and their methods.
_ROWS = {"": "semifl", "fedmatch-": "fedmatch-semifl", "fedrgd-": "fedrgd-semifl"}
# Rows and partitions; columns as in SETS.
_TABLE1 = {
    ("", "k2"): (60.0, 85.3, 87.5, 92.2, 35.2, 62.1),
    ("", "dir0.1"): (63.0, 84.5, 91.2, 93.0, 49.0, 68.0),
    ("", "dir0.3"): (71.9, 88.9, 94.0, 95.2, 54.9, 70.0),
    ("", "iid"): (88.2, 93.1, 96.8, 96.9, 61.3, 72.1),
    ("fedmatch-", "k2"): (41.3, 58.3, 58.2, 84.3, 17.7, 30.5),
    ("fedmatch-", "dir0.1"): (41.6, 58.9, 58.4, 84.3, 17.5, 30.8),
    ("fedmatch-", "dir0.3"): (41.2, 58.4, 59.1, 84.0, 17.8, 31.1),
    ("fedmatch-", "iid"): (41.7, 58.6, 58.6, 84.3, 17.6, 31.3),
    ("fedrgd-", "k2"): (32.7, 48.9, 21.2, 21.6, 13.8, 26.5),
    ("fedrgd-", "dir0.1"): (31.5, 45.2, 20.0, 23.8, 13.4, 23.6),
    ("fedrgd-", "dir0.3"): (32.5, 46.9, 24.8, 22.0, 13.1, 23.8),
    ("fedrgd-", "iid"): (33.2, 47.8, 21.3, 20.7, 13.3, 23.8),
}
_ALL_LABELS = {
    "k2": (51.5, 72.3, 3.1),
    "dir0.1": (85.0, 95.8, 74.0),
    "dir0.3": (91.6, 96.8, 76.9),
    "iid": (94.3, 97.5, 77.8),
}
_FULLY = {"cifar10": 95.3, "svhn": 97.3, "cifar100": 79.3}
_PARTIALLY = (42.4, 76.9, 77.1, 90.4, 27.2, 59.3)

_BATCH = {"labels_from": "batch", "mixup": False}
#: Tables 2 and 5: what is changed, and the columns k2 and iid. In Table 2 only the last row has
#: Mixup, as in the scripts that made it; that row is SemiFL itself.
_SWITCHES: dict[str, tuple[Layer, tuple[float, float]]] = {
    "table2-parallel-batch": ({"combine": "parallel", **_BATCH}, (41.01, 40.26)),
    "table2-parallel-global": ({"combine": "parallel", "mixup": False}, (48.89, 47.03)),
    "table2-fine-tune-batch": ({"combine": "fine-tune", **_BATCH}, (80.42, 81.70)),
    "table2-fine-tune-global": ({}, (85.34, 93.10)),
    "table5-1-epoch": ({"epochs": 1}, (83.4, 88.9)),
    "table5-no-mixup": ({"mixup": False}, (84.2, 91.3)),
    "table5-no-momentum": ({"global_momentum": 0.0}, (85.4, 92.4)),
    "table5-full": ({}, (85.3, 93.1)),
}
#: Whose images give the statistics, and how many labels there are.
_TABLE3 = {
    ("hub", "250"): (60.0, 86.3),
    ("hub", "4000"): (85.5, 93.1),
    ("everyone", "250"): (60.0, 88.2),
    ("everyone", "4000"): (85.3, 93.1),
}

#: Centralised rows; columns as in SETS.
_ONE_SITE = {
    "pi-model": (45.7, 86.0, 81.0, 92.5, 42.8, 62.1),
    "pseudo-labeling": (50.2, 83.9, 79.8, 90.1, 42.6, 63.8),
    "mean-teacher": (67.7, 90.8, 96.4, 96.6, 46.1, 64.2),
    "mixmatch": (89.0, 93.6, 96.0, 96.5, 60.1, 71.7),
    "uda": (91.2, 95.1, 94.3, 97.5, 66.9, 75.5),
    "remixmatch": (94.6, 95.3, 97.1, 97.4, 72.6, 77.0),
    "fixmatch": (94.9, 95.7, 97.5, 97.7, 71.7, 77.4),
}


def cells() -> Iterator[Cell]:
    yield from _table1()
    yield from _switches()
    yield from _references()
    yield from _centralised()


def _wide(data: str) -> str:
    return "wrn-28-8" if data == "cifar100" else "wrn-28-2"


def _cell(
    about: str, method: str, changed: Layer, cell: str, spread: str, published: float | None
) -> Preset:
    """Labels at the hub, its batch size by the number of labels."""
    data, labels, batch = SETS[cell]
    split = {"partition": SPREADS[spread], "labels": f"hub:{labels}", "clients": 100}
    settings = all_settings(method, **changed, hub_batch=batch)
    made = layer(data, _wide(data), "static", split, 800, settings)
    made["strong"] = "semifl-ra"
    summary = f"{about}: {data}, {labels} labels, {spread}"
    return Preset(summary, method, made, None if published is None else {"best": published})


def _table1() -> Iterator[Cell]:
    for (row, spread), published in _TABLE1.items():
        method, changed = _ROWS[row], HALVES if row == "fedrgd-" else {}
        about = f"Table 1, {method} as SemiFL made it" if row else "Table 1"
        for cell, number in zip(SETS, published, strict=True):
            preset = _cell(about, method, changed, cell, spread, number)
            yield f"semifl/{row}{cell}-{spread}", preset
    for spread, numbers in _ALL_LABELS.items():
        for data, number in zip(_FULLY, numbers, strict=True):
            split = {"partition": SPREADS[spread], "labels": "all", "clients": 100}
            made = layer(data, _wide(data), "static", split, 800, _HETEROFL)
            about = f"Table 1, all labels at the clients (the row HeteroFL): {data}, {spread}"
            preset = Preset(about, "heterofl-semifl", made, {"best": number})
            yield f"semifl/heterofl-{data}-{spread}", preset


def _switches() -> Iterator[Cell]:
    """SemiFL with one thing changed, CIFAR-10."""
    for name, (changed, numbers) in _SWITCHES.items():
        table, _, row = name.removeprefix("table").partition("-")
        about = f"Table {table}, {row}"
        method = "semifl-table2" if "combine" in changed else "semifl"
        for spread, number in zip(("k2", "iid"), numbers, strict=True):
            preset = _cell(about, method, changed, "cifar10-4000", spread, number)
            yield f"semifl/{name}-{spread}", preset
    for (source, labels), numbers in _TABLE3.items():
        about = f"Table 3, statistics from {source}"
        changed = {"statistics_from": source}
        for spread, number in zip(("k2", "iid"), numbers, strict=True):
            preset = _cell(about, "semifl", changed, f"cifar10-{labels}", spread, number)
            yield f"semifl/table3-{source}-{labels}-{spread}", preset
    for spread in ("k2", "iid"):
        about = "Fig. 2, an exchange a batch (steps a round are ours)"
        preset = _cell(about, "fedsgd-fixmatch", {}, "cifar10-4000", spread, None)
        yield f"semifl/fedsgd-fixmatch-{spread}", preset


def _references() -> Iterator[Cell]:
    """Supervised at the hub, batches by the released code's rule.

    Table 2 prints two of Table 1's with one more digit.
    """
    for (cell, (data, labels, _)), number in zip(SETS.items(), _PARTIALLY, strict=True):
        about = f"Table 1, only the {labels} labels, at the hub"
        batch = 10 if labels <= 1000 else 250
        preset = _supervised("hub-only", data, f"hub:{labels}", batch, about, number)
        yield f"semifl/partially-{cell}", preset
    for data, number in _FULLY.items():
        about = "Table 1, all labels, at the hub"
        yield f"semifl/fully-{data}", _supervised("hub-all", data, "all-hub", 250, about, number)
    about = "Table 2, only the 4000 labels, at the hub"
    preset = _supervised("hub-only", "cifar10", "hub:4000", 250, about, 76.92)
    yield "semifl/table2-partially", preset
    about = "Table 2, all labels, at the hub"
    yield "semifl/table2-fully", _supervised("hub-all", "cifar10", "all-hub", 250, about, 95.33)


def _supervised(
    method: str, data: str, labels: str, batch: int, about: str, number: float
) -> Preset:
    settings = all_settings(method, epochs=1, rate=0.1, batch=batch)
    made = layer(data, _wide(data), "static", {"labels": labels, "clients": 100}, 400, settings)
    return Preset(f"{about}: {data}", method, made, {"best": number})


def _centralised() -> Iterator[Cell]:
    for method, published in _ONE_SITE.items():
        for (cell, (data, labels, _)), number in zip(SETS.items(), published, strict=True):
            split = {"partition": "iid", "labels": f"each:{labels}", "clients": 1}
            settings = all_settings(method)
            if data == "cifar100":
                settings["decay"] = 1e-3
            made = layer(data, _wide(data), "static", split, 1024, settings)
            made["strong"] = "fixmatch-ra"
            about = f"Table 1, {method} at one site, quoted there; TorchSSL's settings: {data}, "
            preset = Preset(f"{about}{labels} labels", method, made, {"round 1024": number})
            yield f"semifl/{method}-{cell}", preset

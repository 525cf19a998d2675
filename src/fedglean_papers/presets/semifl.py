"""SemiFL (2022): Tables 1, 2, 3 and 5, and Fig. 2.

Its rows FedMatch, FedRGD and HeteroFL are methods of its own making, under names of their own here.
The centralised rows are quoted from the literature; their settings are TorchSSL's, as the methods'
defaults are.
"""

from collections.abc import Iterator

from fedglean.studies import Preset
from fedglean_papers.presets.cell import Cell, Layer, layer

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

_VISITS = {"epochs": 5, "active": 0.1, "rate": 0.03, "momentum": 0.9, "decay": 5e-4, "clip": 1.0}
_MIX = {"threshold": 0.95, "mixup": True, "mix_concentration": 0.75}
_HUB = {"global_momentum": 0.5, "keep_momentum": True}
_TEST = {"statistics_from": "everyone", "statistics_formula": "cumulative"}
_SEMIFL = {**_VISITS, "client_batch": 10, **_MIX, **_HUB, **_TEST}
_HETEROFL = {**_VISITS, "annealed": True, "batch": 10, "view": "weak"}
_HETEROFL |= {
    "nesterov": True,
    "keep_momentum": True,
    "weigh_by": "nothing",
    "global_momentum": 0.5,
}
_FEDMATCH = {**_VISITS, "batch": 10, "threshold": 0.95, "global_momentum": 0.5}
_FEDRGD = {**_SEMIFL, "combine": "halves", "labels_from": "batch", "mixup": False}
_FEDSGD = {
    "active": 0.1,
    "steps": 250,
    "threshold": 0.95,
    "unlabelled_weight": 1.0,
    "client_batch": 10,
}
_FEDSGD |= {name: _VISITS[name] for name in ("rate", "momentum", "decay", "clip")}

# Method, settings and the columns of Table 1 by partition.
_TABLE1: dict[str, tuple[str, Layer, dict[str, tuple[float, ...]]]] = {
    "": (
        "semifl",
        _SEMIFL,
        {
            "k2": (60.0, 85.3, 87.5, 92.2, 35.2, 62.1),
            "dir0.1": (63.0, 84.5, 91.2, 93.0, 49.0, 68.0),
            "dir0.3": (71.9, 88.9, 94.0, 95.2, 54.9, 70.0),
            "iid": (88.2, 93.1, 96.8, 96.9, 61.3, 72.1),
        },
    ),
    "fedmatch-": (
        "fedmatch-semifl",
        _FEDMATCH,
        {
            "k2": (41.3, 58.3, 58.2, 84.3, 17.7, 30.5),
            "dir0.1": (41.6, 58.9, 58.4, 84.3, 17.5, 30.8),
            "dir0.3": (41.2, 58.4, 59.1, 84.0, 17.8, 31.1),
            "iid": (41.7, 58.6, 58.6, 84.3, 17.6, 31.3),
        },
    ),
    "fedrgd-": (
        "fedrgd-semifl",
        _FEDRGD,
        {
            "k2": (32.7, 48.9, 21.2, 21.6, 13.8, 26.5),
            "dir0.1": (31.5, 45.2, 20.0, 23.8, 13.4, 23.6),
            "dir0.3": (32.5, 46.9, 24.8, 22.0, 13.1, 23.8),
            "iid": (33.2, 47.8, 21.3, 20.7, 13.3, 23.8),
        },
    ),
}
_ALL_LABELS = {
    "k2": (51.5, 72.3, 3.1),
    "dir0.1": (85.0, 95.8, 74.0),
    "dir0.3": (91.6, 96.8, 76.9),
    "iid": (94.3, 97.5, 77.8),
}
_FULLY = {"cifar10": 95.3, "svhn": 97.3, "cifar100": 79.3}
_PARTIALLY = (42.4, 76.9, 77.1, 90.4, 27.2, 59.3)

# Components of Table 2; only the last row has Mixup, as in the scripts that made the table. It is
# SemiFL itself.
_TABLE2: dict[str, tuple[str, Layer, tuple[float, float]]] = {
    "parallel-batch": (
        "semifl-table2",
        {"combine": "parallel", "labels_from": "batch", "mixup": False},
        (41.01, 40.26),
    ),
    "parallel-global": (
        "semifl-table2",
        {"combine": "parallel", "labels_from": "global", "mixup": False},
        (48.89, 47.03),
    ),
    "fine-tune-batch": (
        "semifl-table2",
        {"combine": "fine-tune", "labels_from": "batch", "mixup": False},
        (80.42, 81.70),
    ),
    "fine-tune-global": ("semifl", {}, (85.34, 93.10)),
}
_TABLE3: dict[str, dict[str, tuple[float, float]]] = {
    "hub": {"250": (60.0, 86.3), "4000": (85.5, 93.1)},
    "everyone": {"250": (60.0, 88.2), "4000": (85.3, 93.1)},
}
_TABLE5: dict[str, tuple[str, Layer, tuple[float, float]]] = {
    "1-epoch": ("semifl", {"epochs": 1}, (83.4, 88.9)),
    "no-mixup": ("semifl", {"mixup": False}, (84.2, 91.3)),
    "no-momentum": ("semifl", {"global_momentum": 0.0}, (85.4, 92.4)),
    "full": ("semifl", {}, (85.3, 93.1)),
}

_LONG = {"steps": 1024, "batch": 64, "rate": 0.03, "momentum": 0.9, "decay": 5e-4, "average": 0.999}
_ALIGNED = {"mix_weight": 1.5, "strong_weight": 0.5, "rotation_weight": 0.5, "alignment": 0.999}
_ONE_SITE: dict[str, tuple[Layer, tuple[float, ...]]] = {
    "pi-model": ({"ratio": 1, "weight": 10.0, "ramp": 0.4}, (45.7, 86.0, 81.0, 92.5, 42.8, 62.1)),
    "pseudo-labeling": (
        {"ratio": 1, "weight": 1.0, "ramp": 0.4, "threshold": 0.95},
        (50.2, 83.9, 79.8, 90.1, 42.6, 63.8),
    ),
    "mean-teacher": (
        {"ratio": 1, "weight": 50.0, "ramp": 0.4},
        (67.7, 90.8, 96.4, 96.6, 46.1, 64.2),
    ),
    "mixmatch": (
        {"ratio": 1, "weight": 100.0, "ramp": 0.4, "temperature": 0.5, "concentration": 0.5},
        (89.0, 93.6, 96.0, 96.5, 60.1, 71.7),
    ),
    "uda": (
        {"ratio": 7, "weight": 1.0, "temperature": 0.4, "threshold": 0.8, "signal": "none"},
        (91.2, 95.1, 94.3, 97.5, 66.9, 75.5),
    ),
    "remixmatch": (
        {"ratio": 1, **_ALIGNED, "ramp": 1 / 64, "temperature": 0.5, "concentration": 0.75},
        (94.6, 95.3, 97.1, 97.4, 72.6, 77.0),
    ),
    "fixmatch": (
        {"ratio": 7, "weight": 1.0, "threshold": 0.95},
        (94.9, 95.7, 97.5, 97.7, 71.7, 77.4),
    ),
}


def cells() -> Iterator[Cell]:
    yield from _table1()
    yield from _switches()
    yield from _references()
    yield from _centralised()


def _wide(data: str) -> str:
    return "wrn-28-8" if data == "cifar100" else "wrn-28-2"


def _cell(
    about: str, method: str, settings: Layer, cell: str, spread: str, published: float | None
) -> Preset:
    """Labels at the hub, its batch size by the number of labels."""
    data, labels, batch = SETS[cell]
    split = {"partition": SPREADS[spread], "labels": f"hub:{labels}", "clients": 100}
    made = {
        **layer(data, _wide(data), "static", split, 800, {"hub_batch": batch, **settings}),
        "strong": "semifl-ra",
    }
    summary = f"{about}: {data}, {labels} labels, {spread}"
    return Preset(summary, method, made, None if published is None else {"best": published})


def _table1() -> Iterator[Cell]:
    for row, (method, settings, columns) in _TABLE1.items():
        about = f"Table 1, {method} as SemiFL made it" if row else "Table 1"
        for spread, published in columns.items():
            for cell, number in zip(SETS, published, strict=True):
                yield (
                    f"semifl/{row}{cell}-{spread}",
                    _cell(about, method, settings, cell, spread, number),
                )
    for spread, numbers in _ALL_LABELS.items():
        for data, number in zip(_FULLY, numbers, strict=True):
            split = {"partition": SPREADS[spread], "labels": "all", "clients": 100}
            made = layer(data, _wide(data), "static", split, 800, _HETEROFL)
            about = f"Table 1, all labels at the clients (the row HeteroFL): {data}, {spread}"
            yield (
                f"semifl/heterofl-{data}-{spread}",
                Preset(about, "heterofl-semifl", made, {"best": number}),
            )


def _switches() -> Iterator[Cell]:
    """SemiFL with one thing changed, CIFAR-10."""

    for table, rows in (("2", _TABLE2), ("5", _TABLE5)):
        for row, (method, changed, numbers) in rows.items():
            settings = {**_SEMIFL, **changed}
            for spread, number in zip(("k2", "iid"), numbers, strict=True):
                about = f"Table {table}, {row}"
                preset = _cell(about, method, settings, "cifar10-4000", spread, number)
                yield f"semifl/table{table}-{row}-{spread}", preset
    for source, columns in _TABLE3.items():
        settings = {**_SEMIFL, "statistics_from": source}
        for labels, numbers in columns.items():
            for spread, number in zip(("k2", "iid"), numbers, strict=True):
                about = f"Table 3, statistics from {source}"
                preset = _cell(about, "semifl", settings, f"cifar10-{labels}", spread, number)
                yield f"semifl/table3-{source}-{labels}-{spread}", preset
    for spread in ("k2", "iid"):
        about = "Fig. 2, an exchange a batch (steps a round are ours)"
        preset = _cell(about, "fedsgd-fixmatch", _FEDSGD, "cifar10-4000", spread, None)
        yield f"semifl/fedsgd-fixmatch-{spread}", preset


def _references() -> Iterator[Cell]:
    """Supervised at the hub, batches by the released code's rule; Table 2 prints two with one more
    digit.
    """

    def supervised(
        method: str, data: str, labels: str, batch: int, about: str, number: float
    ) -> Preset:
        settings = {
            "epochs": 1,
            "rate": 0.1,
            "batch": batch,
            "momentum": 0.9,
            "decay": 5e-4,
            "clip": 1.0,
        }
        made = layer(data, _wide(data), "static", {"labels": labels, "clients": 100}, 400, settings)
        return Preset(f"{about}: {data}", method, made, {"best": number})

    for (cell, (data, labels, _)), number in zip(SETS.items(), _PARTIALLY, strict=True):
        about, batch = (
            f"Table 1, only the {labels} labels, at the hub",
            10 if labels <= 1000 else 250,
        )
        yield (
            f"semifl/partially-{cell}",
            supervised("hub-only", data, f"hub:{labels}", batch, about, number),
        )
    for data, number in _FULLY.items():
        about = "Table 1, all labels, at the hub"
        yield f"semifl/fully-{data}", supervised("hub-all", data, "all-hub", 250, about, number)
    about = "Table 2, only the 4000 labels, at the hub"
    yield (
        "semifl/table2-partially",
        supervised("hub-only", "cifar10", "hub:4000", 250, about, 76.92),
    )
    about = "Table 2, all labels, at the hub"
    yield "semifl/table2-fully", supervised("hub-all", "cifar10", "all-hub", 250, about, 95.33)


def _centralised() -> Iterator[Cell]:
    for method, (own, published) in _ONE_SITE.items():
        for (cell, (data, labels, _)), number in zip(SETS.items(), published, strict=True):
            split = {"partition": "iid", "labels": f"each:{labels}", "clients": 1}
            settings = {**_LONG, **own} | ({"decay": 1e-3} if data == "cifar100" else {})
            made = {
                **layer(data, _wide(data), "static", split, 1024, settings),
                "strong": "fixmatch-ra",
            }
            about = (
                f"Table 1, {method} at one site, quoted there; TorchSSL's settings: {data}, "
                f"{labels} labels"
            )
            yield f"semifl/{method}-{cell}", Preset(about, method, made, {"round 1024": number})

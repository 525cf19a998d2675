"""HASSLE (2023): Tables 1, 2, 3, 6 and 7, and Figs. 6, 10 and 11.

The paper gives rate, momentum, batch and rounds for all methods, and no more of its baselines. The
rest is the baseline's own; FedProx's weight is that of the same group's CReFF. FedMatch stays with
its own optimiser: at the paper's rate its pull of one part of the weights to the other would not
converge.

What HASSLE leaves open itself has the value of its released code: ten epochs, ten steps of the
residuals as in that code's README, gamma on the squared distance, two temperatures.
"""

from collections.abc import Iterator

from fedglean.studies import Preset
from fedglean_papers.presets.cell import Cell, Layer, all_settings, layer

_SETS = {
    "fmnist": ("fashion-mnist", "lenet"),
    "cifar10": ("cifar10", "resnet8"),
    "cifar100": ("cifar100", "resnet8"),
}
_VISITS = {"epochs": 10, "active": 0.4, "rate": 0.1, "momentum": 0.9}
_LOCAL = {**_VISITS, "batch": 128}
_RSCFED = {"epochs": 10, "labelled_rate": 0.1, "unlabelled_rate": 0.1, "momentum": 0.9}

#: What is told of a baseline, and what is not its own.
_BASELINES: dict[str, tuple[str, Layer]] = {
    "fedavg": ("FedAvg on the labels", _LOCAL),
    "fedprox": ("FedProx on the labels, CReFF's weight", _LOCAL),
    "fedavg-mixmatch": ("FedAvg+MixMatch, its own weight", _LOCAL),
    "fedavg-fixmatch": ("FedAvg+FixMatch, its own threshold", {**_VISITS, "decay": 0.0}),
    "fedmatch": ("FedMatch, its own optimiser", {"epochs": 10, "active": 0.4}),
    "rscfed": ("RSCFed, its own subsets", {**_RSCFED, "batch": 128}),
}

# SM, UM and EM of HASSLE, then the baselines in the order above.
_TABLE1: dict[str, tuple[float, ...]] = {
    "fmnist-5": (77.83, 77.98, 78.04, 69.09, 69.71, 70.45, 73.09, 75.54, 75.26),
    "fmnist-10": (83.22, 83.91, 84.04, 78.25, 79.14, 79.67, 80.83, 82.87, 82.54),
    "fmnist-20": (86.15, 86.34, 86.67, 82.95, 83.17, 83.45, 83.93, 85.05, 85.14),
    "cifar10-5": (60.47, 60.98, 61.27, 50.23, 50.76, 51.85, 52.18, 56.67, 55.71),
    "cifar10-10": (66.34, 67.14, 67.79, 57.85, 58.43, 59.18, 61.06, 63.38, 63.76),
    "cifar10-20": (80.78, 81.16, 81.52, 77.65, 78.22, 66.28, 78.34, 79.73, 79.33),
    "cifar100-5": (25.52, 26.15, 26.58, 17.36, 17.51, 17.96, 17.96, 21.27, 19.41),
    "cifar100-10": (34.11, 34.25, 34.33, 28.43, 28.76, 25.11, 29.56, 32.58, 31.43),
    "cifar100-20": (43.05, 43.95, 44.24, 39.52, 39.89, 40.53, 41.94, 42.72, 42.21),
}
# The columns for 0.1 are those of Table 1.
_TABLE7: dict[str, tuple[float, ...]] = {
    "fmnist-10-alpha0.01": (72.43, 73.54, 73.79, 62.14, 63.64, 65.57, 68.19, 70.28, 69.16),
    "fmnist-10-alpha1": (87.18, 87.34, 87.51, 82.51, 83.37, 83.41, 85.79, 86.51, 86.12),
    "cifar10-10-alpha0.01": (62.19, 63.17, 63.27, 35.21, 36.39, 45.95, 57.46, 60.17, 60.77),
    "cifar10-10-alpha1": (73.67, 74.61, 74.89, 67.79, 68.94, 69.42, 71.46, 72.29, 72.38),
    "cifar100-10-alpha0.01": (31.84, 32.17, 32.56, 22.87, 23.28, 25.85, 27.54, 29.95, 29.36),
    "cifar100-10-alpha1": (35.09, 35.74, 35.95, 29.45, 30.94, 31.34, 33.16, 34.53, 34.09),
}
#: Printed so, but out of line with their rows: likely misprints.
_ODD = ("fedavg-mixmatch-cifar10-20", "fedavg-mixmatch-cifar100-10", "fedavg-fixmatch-cifar100-5")
_ABLATIONS: dict[str, tuple[str, Layer]] = {
    "table2-none": ("neither alignment", {"residual": False, "proximity": False}),
    "table2-mpa": ("proximity alignment alone", {"residual": False}),
    "table2-gra": ("residual alignment alone", {"proximity": False}),
    "table2-both": ("both alignments", {}),
    "table3-width-none": ("no residual models", {"residual": False}),
    "table3-width-1-16": ("residual models of 1/16 width", {"residual_width": 1 / 16}),
    "table3-width-2-16": ("residual models of 1/8 width", {"residual_width": 2 / 16}),
    "table3-width-4-16": ("residual models of 1/4 width", {}),
    "table3-width-16-16": ("residual models of full width", {"residual_width": 1.0}),
    "table6-threshold-none": ("every pseudo-label counts", {}),
    "table6-threshold-0.95": ("confident pseudo-labels only", {"threshold": 0.95}),
}
#: SM, UM and EM of these.
_ABLATED = {
    "table2-none": (57.85, 61.07, 61.86),
    "table2-mpa": (65.04, 65.98, 66.47),
    "table2-gra": (62.11, 64.09, 64.54),
    "table2-both": (66.34, 67.14, 67.79),
    "table3-width-none": (65.04, 65.98, 66.47),
    "table3-width-1-16": (65.57, 66.47, 67.13),
    "table3-width-2-16": (65.86, 66.73, 67.44),
    "table3-width-4-16": (66.34, 67.14, 67.79),
    "table3-width-16-16": (66.46, 67.28, 67.85),
    "table6-threshold-none": (66.34, 67.14, 67.79),
    "table6-threshold-0.95": (66.42, 67.25, 67.84),
}
_LAYOUTS = ("PL", "LPL", "UPL", "LU", "ALL")
#: The points of Figs. 10 and 11 are not in the text; these are ours.
_WEIGHTS = {
    "lambda": ("residual_weight", (0.1, 0.5, 1.0, 2.0, 5.0)),
    "gamma": ("proximity_weight", (0.0001, 0.001, 0.01, 0.1)),
}


def cells() -> Iterator[Cell]:
    for table, columns in (("1", _TABLE1), ("7", _TABLE7)):
        for cell, numbers in columns.items():
            yield from _column(table, cell, numbers)
    for name, (about, changed) in _ABLATIONS.items():
        summary = f"Table {name[5]}: {about}, cifar10, 10 % labelled"
        made = _layer("cifar10-10", "hassle", changed)
        yield f"hassle/{name}", Preset(summary, "hassle", made, _three(_ABLATED[name]))
    for layout in _LAYOUTS:
        summary = f"Fig. 6: layout {layout}, cifar10, 10 % labelled"
        made = _layer("cifar10-10", "hassle", {}, layout)
        yield f"hassle/layout-{layout}", Preset(summary, "hassle", made)
        for method, (about, changed) in _BASELINES.items():
            made = _layer("cifar10-10", method, changed, layout)
            yield f"hassle/{method}-layout-{layout}", Preset(f"{summary}, {about}", method, made)
    for name, (setting, values) in _WEIGHTS.items():
        for value in values:
            summary = f"Figs. 10 and 11: {name} {value:g} (our points), cifar10, 10 % labelled"
            made = _layer("cifar10-10", "hassle", {setting: value})
            yield f"hassle/{name}-{value:g}", Preset(summary, "hassle", made)


def _column(table: str, cell: str, numbers: tuple[float, ...]) -> Iterator[Cell]:
    """HASSLE and its baselines on one split."""
    data, share, *spread = cell.split("-")
    summary = ", ".join([f"Table {table}: {data}", f"{share} % labelled", *spread])
    slower = ", rate 0.01 for the paper's 0.1" if data == "fmnist" else ""
    made = _layer(cell, "hassle", {})
    yield f"hassle/{cell}", Preset(summary + slower, "hassle", made, _three(numbers[:3]))
    for (method, (about, changed)), number in zip(_BASELINES.items(), numbers[3:], strict=True):
        name = f"{method}-{cell}"
        doubt = " (a likely misprint)" if name in _ODD else ""
        if method != "fedmatch":
            doubt += slower
        made = _layer(cell, method, changed)
        yield f"hassle/{name}", Preset(f"{summary}, {about}{doubt}", method, made, {"best": number})


def _layer(cell: str, method: str, changed: Layer, layout: str = "ALL") -> Layer:
    name, percent, *spread = cell.split("-")
    alpha = spread[0].removeprefix("alpha") if spread else "0.1"
    data, model = _SETS[name]
    # Two parts of one model cannot share running averages.
    norm = "static" if method == "fedmatch" else "running"
    partition = f"hassle-dirichlet:{alpha}"
    split = {"partition": partition, "labels": f"{layout}:{percent}%", "clients": 20}
    settings = all_settings(method, **changed)
    if name == "fmnist":
        settings |= _for_fmnist(settings)
    return layer(data, model, norm, split, 200, settings)


def _for_fmnist(settings: Layer) -> Layer:
    """A smaller rate, and images as they are.

    With the paper's rate, 0.1, and momentum 0.9 LeNet falls to 10 % in round 1 and stays there;
    with 0.03 HASSLE diverges in round 14 of seed 1. Neither paper nor release names a view for this
    set; flipped and cropped, LeNet learns far slower.
    """
    changed: Layer = {}
    for name, value in settings.items():
        if name.endswith("rate") and value == 0.1:
            changed[name] = 0.01
    if "view" in settings:
        changed["view"] = "plain"
    return changed


def _three(numbers: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(("SM", "UM", "EM"), numbers, strict=True))

"""Every method with settings for a run of seconds, and who holds what in it.

`same_bits.py` and `test_recorded.py` train these.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

#: Every method, with settings under which clients train from the first round and nothing is long.
METHODS: dict[str, dict[str, Any]] = {
    "semifl": {"active": 1.0, "epochs": 1, "threshold": 0.2},
    "hassle": {"active": 1.0, "epochs": 1, "residual_steps": 2, "batch": 10},
    "fed-shvr": {"epochs": 1, "labelled_batch": 8, "unlabelled_batch": 8, "ramp_epochs": 4.0},
    "fedavg-fixmatch": {"labelled_batch": 6, "unlabelled_batch": 8, "threshold": 0.2},
    "fedavg-fixmatch-hub": {"active": 1.0, "epochs": 1, "threshold": 0.2},
    "fedsgd-fixmatch": {"active": 1.0, "steps": 2, "threshold": 0.2},
    "fedavg-mixmatch": {"batch": 8},
    "fedsem": {"epochs": 1, "batch": 8, "labels_only": 0.4},
    "fed-pseudo": {"epochs": 1, "labelled_batch": 8, "unlabelled_batch": 8, "ramp_epochs": 4.0},
    "fed-mt": {"epochs": 1, "labelled_batch": 8, "batch": 8, "ramp_epochs": 1.5},
    "fedmatch": {"active": 1.0, "epochs": 1, "hub_batch": 10, "threshold": 0.2},
    "fedmatch-hub": {"active": 1.0, "epochs": 1, "hub_epochs": 1, "threshold": 0.2},
    "fedmatch-semifl": {"active": 1.0, "epochs": 1, "threshold": 0.2},
    "fedrgd": {"active": 1.0, "steps": 2, "batch": 8, "threshold": 0.2},
    "fedrgd-semifl": {"active": 1.0, "epochs": 1, "threshold": 0.2},
    "rscfed": {"epochs": 1, "batch": 8, "subset_size": 4, "warm_up": 1},
    "fedavg": {"epochs": 1, "batch": 8},
    "fedavg-all": {"epochs": 1, "batch": 8},
    "fedprox": {"active": 1.0, "batch": 8, "stragglers": 0.5},
    "fednova": {"active": 1.0, "batch": 8, "stragglers": 0.5},
    "scaffold": {"active": 1.0, "epochs": 1, "batch": 8},
    "vrl-sgd": {"period": 3, "batch": 4},
    "fedavgm": {"active": 1.0, "epochs": 1, "batch": 8},
    "heterofl": {"active": 1.0, "epochs": 1, "batch": 8},
    "heterofl-semifl": {"active": 1.0, "epochs": 1, "batch": 8},
    "pi-model": {"steps": 3, "batch": 4},
    "pseudo-labeling": {"steps": 3, "batch": 4, "threshold": 0.2},
    "mean-teacher": {"steps": 3, "batch": 4},
    "mixmatch": {"steps": 3, "batch": 4},
    "uda": {"steps": 3, "batch": 4, "ratio": 2, "threshold": 0.2},
    "remixmatch": {"steps": 3, "batch": 4},
    "fixmatch": {"steps": 3, "batch": 4, "ratio": 2, "threshold": 0.2},
    "fl2": {"active": 1.0, "epochs": 1, "pretraining": 2, "client_batch": 8, "confident": 0.3},
    "sage": {"active": 1.0, "epochs": 1, "labelled_batch": 8, "threshold": 0.3},
    "proxyfl": {"active": 1.0, "epochs": 1, "threshold": 0.3, "tuning_epochs": 2},
    "cbafed": {"warmup_epochs": 3, "epochs": 2, "connect_every": 2, "batch": 8, "base": 0.2},
    "hub-only": {"epochs": 1},
    "hub-all": {"epochs": 1},
}

#: Methods of one site, which refuse more clients.
CENTRAL = (
    "pi-model",
    "pseudo-labeling",
    "mean-teacher",
    "mixmatch",
    "uda",
    "remixmatch",
    "fixmatch",
)

#: What else methods can do, one by one.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "semifl-plain": ("semifl", {"mixup": False, "keep_momentum": False, "active": 0.5}),
    "semifl-statistics": ("semifl", {"statistics_from": "hub", "statistics_formula": "pooled"}),
    "hassle-bare": ("hassle", {"residual": False, "proximity": False, "threshold": 0.3}),
    "fed-shvr-plain": ("fed-shvr", {"correct": False, "normalise": False, "soft_weight": 0.0}),
    "fed-shvr-shift": ("fed-shvr", {"perturb": "shift", "ramped_labels": True, "norm": "running"}),
    "fed-shvr-dropout": ("fed-shvr", {"perturb": "dropout", "model": "mlp", "dropout": 0.5}),
    "fedavg-fixmatch-global": ("fedavg-fixmatch", {"labels_from": "global", "norm": "running"}),
    "fed-mt-kept": ("fed-mt", {"keep_teacher": True, "momentum": 0.5, "norm": "running"}),
    "fednova-momentum": ("fednova", {"momentum": 0.9, "annealed": True, "global_momentum": 0.5}),
    "scaffold-clipped": ("scaffold", {"clip": 1.0, "global_rate": 0.5, "norm": "running"}),
    "vrl-sgd-warm": ("vrl-sgd", {"warm_up": True}),
    "heterofl-drawn": ("heterofl", {"dynamic": True, "widths": "1,0.5", "mask": False}),
    "fl2-running": ("fl2", {"annealed": True, "norm": "running"}),
    "sparse-checkpoints": ("semifl", {"checkpoint_every": 2, "evaluate_every": 3}),
    "float64": ("hassle", {"dtype": "float64"}),
}

#: (labelled, unlabelled) images of the clients of most cases; the hub has HUB more.
CLIENTS = ((0, 0), (0, 1), (1, 0), (4, 6), (0, 7), (12, 0), (5, 18), (11, 29))
HUB = 20


def holders(method: str, splits: Path) -> dict[str, Any]:
    """The option that names the method's split, of those that `write_splits` wrote."""
    return {"split_file": splits / ("one.json" if method in CENTRAL else "ragged.json")}


def write_splits(folder: Path) -> None:
    """Splits of the digits: clients as unequal as they come, and one client with everything."""
    counts = [HUB]
    for labelled, unlabelled in CLIENTS:
        counts += [labelled, unlabelled]
    parts, begin = [], 0
    for count in counts:
        parts.append(list(range(begin, begin + count)))
        begin += count
    write_split(folder / "ragged.json", parts[0], parts[1::2], parts[2::2])
    write_split(folder / "one.json", [], [list(range(20))], [list(range(20, 80))])


def write_split(
    path: Path, hub: list[int], labelled: list[list[int]], unlabelled: list[list[int]]
) -> None:
    content = {
        "format": "fedglean split 1",
        "hub": hub,
        "labelled": labelled,
        "unlabelled": unlabelled,
        "names": [],
    }
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    sealed = {"content": content, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    path.write_text(json.dumps(sealed, separators=(",", ":")) + "\n")

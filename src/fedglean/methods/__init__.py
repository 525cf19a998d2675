"""All methods by name. A new one is a file beside this one and a line in the table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedglean.method import Method
from fedglean.methods.fed_shvr import FedSHVR
from fedglean.methods.hassle import Hassle
from fedglean.methods.semifl import SemiFL
from fedglean.methods.supervised import FedAvg, HubTraining


@dataclass(frozen=True)
class Entry:
    """A method under a name, with the parts of a configuration in which it makes sense."""

    method: type[Method]
    summary: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


# Fed-SHVR and its floor and ceiling meet on one split, as SemiFL and its own do on the hub's twenty labels.
_TWO_DIGITS_EACH: dict[str, Any] = {
    "rounds": 25,
    "split": {"partition": "iid", "labels": "mismatch-digits:6", "clients": 10},
    "model": {"name": "mlp"},
}
_PLAIN_AVERAGE = {"active": 1.0, "epochs": 2, "batch": 32, "rate": 0.1, "view": "plain"}
# Digits are so few that a client takes ten steps where the paper's take hundreds: proximity must pull harder to matter.
_FEW_STEPS = {"active": 0.2, "epochs": 5, "batch": 16, "rate": 0.03, "residual_steps": 5, "proximity_weight": 0.1}

METHODS: dict[str, Entry] = {
    "semifl": Entry(
        SemiFL,
        "labels at the hub; alternate fine-tuning there with pseudo-labelled training at clients (2022)",
        {"rounds": 40, "settings": {"active": 0.25, "threshold": 0.9}},
    ),
    "hassle": Entry(
        Hassle,
        "clients with all, some or no labels; two models that help each other (2023)",
        {
            "rounds": 50,
            "split": {"partition": "hassle-dirichlet:0.05", "labels": "LU:20%"},
            "settings": _FEW_STEPS,
        },
    ),
    "fed-shvr": Entry(
        FedSHVR,
        "labelled and unlabelled classes differ; soft labels, variance reduction (2021)",
        {**_TWO_DIGITS_EACH, "settings": {"rate": 0.1, "ramp_epochs": 20.0, "perturb": "noise"}},
    ),
    "fedavg": Entry(FedAvg, "FedAvg on the labels that clients have", {**_TWO_DIGITS_EACH, "settings": _PLAIN_AVERAGE}),
    "fedavg-all": Entry(
        FedAvg,
        "FedAvg as if every image of every client were labelled: a ceiling",
        {**_TWO_DIGITS_EACH, "split": {**_TWO_DIGITS_EACH["split"], "labels": "all"}, "settings": _PLAIN_AVERAGE},
    ),
    "hub-only": Entry(HubTraining, "the hub's labels alone: the floor that clients must beat", {"rounds": 40}),
    "hub-all": Entry(
        HubTraining,
        "all images labelled at the hub, no federation: a ceiling",
        {"rounds": 40, "split": {"labels": "all-hub"}, "settings": {"epochs": 1, "batch": 50}},
    ),
}

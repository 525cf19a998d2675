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


METHODS: dict[str, Entry] = {
    "semifl": Entry(
        SemiFL, "labels at the hub; alternate fine-tuning there with pseudo-labelled training at clients (2022)"
    ),
    "hassle": Entry(Hassle, "clients with all, some or no labels; two models that help each other (2023)"),
    "fed-shvr": Entry(FedSHVR, "labelled and unlabelled classes differ; soft labels, variance reduction (2021)"),
    "fedavg": Entry(FedAvg, "FedAvg on the labels that clients have"),
    "fedavg-all": Entry(FedAvg, "FedAvg as if every image of every client were labelled: a ceiling"),
    "hub-only": Entry(HubTraining, "the hub's labels alone: the floor that clients must beat"),
    "hub-all": Entry(HubTraining, "all images labelled at the hub, no federation: a ceiling"),
}

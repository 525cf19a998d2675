"""All methods by name. A new one is a file beside this one and a line in the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedglean.method import Method
from fedglean.methods.cbafed import CBAFed
from fedglean.methods.fed_fixmatch import FedFixMatch, FedSGDFixMatch
from fedglean.methods.fed_mixmatch import FedMixMatch
from fedglean.methods.fed_mt import FedMT
from fedglean.methods.fed_shvr import FedSHVR
from fedglean.methods.fedavgm import FedAvgM
from fedglean.methods.fedmatch import FedMatch
from fedglean.methods.fedmatch_semifl import FedMatchSemiFL
from fedglean.methods.fednova import FedNova
from fedglean.methods.fedprox import FedProx
from fedglean.methods.fedrgd import FedRGD
from fedglean.methods.fedsem import FedSem
from fedglean.methods.fixmatch import FixMatch
from fedglean.methods.fl2 import FL2
from fedglean.methods.hassle import Hassle
from fedglean.methods.heterofl import HeteroFL
from fedglean.methods.mean_teacher import MeanTeacher
from fedglean.methods.mixmatch import MixMatch
from fedglean.methods.pi_model import PiModel
from fedglean.methods.proxyfl import ProxyFL
from fedglean.methods.pseudo_labeling import PseudoLabeling
from fedglean.methods.remixmatch import ReMixMatch
from fedglean.methods.rscfed import RSCFed
from fedglean.methods.sage import Sage
from fedglean.methods.scaffold import Scaffold
from fedglean.methods.semifl import SemiFL
from fedglean.methods.settings import MISMATCH, MLP, iid, on_a_laptop
from fedglean.methods.supervised import FedAvg, HubTraining
from fedglean.methods.uda import UDA
from fedglean.methods.vrl_sgd import VRLSGD


@dataclass(frozen=True)
class Entry:
    """A method under a name; `aliases` are what else people call it.

    `defaults` are the parts of a configuration in which it makes sense: its own, if none are given.
    """

    method: type[Method]
    summary: str
    defaults: Mapping[str, Any] = None  # type: ignore[assignment]
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.defaults is None:
            object.__setattr__(self, "defaults", getattr(self.method, "defaults", {}))


METHODS: Mapping[str, Entry] = {
    "semifl": Entry(
        SemiFL, "labels at the hub; fine-tuning there, pseudo-labelled training at clients (2022)"
    ),
    "hassle": Entry(
        Hassle, "clients with all, some or no labels; two models that help each other (2023)"
    ),
    "fed-shvr": Entry(
        FedSHVR, "labelled and unlabelled classes differ; soft labels, variance reduction (2021)"
    ),
    "fedavg-fixmatch": Entry(
        FedFixMatch, "labels at clients; FixMatch under FedAvg, labelled locally or globally (2020)"
    ),
    "fedsgd-fixmatch": Entry(
        FedSGDFixMatch, "labels at the hub; FixMatch whose gradients meet after every batch (2022)"
    ),
    "fedavg-mixmatch": Entry(
        FedMixMatch, "labels at clients; MixMatch's guesses and Mixup under FedAvg (2019)"
    ),
    "fedsem": Entry(
        FedSem, "labels at clients; FedAvg on them first, then on pseudo-labels too (2020)"
    ),
    "fed-pseudo": Entry(
        FedSHVR,
        "labels at clients; FedAvg with pseudo-labels: Fed-SHVR without its ideas (2021)",
        on_a_laptop(
            25,
            MISMATCH,
            MLP,
            rate=0.1,
            perturb="noise",
            soft_weight=0.0,
            output_weight=0.0,
            correct=False,
            normalise=False,
        ),
    ),
    "fed-mt": Entry(FedMT, "labels at clients; a mean teacher at each of them under FedAvg (2021)"),
    "fedmatch": Entry(
        FedMatch, "labels at clients; weights in two parts, for labels and the rest; helpers (2021)"
    ),
    "fedmatch-hub": Entry(
        FedMatch,
        "labels at the hub; FedMatch's two parts, one for the hub, one for clients (2021)",
        {
            "rounds": 40,
            "settings": {
                **FedMatch.defaults["settings"],
                "active": 0.25,
                "helper_interval": 2,
                "hub_epochs": 5,
                "hub_batch": 10,
                "sparsity_weight": 1e-5,
                "smallest": 1e-5,
                "smallest_change": 1e-5,
            },
        },
    ),
    "fedmatch-semifl": Entry(
        FedMatchSemiFL,
        "labels at the hub; what SemiFL calls FedMatch: FixMatch with two kernels (2022)",
    ),
    "fedrgd": Entry(
        FedRGD, "labels at the hub; FixMatch at clients, averaged in groups; group norm (2020)"
    ),
    "rscfed": Entry(
        RSCFed, "fully labelled and unlabelled clients; a consensus of small subsets (2022)"
    ),
    "fedavg": Entry(FedAvg, "FedAvg on the labels that clients have"),
    "fedavg-all": Entry(
        FedAvg,
        "FedAvg as if every image of every client were labelled: a ceiling",
        {**FedAvg.defaults, "split": iid("all")},
    ),
    "fedprox": Entry(
        FedProx, "labels at clients; FedAvg with a pull towards the model that was sent (2020)"
    ),
    "fednova": Entry(
        FedNova, "labels at clients; averages what clients did per step, however many (2020)"
    ),
    "scaffold": Entry(
        Scaffold, "labels at clients; steps corrected by how the client differs (2020)"
    ),
    "vrl-sgd": Entry(
        VRLSGD, "labels at clients; the same correction where all take equally many steps (2019)"
    ),
    "fedavgm": Entry(FedAvgM, "labels at clients; FedAvg with momentum at the hub (2019)"),
    "heterofl": Entry(
        HeteroFL, "labels at clients; weak ones train a narrow part of the model (2021)"
    ),
    "heterofl-semifl": Entry(
        FedAvgM,
        "labels at clients; what SemiFL calls HeteroFL: equal weights, momentum (2022)",
        {
            **FedAvgM.defaults,
            "settings": {
                **FedAvgM.defaults["settings"],
                "rate": 0.03,
                "weigh_by": "nothing",
                "global_momentum": 0.5,
                "annealed": True,
                "decay": 5e-4,
                "clip": 1.0,
                "momentum": 0.9,
                "nesterov": True,
                "keep_momentum": True,
            },
        },
    ),
    "pi-model": Entry(
        PiModel, "one site, no federation; two views of an image get one answer (2017)"
    ),
    "pseudo-labeling": Entry(
        PseudoLabeling, "one site, no federation; confident answers are labels (2013)"
    ),
    "mean-teacher": Entry(
        MeanTeacher, "one site, no federation; the average of past weights teaches (2017)"
    ),
    "mixmatch": Entry(
        MixMatch, "one site, no federation; guessed labels, and all images mixed (2019)"
    ),
    "uda": Entry(
        UDA, "one site, no federation; strong views learn weak ones' sharpened answer (2020)"
    ),
    "remixmatch": Entry(
        ReMixMatch, "one site, no federation; MixMatch, aligned guesses, rotations (2020)"
    ),
    "fixmatch": Entry(
        FixMatch,
        "one site, no federation; strong views learn weak ones' confident answer (2020)",
        aliases=("fixmatch-hub",),
    ),
    "fl2": Entry(FL2, "few labels at the hub; adaptive thresholds, flat minima (2024)"),
    "sage": Entry(
        Sage, "labels at clients; local pseudo-labels softly corrected by the global model (2025)"
    ),
    "proxyfl": Entry(
        ProxyFL, "labels at clients; tuned class proxies, a contrast where no model is sure (2026)"
    ),
    "cbafed": Entry(
        CBAFed, "fully labelled and unlabelled clients; class-balanced thresholds (2023)"
    ),
    "hub-only": Entry(
        HubTraining,
        "the hub's labels alone: the floor that clients must beat",
        aliases=("labels-only",),
    ),
    "hub-all": Entry(
        HubTraining,
        "all images labelled at the hub, no federation: a ceiling",
        on_a_laptop(40, {"labels": "all-hub"}, epochs=1, batch=50),
    ),
}

"""All methods by name. A new one is a file beside this one and a line in the table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from fedglean.methods.supervised import FedAvg, HubTraining
from fedglean.methods.uda import UDA
from fedglean.methods.vrl_sgd import VRLSGD


@dataclass(frozen=True)
class Entry:
    """A method under a name, with the parts of a configuration in which it makes sense."""

    method: type[Method]
    summary: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


# Fed-SHVR and its floor and ceiling meet on one split, as SemiFL and its own do on the hub's twenty
# labels.
_TWO_DIGITS_EACH: dict[str, Any] = {
    "rounds": 25,
    "split": {"partition": "iid", "labels": "mismatch-digits:6", "clients": 10},
    "model": {"name": "mlp"},
}
_PLAIN_AVERAGE = {"active": 1.0, "epochs": 2, "batch": 32, "rate": 0.1, "view": "plain"}
# Digits are so few that a client takes ten steps where the paper's take hundreds: proximity must
# pull harder to matter.
_FEW_STEPS = {
    "active": 0.2,
    "epochs": 5,
    "batch": 16,
    "rate": 0.03,
    "residual_steps": 5,
    "proximity_weight": 0.1,
}

_PSEUDO = {"soft_weight": 0.0, "output_weight": 0.0, "correct": False, "normalise": False}
_PARALLEL = {"combine": "parallel", "labels_from": "batch", "mixup": False}
_SIX_LABELS_EACH = {"partition": "iid", "labels": "each:6", "clients": 10}
_FEW_LABELS_EACH = {"partition": "iid", "labels": "each:2", "clients": 20}
# With fewer labels than four each, some seeds leave a class without any.
_FOUR_LABELS_EACH = {"partition": "iid", "labels": "each:4", "clients": 20}
_SHORT_VISITS = {"epochs": 3, "labelled_batch": 20, "unlabelled_batch": 40}

# All labels, but clients as unlike each other as they come: what the remedies for drift are for.
_UNLIKE: dict[str, Any] = {
    "rounds": 20,
    "split": {"partition": "dirichlet:0.1", "labels": "all", "clients": 10},
}
_SOME_COME = {**_PLAIN_AVERAGE, "active": 0.4}
_SEMIFL_ROW = {
    "weigh_by": "nothing",
    "global_momentum": 0.5,
    "annealed": True,
    "decay": 5e-4,
    "clip": 1.0,
    "momentum": 0.9,
    "nesterov": True,
    "keep_momentum": True,
}

# As published, FedMatch's unlabelled terms are too weak to be seen within so few rounds, and
# RSCFed's teacher too.
_MORE_MATCHING = {
    "epochs": 5,
    "unlabelled_batch": 20,
    "rate": 0.01,
    "agreement_weight": 1.0,
    "consistency_weight": 1.0,
    "closeness_weight": 0.1,
}
_MATCHING_AT_HUB = {
    "hub_epochs": 5,
    "hub_batch": 10,
    "sparsity_weight": 1e-5,
    "smallest": 1e-5,
    "smallest_change": 1e-5,
}
_SMALL_SCALES = {"labelled_scale": 10.0, "unlabelled_scale": 10.0}

# One site that has everything: 20 labels among the digits.
_ONE_SITE: dict[str, Any] = {
    "rounds": 40,
    "split": {"partition": "iid", "labels": "each:20", "clients": 1},
}
_SHORT_RUN = {"steps": 20, "batch": 20, "average": 0.95}


def _one_site(method: type[Method], summary: str, **settings: Any) -> Entry:
    return Entry(
        method,
        f"one site, no federation; {summary}",
        {**_ONE_SITE, "settings": {**_SHORT_RUN, **settings}},
    )


METHODS: dict[str, Entry] = {
    "semifl": Entry(
        SemiFL,
        "labels at the hub; alternate fine-tuning there with pseudo-labelled training at clients "
        "(2022)",
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
    "fedavg-fixmatch": Entry(
        FedFixMatch,
        "labels at clients; FixMatch's loss under FedAvg, labelled by the local or the global "
        "model (2020)",
        {
            "rounds": 30,
            "split": _SIX_LABELS_EACH,
            "settings": {
                "active": 1.0,
                "epochs": 1,
                "labelled_batch": 10,
                "unlabelled_batch": 20,
                "rate": 0.03,
                "threshold": 0.9,
            },
        },
    ),
    "fedavg-fixmatch-hub": Entry(
        SemiFL,
        "labels at the hub; FixMatch at clients beside training at the hub, then averaged: what "
        "SemiFL mends (2022)",
        {"rounds": 40, "settings": {"active": 0.25, "threshold": 0.9, **_PARALLEL}},
    ),
    "fedsgd-fixmatch": Entry(
        FedSGDFixMatch,
        "labels at the hub; FixMatch whose gradients meet after every batch (2022)",
        {"rounds": 40, "settings": {"active": 0.25, "threshold": 0.9, "steps": 10}},
    ),
    "fedavg-mixmatch": Entry(
        FedMixMatch,
        "labels at clients; MixMatch's guesses and Mixup under FedAvg (2019)",
        {
            "rounds": 30,
            "split": _SIX_LABELS_EACH,
            "settings": {
                "active": 1.0,
                "epochs": 1,
                "batch": 10,
                "rate": 0.03,
                "unlabelled_weight": 5.0,
            },
        },
    ),
    "fedsem": Entry(
        FedSem,
        "labels at clients; FedAvg on them first, then on pseudo-labels too (2020)",
        _TWO_DIGITS_EACH,
    ),
    "fed-pseudo": Entry(
        FedSHVR,
        "labels at clients; FedAvg with hard pseudo-labels that gain weight: Fed-SHVR without its "
        "own ideas (2021)",
        {**_TWO_DIGITS_EACH, "settings": {"rate": 0.1, "perturb": "noise", **_PSEUDO}},
    ),
    "fed-mt": Entry(
        FedMT,
        "labels at clients; a mean teacher at each of them under FedAvg (2021)",
        {**_TWO_DIGITS_EACH, "settings": {"rate": 0.1, "ramp_epochs": 20.0}},
    ),
    "fedmatch": Entry(
        FedMatch,
        "labels at clients; one part of the weights for them, one for the rest, and clients that "
        "help (2021)",
        {
            "rounds": 40,
            "split": _FEW_LABELS_EACH,
            "settings": {**_MORE_MATCHING, "active": 0.4, "helper_interval": 1},
        },
    ),
    "fedmatch-hub": Entry(
        FedMatch,
        "labels at the hub; FedMatch's two parts of the weights, one trained there and one at "
        "clients (2021)",
        {
            "rounds": 40,
            "settings": {
                **_MORE_MATCHING,
                "active": 0.25,
                "helper_interval": 2,
                **_MATCHING_AT_HUB,
            },
        },
    ),
    "fedmatch-semifl": Entry(
        FedMatchSemiFL,
        "labels at the hub; what SemiFL compared with as FedMatch: two kernels, FixMatch by batch "
        "(2022)",
        {"rounds": 40, "settings": {"active": 0.25, "threshold": 0.9}},
    ),
    "fedrgd": Entry(
        FedRGD,
        "labels at the hub; FixMatch at clients that are averaged in groups, group norm (2020)",
        {
            "rounds": 40,
            "split": {"labels": "hub:100"},
            "model": {"norm": "group"},
            "settings": {"active": 0.2, "steps": 10, "batch": 10, "warm_up": 0.2},
        },
    ),
    "fedrgd-semifl": Entry(
        SemiFL,
        "labels at the hub; what SemiFL compared with as FedRGD: two halves averaged, static batch "
        "norm (2022)",
        {"rounds": 40, "settings": {"active": 0.25, **_PARALLEL, "combine": "halves"}},
    ),
    "rscfed": Entry(
        RSCFed,
        "fully labelled and unlabelled clients; a consensus of small subsets, far models count "
        "less (2022)",
        {
            "rounds": 20,
            "split": {"partition": "iid", "labels": "LU:3%", "clients": 10},
            "settings": {"epochs": 3, "batch": 16, "unlabelled_weight": 1.0, **_SMALL_SCALES},
        },
    ),
    "fedavg": Entry(
        FedAvg,
        "FedAvg on the labels that clients have",
        {**_TWO_DIGITS_EACH, "settings": _PLAIN_AVERAGE},
    ),
    "fedavg-all": Entry(
        FedAvg,
        "FedAvg as if every image of every client were labelled: a ceiling",
        {
            **_TWO_DIGITS_EACH,
            "split": {**_TWO_DIGITS_EACH["split"], "labels": "all"},
            "settings": _PLAIN_AVERAGE,
        },
    ),
    "fedprox": Entry(
        FedProx,
        "labels at clients; FedAvg with a pull towards the model that was sent (2020)",
        {**_UNLIKE, "settings": {**_SOME_COME, "proximity_weight": 0.1}},
    ),
    "fednova": Entry(
        FedNova,
        "labels at clients; averages what clients did per step, however many steps each took "
        "(2020)",
        {**_UNLIKE, "settings": _SOME_COME},
    ),
    "scaffold": Entry(
        Scaffold,
        "labels at clients; corrects every step by how the client differs from the mean (2020)",
        {**_UNLIKE, "settings": _SOME_COME},
    ),
    "vrl-sgd": Entry(
        VRLSGD,
        "labels at clients; the same correction where all take part with equally many steps (2019)",
        {**_UNLIKE, "settings": {"period": 10, "rate": 0.1, "view": "plain"}},
    ),
    "fedavgm": Entry(
        FedAvgM,
        "labels at clients; FedAvg with momentum at the hub (2019)",
        {**_UNLIKE, "settings": _SOME_COME},
    ),
    "heterofl": Entry(
        HeteroFL,
        "labels at clients; weak ones train a narrow part of the model (2021)",
        {**_UNLIKE, "settings": {**_SOME_COME, "widths": "1,0.5,0.25", "staircase": False}},
    ),
    "heterofl-semifl": Entry(
        FedAvgM,
        "labels at clients; what SemiFL compared with as HeteroFL: full width, equal weights, "
        "momentum (2022)",
        {**_UNLIKE, "settings": {**_SOME_COME, "rate": 0.03, **_SEMIFL_ROW}},
    ),
    "pi-model": _one_site(PiModel, "two views of an image get one answer (2017)"),
    "pseudo-labeling": _one_site(
        PseudoLabeling, "the model's own confident answers are labels (2013)"
    ),
    "mean-teacher": _one_site(MeanTeacher, "the average of past weights teaches the model (2017)"),
    "mixmatch": _one_site(MixMatch, "guessed labels, and all images mixed with one another (2019)"),
    "uda": _one_site(UDA, "strong views learn the sharpened answer to weak ones (2020)"),
    "remixmatch": _one_site(
        ReMixMatch, "MixMatch with aligned guesses, strong views and rotations (2020)"
    ),
    "fixmatch": _one_site(FixMatch, "strong views learn the confident answer to weak ones (2020)"),
    "fl2": Entry(
        FL2,
        "few labels at the hub; adaptive thresholds, flat minima, clients that still learn count "
        "more (2024)",
        {"rounds": 40, "settings": {"active": 0.25}},
    ),
    "sage": Entry(
        Sage,
        "labels at clients; local pseudo-labels softly corrected by the global model (2025)",
        {"rounds": 30, "split": _FOUR_LABELS_EACH, "settings": _SHORT_VISITS},
    ),
    "proxyfl": Entry(
        ProxyFL,
        "labels at clients; tuned class proxies, and a contrast for images of which no model is "
        "sure (2026)",
        {
            "rounds": 30,
            "split": _FOUR_LABELS_EACH,
            "settings": {**_SHORT_VISITS, "tuning_epochs": 20},
        },
    ),
    "cbafed": Entry(
        CBAFed,
        "fully labelled and unlabelled clients; class-balanced thresholds, residual weights (2023)",
        {
            "rounds": 30,
            "split": {"partition": "iid", "labels": "LU:3%", "clients": 10},
            "settings": {"warmup_epochs": 101, "batch": 16},
        },
    ),
    "hub-only": Entry(
        HubTraining, "the hub's labels alone: the floor that clients must beat", {"rounds": 40}
    ),
    "hub-all": Entry(
        HubTraining,
        "all images labelled at the hub, no federation: a ceiling",
        {"rounds": 40, "split": {"labels": "all-hub"}, "settings": {"epochs": 1, "batch": 50}},
    ),
}

#: What else people call some of them.
ALIASES = {"labels-only": "hub-only", "fixmatch-hub": "fixmatch"}

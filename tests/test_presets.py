"""The papers' cells: every one resolves and can begin, and the printed numbers stand in the order
that papers claim.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch

from fedglean.data.catalogue import PUBLISHED
from fedglean.data.labels import make_split
from fedglean.method import Declared
from fedglean.models.model import Architecture, Model
from fedglean.runs.config import SplitConfig, configure, make_method, resolve
from fedglean_papers.presets import PRESETS

SPREADS = ("k2", "dir0.1", "dir0.3", "iid")
SEMIFL_CELLS = (
    "cifar10-250",
    "cifar10-4000",
    "svhn-250",
    "svhn-1000",
    "cifar100-2500",
    "cifar100-10000",
)
HASSLE_CELLS = [
    f"{data}-{share}"
    for data in ("fmnist", "cifar10", "cifar100")
    for share in ("5", "10", "20", "10-alpha0.01", "10-alpha1")
]
#: A preset of each kind of model that a method begins with.
KINDS = {(each.method, each.layer["data"]["name"]): name for name, each in PRESETS.items()}
BASELINES = ("fedavg", "fedprox", "fedavg-mixmatch", "fedavg-fixmatch", "fedmatch", "rscfed")


def number(name: str, key: str = "best") -> float:
    published = PRESETS[name].published
    assert published is not None
    return published[key]


def best(name: str) -> float:
    return number(name)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_states_everything_and_takes_nothing_from_the_methods_defaults(name: str) -> None:
    config, preset = configure(preset=name), PRESETS[name]
    assert config.method == preset.method
    assert config.settings == preset.layer["settings"]
    assert config.data.name in PUBLISHED
    assert not config.data.allow_partial
    names, table = config.names, config.names.tables["METHODS"]
    bare = {**table, preset.method: replace(table[preset.method], defaults={})}
    without = replace(names, tables={**names.tables, "METHODS": bare})
    assert resolve(preset.method, preset.layer, names=without) == config


def test_there_is_a_preset_for_every_cell() -> None:
    papers = [name.partition("/")[0] for name in PRESETS]
    semifl = 3 * 24 + 12 + 7 * 6 + (6 + 3) + (8 + 2) + 8 + 8 + 2
    hassle = 7 * (9 + 6) + 4 + 5 + 2 + 7 * 5 + (5 + 4)
    shvr = 2 * (4 + 1 + 2) + 2 * 2 + 2 * 2 + 4 * 3 + 4 * 5
    assert [papers.count(paper) for paper in ("semifl", "hassle", "fed-shvr")] == [
        semifl,
        hassle,
        shvr,
    ]


@cache
def declared(data: str, split: SplitConfig) -> tuple[list[Declared], int]:
    """What everybody has when as many images as the published set has, of equally many classes, are
    dealt out.
    """
    images, classes = PUBLISHED[data].sizes[0], len(PUBLISHED[data].classes)
    labels = torch.arange(images) % classes
    dealt = make_split(labels, classes, split.clients, split.partition, split.labels, seed=0)
    clients = [
        Declared(len(mine), len(its))
        for mine, its in zip(dealt.labelled, dealt.unlabelled, strict=True)
    ]
    return clients, len(dealt.hub)


@pytest.mark.parametrize("name", PRESETS)
def test_a_method_accepts_the_split_of_its_preset(name: str) -> None:
    config = configure(preset=name)
    clients, hub_labels = declared(config.data.name, config.split)
    make_method(config).check(clients, hub_labels)
    assert len(clients) == config.split.clients


@pytest.mark.parametrize("name", KINDS.values())
def test_a_method_can_begin_with_the_model_of_its_preset(name: str) -> None:
    config = configure(preset=name)
    published = PUBLISHED[config.data.name]
    channels, side = len(published.mean), 28 if "mnist" in config.data.name else 32
    net = config.model.name.replace("wrn-28-8", "wrn-28-1")

    def make(name: str, width: float = 1.0) -> Model:
        return Architecture(
            net, (channels, side, side), len(published.classes), width, config.model.norm
        ).initial(key=0)

    method = make_method(config)
    assert method.predictors(method.start(make))


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("semifl/cifar10-4000-iid", {"best": 93.1}),
        ("semifl/cifar10-250-dir0.1", {"best": 63.0}),
        ("semifl/svhn-1000-k2", {"best": 92.2}),
        ("semifl/cifar100-10000-iid", {"best": 72.1}),
        ("semifl/partially-cifar10-250", {"best": 42.4}),
        ("semifl/fully-svhn", {"best": 97.3}),
        ("semifl/heterofl-cifar100-k2", {"best": 3.1}),
        ("semifl/table2-parallel-batch-k2", {"best": 41.01}),
        ("semifl/table3-hub-250-iid", {"best": 86.3}),
        ("semifl/table5-1-epoch-iid", {"best": 88.9}),
        ("semifl/fedmatch-svhn-1000-dir0.3", {"best": 84.0}),
        ("semifl/fedrgd-cifar100-10000-k2", {"best": 26.5}),
        ("semifl/remixmatch-cifar100-2500", {"round 1024": 72.6}),
        ("semifl/table2-fully", {"best": 95.33}),
        ("semifl/fedsgd-fixmatch-iid", None),
        ("hassle/fmnist-5", {"SM": 77.83, "UM": 77.98, "EM": 78.04}),
        ("hassle/cifar10-10", {"SM": 66.34, "UM": 67.14, "EM": 67.79}),
        ("hassle/cifar10-10-alpha0.01", {"SM": 62.19, "UM": 63.17, "EM": 63.27}),
        ("hassle/fedavg-cifar10-10", {"best": 57.85}),
        ("hassle/table2-gra", {"SM": 62.11, "UM": 64.09, "EM": 64.54}),
        ("hassle/table3-width-1-16", {"SM": 65.57, "UM": 66.47, "EM": 67.13}),
        ("hassle/table6-threshold-0.95", {"SM": 66.42, "UM": 67.25, "EM": 67.84}),
        ("hassle/layout-PL", None),
        ("hassle/rscfed-layout-LU", None),
        ("hassle/rscfed-cifar10-10", {"best": 63.76}),
        ("hassle/fedavg-fixmatch-cifar10-10-alpha0.01", {"best": 57.46}),
        ("hassle/fedmatch-cifar100-20", {"best": 42.72}),
        ("hassle/fedprox-fmnist-10-alpha1", {"best": 83.37}),
        ("hassle/fedavg-mixmatch-cifar10-20", {"best": 66.28}),
        ("fed-shvr/mnist-iid", {"round 1": 83.6, "round 100": 96.6}),
        ("fed-shvr/mnist-noniid-a1-0-a2-0.1", {"round 1": 72.9, "round 100": 95.4}),
        ("fed-shvr/fedavg-mnist-noniid", {"round 1": 37.8, "round 100": 87.5}),
        ("fed-shvr/fedavg-all-mnist-iid", {"round 1": 94.4, "round 100": 98.5}),
    ],
)
def test_the_printed_numbers_are_there(name: str, published: dict[str, float] | None) -> None:
    assert PRESETS[name].published == published


@pytest.mark.parametrize("cell", SEMIFL_CELLS)
def test_semifl_beats_the_labels_alone_and_stays_below_all_labels(cell: str) -> None:
    data = cell.partition("-")[0]
    for spread in SPREADS:
        assert (
            best(f"semifl/partially-{cell}")
            < best(f"semifl/{cell}-{spread}")
            < best(f"semifl/fully-{data}")
        )
    assert best(f"semifl/{cell}-k2") > best(f"semifl/heterofl-{data}-k2")
    for spread in SPREADS[1:]:
        assert best(f"semifl/{cell}-{spread}") < best(f"semifl/heterofl-{data}-{spread}")


@pytest.mark.parametrize("cell", SEMIFL_CELLS)
@pytest.mark.parametrize("spread", SPREADS)
def test_semifls_other_rows_are_below_the_labels_alone(cell: str, spread: str) -> None:
    fedmatch, fedrgd = (best(f"semifl/{row}-{cell}-{spread}") for row in ("fedmatch", "fedrgd"))
    assert fedrgd < fedmatch < best(f"semifl/partially-{cell}")


def test_semifls_gap_to_centralised_fixmatch_is_as_the_text_says() -> None:
    gaps = [
        number(f"semifl/fixmatch-{cell}", "round 1024") - best(f"semifl/{cell}-iid")
        for cell in SEMIFL_CELLS
    ]
    assert gaps == pytest.approx([6.7, 2.6, 0.7, 0.8, 10.4, 5.3])


@pytest.mark.parametrize("spread", ["k2", "iid"])
def test_repeated_cells_of_semifl_agree_between_tables(spread: str) -> None:
    first = best(f"semifl/cifar10-4000-{spread}")
    for again in ("table2-fine-tune-global", "table3-everyone-4000", "table5-full"):
        assert best(f"semifl/{again}-{spread}") == pytest.approx(first, abs=0.05)


@pytest.mark.parametrize("cell", HASSLE_CELLS)
def test_hassles_ensemble_is_above_both_models_and_those_above_every_baseline(cell: str) -> None:
    models = [number(f"hassle/{cell}", name) for name in ("EM", "UM", "SM")]
    assert models == sorted(models, reverse=True)
    assert models[-1] > max(best(f"hassle/{method}-{cell}") for method in BASELINES)


@pytest.mark.parametrize("cell", HASSLE_CELLS)
def test_hassles_baselines_stand_in_the_order_of_its_table_but_for_three_likely_misprints(
    cell: str,
) -> None:
    rows = [f"hassle/{method}-{cell}" for method in BASELINES]
    sound = [name for name in rows[:4] if "misprint" not in PRESETS[name].summary]
    numbers = [best(name) for name in sound]
    assert numbers == sorted(numbers)
    assert max(numbers) < min(best(name) for name in rows[4:])
    assert len(sound) == (3 if cell in ("cifar10-20", "cifar100-10", "cifar100-5") else 4)


def test_hassles_gain_over_the_best_baseline_is_as_the_text_says() -> None:
    def gain(cell: str, methods: tuple[str, ...]) -> float:
        return number(f"hassle/{cell}", "EM") - max(
            best(f"hassle/{method}-{cell}") for method in methods
        )

    assert [gain(f"cifar10-{n}", BASELINES) for n in (5, 10, 20)] == pytest.approx(
        [4.60, 4.03, 1.79]
    )
    abstract = [gain(f"{data}-5", ("fedmatch",)) for data in ("fmnist", "cifar10", "cifar100")]
    assert abstract == pytest.approx([2.5, 4.6, 5.3], abs=0.05)


def test_a_cell_differs_from_its_table_in_the_switch_that_it_is_named_after() -> None:
    def changed(name: str, base: str) -> dict[str, object]:
        settings = PRESETS[name].layer["settings"]
        return {
            key: value
            for key, value in settings.items()
            if value != PRESETS[base].layer["settings"][key]
        }

    full = "semifl/cifar10-4000-iid"
    assert changed("semifl/table5-1-epoch-iid", full) == {"epochs": 1}
    assert changed("semifl/table5-no-momentum-iid", full) == {"global_momentum": 0.0}
    assert changed("semifl/table3-hub-4000-iid", full) == {"statistics_from": "hub"}
    table2 = "semifl/table2-parallel-global-iid"
    assert changed("semifl/table2-parallel-batch-iid", table2) == {"labels_from": "batch"}
    assert changed("hassle/table2-none", "hassle/cifar10-10") == {
        "residual": False,
        "proximity": False,
    }
    assert changed("hassle/table3-width-2-16", "hassle/cifar10-10") == {"residual_width": 0.125}
    assert changed("hassle/lambda-5", "hassle/cifar10-10") == {"residual_weight": 5.0}
    assert changed("fed-shvr/fed-sh-mnist-iid", "fed-shvr/mnist-iid") == {"correct": False}
    assert changed("fed-shvr/mnist-iid-a1-0-a2-0", "fed-shvr/mnist-iid") == {
        "soft_weight": 0.0,
        "output_weight": 0.0,
    }


def test_a_baseline_has_its_tables_visits_and_what_a_data_set_asks_for() -> None:
    def settings(name: str) -> dict[str, object]:
        return dict(PRESETS[name].layer["settings"])

    assert settings("hassle/rscfed-cifar10-10")["labelled_rate"] == 0.1
    assert (
        settings("hassle/rscfed-fmnist-10")["labelled_rate"]
        == settings("hassle/fmnist-10")["rate"]
        == 0.01
    )
    assert settings("hassle/fedmatch-fmnist-10") == settings("hassle/fedmatch-cifar10-10")
    assert [settings(f"semifl/fedmatch-{cell}-iid")["hub_batch"] for cell in SEMIFL_CELLS] == [
        10,
        250,
    ] * 3
    assert [settings(f"semifl/partially-{cell}")["batch"] for cell in SEMIFL_CELLS] == [
        10,
        250,
        10,
        10,
        250,
        250,
    ]
    assert [settings(f"semifl/uda-{cell}")["decay"] for cell in SEMIFL_CELLS] == [5e-4] * 4 + [
        1e-3
    ] * 2


def test_a_rate_that_is_not_the_papers_is_told() -> None:
    rates = {
        name: [value for key, value in preset.layer["settings"].items() if key.endswith("rate")]
        for name, preset in PRESETS.items()
        if name.startswith("hassle/") and preset.method != "fedmatch"
    }
    assert {name for name, values in rates.items() if set(values) != {0.1}} == {
        name
        for name, preset in PRESETS.items()
        if "rate 0.01 for the paper's 0.1" in preset.summary
    }

"""The papers' cells: every one resolves, and the printed numbers stand in the order that the papers claim."""

from dataclasses import replace

import pytest

from fedglean.config import configure
from fedglean.data.catalogue import PUBLISHED
from fedglean.methods import METHODS
from fedglean.presets import PRESETS

SPREADS = ("k2", "dir0.1", "dir0.3", "iid")
HASSLE_CELLS = [name for name in PRESETS if name.startswith("hassle/fedavg-")]


def best(name: str) -> float:
    published = PRESETS[name].published
    assert published is not None
    return published["best"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_states_everything_and_takes_nothing_from_the_methods_defaults(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, preset = configure(preset=name), PRESETS[name]
    assert config.method == preset.method
    assert config.settings == preset.layer["settings"]
    assert config.data.name in PUBLISHED
    assert not config.data.allow_partial
    monkeypatch.setitem(METHODS, preset.method, replace(METHODS[preset.method], defaults={}))
    assert configure(preset=name) == config


def test_there_is_a_preset_for_every_cell() -> None:
    papers = [name.partition("/")[0] for name in PRESETS]
    semifl = 24 + 6 + 3 + 12 + 8 + 8 + 8
    hassle = 2 * (9 + 6) + 4 + 5 + 2 + 5
    shvr = 2 * (4 + 1 + 2) + 4 + 2 * 5
    assert [papers.count(paper) for paper in ("semifl", "hassle", "fed-shvr")] == [semifl, hassle, shvr]


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
        ("hassle/fmnist-5", {"SM": 77.83, "UM": 77.98, "EM": 78.04}),
        ("hassle/cifar10-10", {"SM": 66.34, "UM": 67.14, "EM": 67.79}),
        ("hassle/cifar10-10-alpha0.01", {"SM": 62.19, "UM": 63.17, "EM": 63.27}),
        ("hassle/fedavg-cifar10-10", {"best": 57.85}),
        ("hassle/table2-gra", {"SM": 62.11, "UM": 64.09, "EM": 64.54}),
        ("hassle/table3-width-1-16", {"SM": 65.57, "UM": 66.47, "EM": 67.13}),
        ("hassle/table6-threshold-0.95", {"SM": 66.42, "UM": 67.25, "EM": 67.84}),
        ("hassle/layout-PL", None),
        ("fed-shvr/mnist-iid", {"round 1": 83.6, "round 100": 96.6}),
        ("fed-shvr/mnist-noniid-a1-0-a2-0.1", {"round 1": 72.9, "round 100": 95.4}),
        ("fed-shvr/fedavg-mnist-noniid", {"round 1": 37.8, "round 100": 87.5}),
        ("fed-shvr/fedavg-all-mnist-iid", {"round 1": 94.4, "round 100": 98.5}),
    ],
)
def test_the_printed_numbers_are_there(name: str, published: dict[str, float] | None) -> None:
    assert PRESETS[name].published == published


@pytest.mark.parametrize(
    "cell", ["cifar10-250", "cifar10-4000", "svhn-250", "svhn-1000", "cifar100-2500", "cifar100-10000"]
)
def test_semifl_beats_the_labels_alone_and_stays_below_all_labels(cell: str) -> None:
    data = cell.partition("-")[0]
    for spread in SPREADS:
        assert best(f"semifl/partially-{cell}") < best(f"semifl/{cell}-{spread}") < best(f"semifl/fully-{data}")
    assert best(f"semifl/{cell}-k2") > best(f"semifl/heterofl-{data}-k2")
    for spread in SPREADS[1:]:
        assert best(f"semifl/{cell}-{spread}") < best(f"semifl/heterofl-{data}-{spread}")


@pytest.mark.parametrize("spread", ["k2", "iid"])
def test_repeated_cells_of_semifl_agree_between_tables(spread: str) -> None:
    first = best(f"semifl/cifar10-4000-{spread}")
    for again in ("table2-fine-tune-global", "table3-everyone-4000", "table5-full"):
        assert best(f"semifl/{again}-{spread}") == pytest.approx(first, abs=0.05)


@pytest.mark.parametrize("fedavg", HASSLE_CELLS)
def test_hassles_ensemble_is_above_both_models_and_those_above_fedavg(fedavg: str) -> None:
    published = PRESETS[fedavg.replace("fedavg-", "")].published
    assert published is not None
    assert published["EM"] > published["UM"] > published["SM"] > best(fedavg)


def test_hassles_gain_over_fedavg_in_cifar10_shrinks_with_more_labels() -> None:
    gains = [
        (PRESETS[f"hassle/cifar10-{n}"].published or {})["EM"] - best(f"hassle/fedavg-cifar10-{n}") for n in (5, 10, 20)
    ]
    assert gains == pytest.approx([11.04, 9.94, 3.87])


def test_a_cell_differs_from_its_table_in_the_switch_that_it_is_named_after() -> None:
    def changed(name: str, base: str) -> dict[str, object]:
        settings = PRESETS[name].layer["settings"]
        return {key: value for key, value in settings.items() if value != PRESETS[base].layer["settings"][key]}

    full = "semifl/cifar10-4000-iid"
    assert changed("semifl/table5-1-epoch-iid", full) == {"epochs": 1}
    assert changed("semifl/table5-no-momentum-iid", full) == {"global_momentum": 0.0}
    assert changed("semifl/table3-hub-4000-iid", full) == {"statistics_from": "hub"}
    assert changed("semifl/table2-fine-tune-batch-iid", full) == {"labels_from": "batch", "mixup": False}
    assert changed("hassle/table2-none", "hassle/cifar10-10") == {"residual": False, "proximity": False}
    assert changed("hassle/table3-width-2-16", "hassle/cifar10-10") == {"residual_width": 0.125}
    assert changed("fed-shvr/fed-sh-mnist-iid", "fed-shvr/mnist-iid") == {"correct": False}
    assert changed("fed-shvr/mnist-iid-a1-0-a2-0", "fed-shvr/mnist-iid") == {"soft_weight": 0.0, "output_weight": 0.0}

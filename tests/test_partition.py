import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedglean.data.labels import make_split
from fedglean.data.partition import PARTITIONS, apportion, fill
from fedglean.errors import ConfigError

CIFAR = torch.arange(50_000) % 10
SPECS = [
    "iid",
    "classes:3",
    "dirichlet:0.1",
    "dirichlet:0.01",
    "balanced-dirichlet:0.05",
    "hassle-dirichlet:0.1",
]


def deal(
    labels: Tensor, clients: int, partition: str, seed: int = 0, classes: int = 10
) -> list[Tensor]:
    return list(make_split(labels, classes, clients, partition, "all", seed).labelled)


def sizes(parts: list[Tensor]) -> list[int]:
    return [len(part) for part in parts]


@st.composite
def labels_and_clients(draw: st.DrawFn) -> tuple[Tensor, int]:
    images = draw(st.integers(40, 400))
    numbers = np.random.default_rng(draw(st.integers(0, 10_000))).integers(
        0, draw(st.integers(1, 10)), images
    )
    return torch.from_numpy(numbers), draw(st.integers(4, 40))


@settings(max_examples=60, deadline=None)
@given(labels_and_clients(), st.sampled_from(SPECS), st.integers(0, 2**40))
def test_every_image_is_dealt_exactly_once(
    case: tuple[Tensor, int], partition: str, seed: int
) -> None:
    labels, clients = case
    parts = deal(labels, clients, partition, seed)
    assert len(parts) == clients
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("partition", SPECS)
def test_a_seed_gives_the_same_split_and_another_seed_another(partition: str) -> None:
    first, again, other = (deal(CIFAR[:3000], 20, partition, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", SPECS)
def test_the_order_of_a_clients_images_does_not_tell_their_classes(partition: str) -> None:
    for part in deal(CIFAR, 10, partition):
        kinds = CIFAR[part]
        if len(kinds.unique()) > 1:
            assert not torch.equal(kinds, kinds.sort().values)


def test_iid_sizes_differ_by_at_most_one_and_are_not_contiguous() -> None:
    parts = deal(CIFAR[:1003], 10, "iid")
    assert sorted(sizes(parts)) == [100] * 7 + [101] * 3
    assert all((part.sort().values.diff() > 1).any() for part in parts)


def test_two_classes_a_client_as_in_semifl() -> None:
    split = make_split(CIFAR, 10, 100, "classes:2", "hub:4000", 0)
    assert all(len(part) == 460 and len(CIFAR[part].unique()) <= 2 for part in split.unlabelled)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(10, 60), st.integers(0, 1000))
def test_a_client_never_gets_more_than_k_classes(share: int, clients: int, seed: int) -> None:
    assert all(
        len(CIFAR[p].unique()) <= share
        for p in deal(CIFAR[:907], clients, f"classes:{share}", seed)
    )


def test_dirichlet_clients_have_at_least_ten_images_and_differ_widely() -> None:
    counts = sizes(deal(CIFAR, 100, "dirichlet:0.1"))
    assert min(counts) >= 10
    assert max(counts) > 3 * np.median(counts) / 2


def test_a_smaller_dirichlet_parameter_gives_more_skewed_clients() -> None:
    def top(partition: str) -> float:
        parts = deal(CIFAR, 20, partition)
        return float(np.mean([torch.bincount(CIFAR[p]).max() / len(p) for p in parts]))

    for kind in ("dirichlet", "balanced-dirichlet", "hassle-dirichlet"):
        assert top(f"{kind}:0.05") > top(f"{kind}:1") > top(f"{kind}:100")
        assert top(f"{kind}:1000") < 0.15


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 100), st.integers(1, 50), st.integers(0, 1000))
def test_balanced_sizes_are_within_a_fifth_of_equal(alpha: float, clients: int, seed: int) -> None:
    mean = 5000 / clients
    for count in sizes(deal(CIFAR[:5000], clients, f"balanced-dirichlet:{alpha:.4f}", seed)):
        assert 0.8 * mean - 1 <= count <= 1.2 * mean + 1


def test_hassle_sizes_are_equal() -> None:
    counts = sizes(deal(CIFAR[:1009], 20, "hassle-dirichlet:0.1"))
    assert max(counts) - min(counts) <= 1


def test_hassle_deals_to_nine_clients_at_a_time_so_the_tenth_has_every_class_alike() -> None:
    parts = deal(CIFAR, 10, "hassle-dirichlet:0.1")
    shares = [
        torch.bincount(CIFAR[torch.as_tensor(part)], minlength=10) / len(part) for part in parts
    ]
    several = [1 / float((share**2).sum()) for share in shares]  # 10 where all classes are alike
    assert several[9] > 9 and max(several[:8]) < 8


@pytest.mark.parametrize(
    "partition", ["dirichlet:0.01", "balanced-dirichlet:0.01", "hassle-dirichlet:0.01"]
)
@pytest.mark.parametrize("images", [500, 600, 2000])
def test_extreme_settings_end(partition: str, images: int) -> None:
    start = time.process_time()
    parts = deal(CIFAR[:images], 500, partition)
    assert sum(sizes(parts)) == images
    assert time.process_time() - start < 10
    if images == 2000:
        assert min(sizes(parts)) >= 1


@pytest.mark.parametrize(
    ("partition", "sentence"),
    [
        ("idd", "did you mean 'iid'"),
        ("clases:2", "did you mean 'classes'"),
        ("iid:3", "write it as 'iid'"),
        ("classes", "write it as 'classes:K'"),
        ("classes:", "write it as 'classes:K'"),
        ("classes:0", "whole number of at least 1, not '0'"),
        ("classes:two", "not 'two'"),
        ("classes:1", "use classes:2 or more"),
        ("dirichlet:0", "needs a number from 0.0001"),
        ("dirichlet:nan", "not 'nan'"),
        ("dirichlet:-1", "not '-1'"),
        ("dirichlet:1_0", "not '1_0'"),
        ("balanced-dirichlet:inf", "not 'inf'"),
    ],
)
def test_a_bad_partition_is_refused_in_one_helpful_sentence(partition: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        deal(CIFAR[:100], 5, partition)


@pytest.mark.parametrize("clients", [0, -1, 101])
def test_more_clients_than_images_are_refused(clients: int) -> None:
    with pytest.raises(ConfigError, match="cannot share 100 images"):
        deal(CIFAR[:100], clients, "iid")


def test_every_listed_partition_works() -> None:
    for form in PARTITIONS:
        spec = form.replace(":K", ":2").replace(":BETA", ":0.5").replace(":ALPHA", ":0.5")
        assert sum(sizes(deal(CIFAR[:500], 10, spec))) == 500


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=20), st.integers(0, 10_000))
def test_apportioned_numbers_sum_up_and_are_within_one_of_exact(
    weights: list[float], total: int
) -> None:
    ratio = np.array(weights)
    counts = apportion(ratio, total)
    assert counts.sum() == total
    assert (np.abs(counts - ratio / ratio.sum() * total) < 1 + 1e-6).all()


@given(st.lists(st.integers(0, 30), min_size=3, max_size=3), st.integers(0, 100))
def test_filling_takes_what_there_is_and_never_more(stock: list[int], size: int) -> None:
    have = np.array(stock)
    taken = fill(np.array([0.9, 0.1, 0.0]), have, size)
    assert taken.sum() == min(size, sum(stock))
    assert (taken <= have).all() and (taken >= 0).all()

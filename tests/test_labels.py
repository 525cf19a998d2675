from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedglean.data.labels import LAYOUTS, make_split
from fedglean.data.partition import Split
from fedglean.data.sources import load
from fedglean.data.split_file import check_split, fitted, load_split, save_split, split_digest
from fedglean.errors import ConfigError, DataError, StorageError

CIFAR = torch.arange(50_000) % 10
DIGITS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST = torch.repeat_interleave(torch.arange(10), torch.tensor(DIGITS))
SMALL = CIFAR[:1200]


def sizes(parts: tuple[Tensor, ...]) -> list[int]:
    return [len(part) for part in parts]


def small_split() -> Split:
    return make_split(SMALL, 10, 6, "dirichlet:0.3", "fraction:0.2", 3)


WHO = [
    "hub:50",
    "all-hub",
    "each:2",
    "fraction:0.3",
    "fraction:0,1,0.5",
    "all",
    "PL:20%",
    "LPL:20%",
    "UPL:20%",
]
WHO += ["LU:20%", "ALL:5%", "ALL:20%", "mismatch-digits:4", "mismatch:6,0.3"]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(WHO), st.sampled_from(["iid", "balanced-dirichlet:0.1", "hassle-dirichlet:0.1"])
)
@pytest.mark.parametrize("clients", [3, 20])
def test_nobody_shares_an_image(clients: int, who: str, partition: str) -> None:
    split = make_split(SMALL, 10, clients, partition, who, 7)
    held = torch.cat([split.hub, *split.labelled, *split.unlabelled])
    assert len(held) == len(held.unique())
    assert len(split.labelled) == len(split.unlabelled) == clients
    assert held.dtype == torch.int64
    # Only a mismatch may leave images without a place.
    assert len(held) == len(SMALL) or who.startswith("mismatch:")
    check_split(split, len(SMALL), SMALL)


@pytest.mark.parametrize("who", WHO)
def test_a_seed_gives_the_same_holdings_and_another_seed_others(who: str) -> None:
    first, again, other = (make_split(SMALL, 10, 5, "iid", who, seed) for seed in (1, 1, 2))
    assert split_digest(first) == split_digest(again)
    assert split_digest(first) != split_digest(other) or who == "all-hub"


def test_the_hub_has_equally_many_labels_a_class_and_clients_have_none() -> None:
    split = make_split(CIFAR, 10, 100, "iid", "hub:4000", 0)
    assert torch.bincount(CIFAR[split.hub]).tolist() == [400] * 10
    assert sizes(split.labelled) == [0] * 100
    assert sizes(split.unlabelled) == [460] * 100


def test_a_hub_with_everything_leaves_the_clients_nothing() -> None:
    split = make_split(SMALL, 10, 4, "iid", "all-hub", 0)
    assert sorted(split.hub.tolist()) == list(range(1200))
    assert sizes(split.labelled) == sizes(split.unlabelled) == [0] * 4


def test_each_client_labels_as_evenly_as_its_images_allow() -> None:
    split = make_split(SMALL, 10, 6, "dirichlet:0.3", "each:25", 0)
    for mine, rest in zip(split.labelled, split.unlabelled, strict=True):
        got, left = (
            torch.bincount(SMALL[mine], minlength=10),
            torch.bincount(SMALL[rest], minlength=10),
        )
        assert int(got.sum()) == 25
        # A class below the best-served one by two or more has no image left to label.
        assert all(int(left[kind]) == 0 for kind in range(10) if got[kind] < got.max() - 1)


def test_fractions_are_cycled_over_the_clients() -> None:
    split = make_split(SMALL, 10, 4, "iid", "fraction:0.1,1", 0)
    assert sizes(split.labelled) == [30, 300, 30, 300]
    assert sizes(split.unlabelled) == [270, 0, 270, 0]


def near(counts: list[int], total: int) -> bool:
    return sum(counts) == total and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("partition", ["iid", "hassle-dirichlet:0.1", "hassle-dirichlet:0.01"])
def test_hassles_default_layout_has_the_sizes_of_the_release(partition: str) -> None:
    split = make_split(CIFAR, 10, 20, partition, "ALL:10%", 0)
    labelled, unlabelled = sizes(split.labelled), sizes(split.unlabelled)
    assert labelled[0] == 2500 and unlabelled[0] == 0
    assert near(labelled[1:10], 2500) and near(unlabelled[1:10], 20_000)
    assert labelled[10:] == [0] * 10 and unlabelled[10:] == [2500] * 10
    assert torch.bincount(CIFAR[torch.cat(split.labelled)]).tolist() == [500] * 10


@pytest.mark.parametrize(
    ("who", "full", "partial", "none", "labels"),
    [
        ("PL:10%", 0, 20, 0, 250),
        ("LPL:10%", 2500, 19, 0, 132),
        ("UPL:10%", 0, 10, 10, 500),
        ("LU:10%", 2500, 0, 18, 0),
        ("ALL:5%", 1250, 1, 18, 1250),
        ("ALL:20%", 5000, 9, 10, 556),
    ],
)
def test_the_other_layouts_have_their_published_sizes(
    who: str, full: int, partial: int, none: int, labels: int
) -> None:
    split = make_split(CIFAR, 10, 20, "iid", who, 0)
    labelled, unlabelled = sizes(split.labelled), sizes(split.unlabelled)
    fully = [n for n, u in zip(labelled, unlabelled, strict=True) if u == 0]
    partly = [n for n, u in zip(labelled, unlabelled, strict=True) if n and u]
    assert (fully, len(partly), labelled.count(0)) == (
        [full] * (20 - partial - none),
        partial,
        none,
    )
    assert all(abs(n - labels) <= 1 for n in partly)
    assert sum(labelled) == 50_000 * int(who.split(":")[1][:-1]) // 100


def test_layouts_scale_with_the_number_of_clients() -> None:
    split = make_split(CIFAR, 10, 100, "iid", "ALL:10%", 0)
    labelled, unlabelled = sizes(split.labelled), sizes(split.unlabelled)
    assert labelled[:5] == [500] * 5 and near(labelled[5:50], 2500) and labelled[50:] == [0] * 50
    assert near(unlabelled[5:50], 20_000) and unlabelled[50:] == [500] * 50


def test_fed_shvr_clients_have_sixty_labels_of_two_digits_and_sizes_in_the_papers_range() -> None:
    split = make_split(MNIST, 10, 10, "balanced-dirichlet:0.1", "mismatch-digits:60", 0)
    assert sizes(split.labelled) == [60] * 10
    assert all(torch.bincount(MNIST[part]).max() == 30 for part in split.labelled)
    assert torch.bincount(MNIST[torch.cat(split.labelled)]).tolist() == [60] * 10
    assert sum(sizes(split.unlabelled)) == 59_400
    assert all(4320 <= count <= 8000 for count in sizes(split.unlabelled))


@pytest.mark.parametrize("ratio", [0, 0.25, 0.5, 1])
@pytest.mark.parametrize("partition", ["iid", "balanced-dirichlet:0.025"])
def test_the_mismatch_ratio_is_the_share_of_classes_without_labels(
    ratio: float, partition: str
) -> None:
    split = make_split(CIFAR, 10, 40, partition, f"mismatch:100,{ratio}", 0)
    assert sizes(split.labelled) == [100] * 40
    for mine, rest in zip(split.labelled, split.unlabelled, strict=True):
        known = CIFAR[mine].unique()
        assert len(known) == 6
        foreign = int((~torch.isin(CIFAR[rest], known)).sum())
        assert abs(foreign - ratio * len(rest)) <= 1
    assert sum(sizes(split.unlabelled)) >= 0.995 * 46_000


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 30), st.floats(0, 1))
def test_a_mismatch_holds_on_uneven_classes_too(seed: int, clients: int, ratio: float) -> None:
    labels = torch.from_numpy(np.random.default_rng(seed).geometric(0.4, 3000).clip(1, 4) - 1)
    split = make_split(labels, 4, clients, "dirichlet:0.5", f"mismatch:6,{ratio:.3f}", seed)
    for mine, rest in zip(split.labelled, split.unlabelled, strict=True):
        foreign = int((~torch.isin(labels[rest], labels[mine].unique())).sum())
        assert abs(foreign - float(f"{ratio:.3f}") * len(rest)) <= 1


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ("hubb:10", "did you mean 'hub'"),
        ("all:3", "write it as 'all'"),
        ("hub:255", "use hub:250 or hub:260"),
        ("hub:3", "use hub:10"),
        ("hub:2000", "class 0 has only 120; use at most hub:1200"),
        ("hub:1200", "6 clients cannot share 0 images"),
        ("each:201", "at most each:200"),
        ("each:-1", "not '-1'"),
        ("fraction:1.5", "from 0 to 1, not '1.5'"),
        ("fraction:0.1,0.2,0.3,0.4,0.5,0.6,0.7", "more shares than there are clients"),
        ("PL:10", "write it as 'PL:10%'"),
        ("PL:101%", "from 0 to 100"),
        ("ALL:0.1%", "use a larger percentage"),
        ("mismatch-digits:1", "at least 2 classes and 2 labels"),
        ("mismatch-digits:300", "use fewer labels"),
        ("mismatch:100", "write it as 'mismatch:N,RATIO'"),
        ("mismatch:3,0.5", "6 labels per client"),
    ],
)
def test_a_bad_layout_is_refused_in_one_helpful_sentence(who: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_split(SMALL, 10, 6, "iid", who, 0)


def test_one_class_cannot_be_mismatched() -> None:
    with pytest.raises(ConfigError, match="at least 2 classes and 1 labels"):
        make_split(torch.zeros(50, dtype=torch.int64), 1, 2, "iid", "mismatch:3,0.5", 0)


def test_layouts_with_several_kinds_of_clients_need_as_many() -> None:
    with pytest.raises(ConfigError, match="3 kinds of clients"):
        make_split(SMALL, 10, 2, "iid", "ALL:10%", 0)


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, -1]), torch.tensor([0, 10]), torch.zeros(0), torch.zeros(2, 2)]
)
def test_labels_that_are_no_classes_are_refused(labels: Tensor) -> None:
    with pytest.raises(DataError, match="from 0 to 9"):
        make_split(labels, 10, 1, "iid", "all", 0)


def test_every_listed_layout_works() -> None:
    for form in LAYOUTS:
        spec = (
            form.replace("N,RATIO", "10,0.5")
            .replace(":N", ":10")
            .replace(":F", ":0.5")
            .replace("P%", "20%")
        )
        assert len(make_split(SMALL, 10, 6, "iid", spec, 0).labelled) == 6


def test_a_saved_split_comes_back(tmp_path: Path) -> None:
    split = small_split()
    named = Split(split.hub, split.labelled, split.unlabelled, ("Köln", "b", "c", "d", "e", "f"))
    save_split(tmp_path / "new" / "split.json", named)
    back = load_split(tmp_path / "new" / "split.json")
    assert split_digest(back) == split_digest(named) != split_digest(split)
    assert back.names == named.names
    assert all(
        torch.equal(a, b) and b.dtype == torch.int64
        for a, b in zip(named.labelled, back.labelled, strict=True)
    )
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["split.json"]


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    tiny = Split(torch.tensor([4]), (torch.tensor([0, 12]),), (torch.tensor([7]),), ("a",))
    save_split(tmp_path / "good", tiny)
    raw = (tmp_path / "good").read_bytes()
    for place in range(len(raw)):
        for bit in range(8):
            broken = bytearray(raw)
            broken[place] ^= 1 << bit
            (tmp_path / "bad").write_bytes(broken)
            with pytest.raises(StorageError):
                load_split(tmp_path / "bad")


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 0.999))
def test_a_truncated_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("split")
    save_split(folder / "split", small_split())
    raw = (folder / "split").read_bytes()
    (folder / "split").write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(StorageError):
        load_split(folder / "split")


def test_a_missing_file_and_a_place_that_cannot_be_written_are_storage_errors(
    tmp_path: Path,
) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        load_split(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot create the folder"):
        save_split(tmp_path / "file" / "split", small_split())


def one(*images: int) -> tuple[Tensor, ...]:
    return (torch.tensor(images, dtype=torch.int64),)


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (Split(one(0)[0], one(1), one(5)), "image 5 of 5"),
        (Split(one(0)[0], one(-1), one(1)), "image -1"),
        (Split(one(0)[0], one(2), one(2)), "image 2 twice"),
        (Split(one(0)[0], one(4), one(2)), "image 4 as labelled"),
        (Split(one(4)[0], one(1), one(2)), "image 4 as labelled"),
        (Split(one(0)[0], one(1), ()), "list all labelled and unlabelled"),
        (Split(one(0)[0], one(1), one(2), ("a", "b")), "list all labelled and unlabelled"),
    ],
)
def test_a_split_that_does_not_fit_the_data_is_refused(split: Split, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        check_split(split, 5, torch.tensor([0, 1, 0, 1, -1]))


def test_a_split_is_of_one_data_set() -> None:
    digits = load("digits")
    split = fitted(make_split(digits.train_labels, 10, 5, "iid", "hub:20", 0), digits)
    assert fitted(split, digits).data == split.data and split_digest(split) == split_digest(
        replace(split, data="")
    )
    others = (
        replace(digits, train_labels=digits.train_labels.flip(0)),
        replace(digits, train_images=digits.train_images.flip(0)),
        replace(digits, test_images=digits.test_images.flip(0)),
        replace(digits, classes=tuple("abcdefghij")),
    )
    for other in others:
        with pytest.raises(DataError, match="not those of the split"):
            fitted(split, other)


def test_a_split_remembers_its_data_in_a_file_and_one_of_before_has_none(tmp_path: Path) -> None:
    save_split(tmp_path / "split", replace(small_split(), data="a digest"))
    assert load_split(tmp_path / "split").data == "a digest"
    save_split(tmp_path / "before", small_split())
    assert (
        load_split(tmp_path / "before").data == ""
        and b"data" not in (tmp_path / "before").read_bytes()
    )


def test_an_unlabelled_image_needs_no_label() -> None:
    check_split(Split(one()[0], one(0), one(4)), 5, torch.tensor([0, 1, 0, 1, -1]))
    check_split(Split(one()[0], one(), one()), 5)

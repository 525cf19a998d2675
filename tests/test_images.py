"""Who may see what: images by index, labels only where a party has them, and nothing else within
reach.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedglean import tree
from fedglean.data.dataset import Dataset
from fedglean.data.federation import Federation, Truth, divide
from fedglean.data.labels import make_split
from fedglean.data.partition import Split
from fedglean.data.sources import load
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Images, Predictions
from fedglean.method import Declared, Hub
from fedglean.runs.config import configure
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import LiveRun, play
from fedglean.testing.engines import variant

CPU = torch.device("cpu")


def images(count: int, label: Tensor | None = None) -> Images:
    return Images(
        torch.arange(4 * count, dtype=torch.uint8).reshape(-1, 1, 1, 1),
        torch.arange(count) * 4,
        label,
    )


def dataset() -> Dataset:
    return load("digits")


def split(labels: str) -> Split:
    return make_split(dataset().train_labels, 10, 5, "iid", labels, 3)


def test_pixels_are_those_of_the_store_at_the_positions_index() -> None:
    assert images(3).pixels(torch.tensor([[2, 0], [1, 1]])).flatten().tolist() == [8, 0, 4, 4]


def test_a_set_of_images_is_falsy_only_when_it_is_empty() -> None:
    assert images(1) and not images(0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), max_size=8))
def test_a_subset_keeps_images_and_labels_together(mask: list[bool]) -> None:
    chosen = images(len(mask), torch.arange(len(mask))).subset(torch.tensor(mask, dtype=torch.bool))
    kept = [place for place, keep in enumerate(mask) if keep]
    assert chosen.label is not None and chosen.label.tolist() == kept
    assert chosen.index.tolist() == [4 * place for place in kept]


def test_two_sets_join_and_know_labels_only_if_both_did() -> None:
    whole = images(4, torch.arange(4))
    first, rest = (
        whole.subset(torch.tensor([1, 0, 0, 1]).bool()),
        whole.subset(torch.tensor([0, 1, 1, 0]).bool()),
    )
    assert (first + rest).index.tolist() == [0, 12, 4, 8]
    joined = (first + rest).label
    assert joined is not None and joined.tolist() == [0, 3, 1, 2]
    assert (first + replace(rest, label=None)).label is None


def test_images_of_two_stores_do_not_join() -> None:
    with pytest.raises(ValueError, match="two stores"):
        images(2) + images(2)


def test_trusted_guesses_reach_the_threshold_and_carry_the_likeliest_class() -> None:
    rows = torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.95, 0.05]])
    guess = Predictions(images(3), rows, threshold=0.9)
    assert guess.trusted.tolist() == [True, False, True]
    confident, hard = guess.confident, guess.hard
    assert (
        confident.index.tolist() == [0, 8]
        and confident.label is not None
        and confident.label.tolist() == [1, 0]
    )
    assert len(hard) == 3 and hard.label is not None and hard.label.tolist()[0] == 1
    assert (
        Predictions(images(3), rows).trusted.all()
        and not Predictions(images(3), rows, 0.99).confident
    )


@pytest.mark.parametrize("labels", ["hub:50", "fraction:0.2", "LU:30%"])
def test_every_party_gets_the_images_and_labels_of_the_split(labels: str) -> None:
    data, parts = dataset(), split(labels)
    federation, truth = divide(data, parts, CPU)
    for got, index in zip(
        (federation.hub, *federation.labelled), (parts.hub, *parts.labelled), strict=True
    ):
        assert torch.equal(got.index, index) and torch.equal(got.label, data.train_labels[index])  # type: ignore[arg-type]
    for got, index in zip(federation.unlabelled, parts.unlabelled, strict=True):
        assert torch.equal(got.index, index) and got.label is None
    assert federation.declared == tuple(
        Declared(len(a), len(b)) for a, b in zip(parts.labelled, parts.unlabelled, strict=True)
    )
    assert torch.equal(truth.labels, data.train_labels)


def test_a_client_sees_its_own_images_state_and_number() -> None:
    federation, _ = divide(dataset(), split("fraction:0.2"), CPU)
    me = federation.me(2, "mine", 7)
    assert (me.number, me.state, me.key) == (2, "mine", 7)
    assert me.labelled is federation.labelled[2] and me.unlabelled is federation.unlabelled[2]


def reachable(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that can be got at from an object by attributes, entries, slots, closures and
    views.
    """
    if id(thing) in seen or isinstance(thing, type | str | int | float | None):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        if thing._base is not None:
            yield from reachable(thing._base, seen)
    parts = [getattr(thing, "__dict__", {}), getattr(thing, "__closure__", None) or ()]
    parts.append([cell.cell_contents for cell in parts[1]])
    parts += [thing] if isinstance(thing, dict | list | tuple | set) else []
    for part in parts:
        for child in part.values() if isinstance(part, dict) else part:
            yield from reachable(child, seen)


def whole_storage(found: Tensor) -> Tensor:
    return torch.empty(0, dtype=found.dtype).set_(found.untyped_storage())


@pytest.mark.parametrize("labels", ["hub:50", "fraction:0.2", "LU:30%"])
def test_no_hidden_label_is_within_reach_of_a_party(labels: str) -> None:
    data, parts = dataset(), split(labels)
    federation, truth = divide(data, parts, CPU)
    hub = Hub(1, 1, federation.hub, federation.declared, 0)
    mine = [federation.me(number, None, 0) for number in range(5)]
    hidden = [
        data.train_labels[index]
        for index in (*parts.unlabelled, torch.arange(len(data.train_labels)))
    ]
    hidden = [
        part for part in (*hidden, data.train_labels[torch.cat(parts.unlabelled)]) if len(part)
    ]
    for thing in (federation, hub, *mine):
        found = list(reachable(thing, set()))
        assert found and not any(same_numbers(one, other) for one in found for other in hidden)
    assert any(same_numbers(one, other) for one in reachable(truth, set()) for other in hidden)


def same_numbers(found: Tensor, hidden: Tensor) -> bool:
    """Whether the hidden labels are the tensor, or lie in the memory behind it."""
    memory = whole_storage(found)
    starts = range(len(memory) - len(hidden) + 1) if memory.dtype == hidden.dtype else ()
    return any(
        memory[start] == hidden[0] and torch.equal(memory[start : start + len(hidden)], hidden)
        for start in starts
    )


def test_a_client_reaches_no_label_of_another_client() -> None:
    federation, _ = divide(dataset(), split("fraction:0.2"), CPU)
    for number in range(5):
        found = list(reachable(federation.me(number, None, 0), set()))
        others = [part.label for place, part in enumerate(federation.labelled) if place != number]
        assert not any(one is other for one in found for other in others)


OPTIONS: dict[str, dict[str, Any]] = {
    "semifl": {
        "labels": "hub:50",
        "epochs": 1,
        "threshold": 0.2,
        "active": 0.5,
        "hub_batch": 20,
        "client_batch": 50,
    },
    "hassle": {"labels": "fraction:0.1", "epochs": 1, "residual_steps": 1},
    "fed-shvr": {"labels": "mismatch-digits:10", "epochs": 1},
}


@pytest.mark.parametrize("method", OPTIONS)
def test_scrambled_hidden_labels_leave_the_trained_model_bit_identical(method: str) -> None:
    honest = prepare(configure(method, clients=5, rounds=1, **OPTIONS[method]))
    labels = honest.dataset.train_labels.clone()
    hidden = torch.cat(honest.split.unlabelled)
    labels[hidden] = (labels[hidden] + 1 + torch.arange(len(hidden)) % 9) % 10
    federation, truth = divide(replace(honest.dataset, train_labels=labels), honest.split, CPU)
    assert not (truth.labels == honest.dataset.train_labels)[hidden].any()
    evaluator = replace(honest.evaluator, truth=truth)
    scrambled = variant(replace(honest, federation=federation), observe=evaluator.watch)
    scrambled = replace(scrambled, evaluator=evaluator)
    honest = variant(honest)
    states = []
    for experiment in (honest, scrambled):
        progress = Progress(0, experiment.start(), ClientStates(), [])
        play([LiveRun(experiment, progress)], lambda lines: None)
        states.append(
            (tree.named(progress.state), tree.named(progress.kept.states), progress.history[0])
        )
    assert all(torch.equal(states[0][0][name], leaf) for name, leaf in states[1][0].items())
    assert all(torch.equal(states[0][1][name], leaf) for name, leaf in states[1][1].items())
    assert states[0][2]["accuracy"] == states[1][2]["accuracy"]
    # The scrambling did reach the one who may look: pseudo-labels seem worse or better now.
    assert states[0][2]["pseudo"]["accuracy"] != states[1][2]["pseudo"]["accuracy"]


@given(clients=st.integers(1, 300), percent=st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_a_sample_of_clients_is_the_exact_share_rounded_up(clients: int, percent: int) -> None:
    none = Images(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), torch.zeros(0, dtype=torch.long))
    hub = Hub(1, 1, none, (Declared(1, 1),) * clients, 5)
    chosen = hub.sample(percent / 100)
    assert len(chosen) == max(1, -(-percent * clients // 100))
    assert chosen == sorted(set(chosen)) and set(chosen) <= set(hub.everyone)


def test_samples_differ_by_round_and_by_name_and_stay_among_the_given() -> None:
    none = Images(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), torch.zeros(0, dtype=torch.long))
    hubs = [Hub(number, 9, none, (Declared(1, 1),) * 50, number) for number in range(1, 4)]
    drawn = {tuple(hub.sample(0.2, name=name)) for hub in hubs for name in ("sample", "helpers")}
    assert len(drawn) == 6
    assert set(hubs[0].sample(0.5, among=[3, 9, 11, 40])) < {3, 9, 11, 40}
    assert [hub.progress for hub in hubs] == [0, 1 / 9, 2 / 9]


def test_only_truth_holds_all_labels() -> None:
    federation, truth = divide(dataset(), split("hub:50"), CPU)
    assert isinstance(federation, Federation) and isinstance(truth, Truth)
    assert len(truth.labels) == len(dataset().train_labels)

"""Weighted sums and means of uploads, against numbers computed by hand and by numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedglean.exchange.aggregate import MEAN
from fedglean.exchange.exchange import BlockResult, merge
from fedglean.method import Upload
from fedglean.methods.common import with_momentum
from fedglean.models import Architecture, Model
from uploads import reply_to_result, result_of

MODEL = Architecture("mlp", (1, 2, 2), 2, width=0.001).initial(1)


def sent(values: list[float]) -> dict[str, Tensor]:
    return {"x": torch.tensor(values)}


def summed(*uploads: Upload, images: list[int] | None = None, collect: str = "sum") -> BlockResult:
    counts = dict(enumerate(images or [1] * len(uploads)))
    return result_of(dict(enumerate(uploads)), counts, collect)


def test_two_clients_make_the_mean_that_one_computes_by_hand() -> None:
    sums = summed(Upload(part=sent([1.0, 2.0]), weight=3), Upload(part=sent([5.0, -2.0]), weight=1))
    reply = reply_to_result(sums, {"part": sent([0.0, 0.0])})
    assert reply.mean("part")["x"].tolist() == [2.0, 1.0]
    assert reply.sum("part")["x"].tolist() == [8.0, 4.0]
    assert (reply.weight("part"), reply.count("part"), reply.has("part")) == (4.0, 2, True)
    assert reply.received == 16 and reply.answered == [0, 1]


def test_an_element_that_nobody_owns_keeps_its_value() -> None:
    sums = summed(
        Upload(part=sent([1.0, 2.0, 9.0]), weight={"part": sent([1.0, 1.0, 0.0])}),
        Upload(part=sent([4.0, 7.0, 9.0]), weight={"part": sent([2.0, 0.0, 0.0])}),
    )
    assert reply_to_result(sums, {"part": sent([10.0, 20.0, 30.0])}).mean("part")["x"].tolist() == [
        3.0,
        2.0,
        30.0,
    ]


def test_numbers_and_trees_of_weights_go_together() -> None:
    sums = summed(
        Upload(part=sent([1.0, 1.0]), weight=1),
        Upload(part=sent([4.0, 4.0]), weight={"part": sent([2.0, 0.0])}),
    )
    assert reply_to_result(sums, {"part": sent([0.0, 0.0])}).mean("part")["x"].tolist() == [
        3.0,
        1.0,
    ]


def test_a_name_that_nobody_uploaded_stays_as_it_was_sent_and_sums_to_nothing() -> None:
    reply = reply_to_result(
        summed(Upload(other=sent([1.0]))), {"part": sent([7.0]), "other": sent([0.0])}
    )
    assert reply.mean("part")["x"].tolist() == [7.0] and reply.sum("part")["x"].tolist() == [0.0]
    assert not reply.has("part") and reply.count("part") == 0 and reply.weight("part") == 0.0


def test_names_are_weighted_apart_and_by_one_where_none_is_given() -> None:
    sums = summed(
        Upload(a=sent([1.0]), b=sent([1.0]), weight={"a": 3}),
        Upload(a=sent([5.0]), b=sent([5.0]), weight={"a": 1}),
    )
    reply = reply_to_result(sums, {"a": sent([0.0]), "b": sent([0.0])})
    assert reply.mean("a")["x"].tolist() == [2.0] and reply.mean("b")["x"].tolist() == [3.0]


def test_reports_are_averaged_by_the_images_behind_them() -> None:
    uploads = [Upload(part=sent([0.0]), report={"loss": loss}) for loss in (1.0, 4.0)]
    uploads.append(Upload(part=sent([0.0]), report={"other": 5.0}))
    reply = reply_to_result(summed(*uploads, images=[10, 5, 2]), {})
    assert reply.report == {"loss": pytest.approx(2.0), "other": 5.0}
    assert reply_to_result(summed(uploads[0], images=[0]), {}).report == {}


def test_uploads_are_kept_one_by_one_only_when_asked_for() -> None:
    uploads = [Upload(part=sent([1.0])), Upload(part=sent([2.0]))]
    assert reply_to_result(summed(*uploads), {}).uploads == {}
    kept = reply_to_result(summed(*uploads, collect="all"), {}).uploads
    assert {client: upload.trees for client, upload in kept.items()} == {
        0: uploads[0].trees,
        1: uploads[1].trees,
    }


def test_a_model_comes_back_as_a_model_of_its_own_dtype() -> None:
    shifted = Model(
        MODEL.architecture, {name: value + 2 for name, value in MODEL.parameters.items()}
    )
    mean = reply_to_result(
        summed(Upload(model=MODEL), Upload(model=shifted)), {"model": MODEL}
    ).mean("model")
    assert isinstance(mean, Model) and mean.architecture == MODEL.architecture
    for name, value in MODEL.parameters.items():
        assert mean.parameters[name].dtype == torch.float32
        torch.testing.assert_close(mean.parameters[name], value + 1)


def test_many_small_uploads_are_summed_in_double_precision() -> None:
    uploads = [Upload(part=sent([16777216.0]))] + [Upload(part=sent([1.0])) for _ in range(64)]
    assert reply_to_result(summed(*uploads), {"part": sent([0.0])}).sum("part")["x"].tolist() == [
        16777280.0
    ]


NUMBERS = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=60, deadline=None)
@given(
    clients=st.lists(
        st.tuples(st.lists(NUMBERS, min_size=3, max_size=3), st.floats(0.1, 50)),
        min_size=1,
        max_size=9,
    ),
    block=st.integers(1, 4),
    shuffled=st.randoms(use_true_random=False),
)
def test_sums_equal_numpys_whatever_the_blocks_and_the_order(
    clients: list[Any], block: int, shuffled: Any
) -> None:
    uploads = [Upload(part=sent(values), weight=weight) for values, weight in clients]
    values = np.array([np.float32(row) for row, _ in clients], dtype=np.float64)
    weights = np.array([weight for _, weight in clients])
    template = {"part": {"x": torch.zeros(3, dtype=torch.float64)}}
    blocks = merge(
        (summed(*uploads[begin : begin + block]) for begin in range(0, len(uploads), block)), MEAN
    )
    shuffled.shuffle(uploads)
    for sums in (blocks, summed(*uploads)):
        reply = reply_to_result(sums, template)
        np.testing.assert_allclose(reply.sum("part")["x"], weights @ values, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(
            reply.mean("part")["x"], np.average(values, axis=0, weights=weights), atol=1e-9
        )
        assert reply.weight("part") == pytest.approx(weights.sum())


def test_blocks_are_added_in_order_and_lose_nothing() -> None:
    first = summed(Upload(part=sent([1.0]), report={"loss": 1.0}))
    more = Upload(part=sent([2.0]), other=sent([3.0]), report={"loss": 3.0})
    second = result_of({5: more}, {5: 3}, collect="all")
    second.abstained.append(4)
    whole = merge([first, second], MEAN)
    assert (whole.answered, whole.abstained) == ([0, 5], [4])
    assert whole.received == 12 and list(whole.uploads) == [5]
    reply = reply_to_result(whole, {})
    assert (reply.count("part"), reply.count("other")) == (2, 1)
    assert reply.report == {"loss": 2.5}


def test_a_variance_is_summed_as_it_was_sent_though_the_gate_looks_at_its_root() -> None:
    part = {"norm.variance": torch.tensor([4.0])}
    assert reply_to_result(summed(Upload(part=part)), {"part": part}).mean("part")[
        "norm.variance"
    ].tolist() == [4.0]


def test_the_same_blocks_in_the_same_order_give_the_same_bits() -> None:
    values = [[0.1 * (place + 1), 1e8 / (place + 1), -7.3e-3 * place] for place in range(20)]

    def total(block: int) -> Tensor:
        blocks = []
        for begin in range(0, 20, block):
            rows = values[begin : begin + block]
            blocks.append(summed(*(Upload(part=sent(row), weight=1 / 3) for row in rows)))
        return MEAN.combine(merge(blocks, MEAN).kept)["part"].total

    assert torch.equal(total(6), total(6))


def constant(value: float) -> Model:
    return Model(
        MODEL.architecture,
        {name: torch.full_like(leaf, value) for name, leaf in MODEL.parameters.items()},
    )


def values_of(leaves: Any) -> set[float]:
    return {float(entry) for leaf in leaves.values() for entry in leaf.flatten()}


def test_the_hubs_momentum_is_what_one_computes_by_hand_for_two_rounds() -> None:
    velocity: Any = {name: torch.zeros_like(leaf) for name, leaf in MODEL.parameters.items()}
    # V1 = 0.5 * 0 + (10 - 6) = 4, W1 = 10 - 4 = 6, which is the mean itself.
    first, velocity = with_momentum(constant(10.0), constant(6.0), velocity, 0.5)
    assert values_of(velocity) == {4.0} and values_of(first.parameters) == {6.0}
    # Tuned to 7 in between. V2 = 0.5 * 4 + (7 - 5) = 4, W2 = 7 - 4 = 3: beyond the mean of 5.
    second, velocity = with_momentum(constant(7.0), constant(5.0), velocity, 0.5)
    assert values_of(velocity) == {4.0} and values_of(second.parameters) == {3.0}


def test_running_statistics_follow_the_mean_and_not_the_momentum() -> None:
    architecture = Architecture("cnn", (1, 4, 4), 2, width=0.125, norm="running")
    own, mean = architecture.initial(1), architecture.initial(2)
    mean = Model(
        architecture, mean.parameters, {name: value + 3 for name, value in mean.statistics.items()}
    )
    moved, _ = with_momentum(
        own, mean, {name: torch.ones_like(leaf) for name, leaf in own.parameters.items()}, 0.9
    )
    assert all(
        torch.equal(moved.statistics[name], mean.statistics[name]) for name in mean.statistics
    )


def test_a_reply_takes_means_of_somebody_elses_making() -> None:
    reply = reply_to_result(summed(Upload(part=sent([1.0]), weight=3)), {"part": sent([0.0])})
    changed = reply.with_means(part=sent([5.0]), other=sent([2.0]))
    assert changed.mean("part")["x"].tolist() == [5.0]
    assert changed.mean("other")["x"].tolist() == [2.0]
    assert changed.answered == reply.answered and reply.mean("part")["x"].tolist() == [1.0]

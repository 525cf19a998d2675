"""Which image comes at which step, in which view: full batches, each image once an epoch."""

from collections import Counter
from copy import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedglean.engine.batches import Batcher, Lane, Setting, at, batches
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe, view
from fedglean.method import Batch, Sample, Stream, Train
from fedglean.optimiser import SGD
from fedglean.randomness import bits, fold_int
from fedglean.tree import named

RECIPE = Recipe((0.5,), (0.25,), flip=True, pad=1, strong="fixmatch-ra")
SETTING = Setting(RECIPE)


def images(count: int, labelled: bool = True, side: int = 4) -> Images:
    """`count` images inside a larger store; an image's label is its place in the set."""
    store = (bits(1, (3 * count, 1, side, side)) & 255).to(torch.uint8)
    index = torch.arange(count) * 3 + 1
    return Images(store, index, torch.arange(count) if labelled else None)


def train(
    streams: dict[str, Stream],
    epochs: int | None = None,
    steps: int | None = None,
    rate: float = 0.1,
) -> Train:
    return Train(None, streams, lambda *_: None, SGD(rate), epochs=epochs, steps=steps)


def drawn(made: list[Batch], stream: str = "data") -> Tensor:
    return torch.stack([batch.streams[stream].index for batch in made])


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 25),
    size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    key=st.integers(0, 2**40),
)
def test_every_image_comes_once_an_epoch_and_every_batch_is_full(
    count: int, size: int, epochs: int, key: int
) -> None:
    stream = Stream(images(count), view="plain", batch=size)
    made = list(batches(train({"data": stream}, epochs=epochs), key, SETTING))
    length = -(-count // size)
    assert len(made) == epochs * length == epochs * stream.epoch
    for epoch in range(epochs):
        rows = drawn(made[epoch * length : (epoch + 1) * length]).flatten().tolist()
        assert sorted(rows[:count]) == list(range(count))
        # What fills the last batch up is the epoch's beginning, over and over for a client smaller
        # than a batch.
        assert rows[count:] == [rows[place % count] for place in range(count, length * size)]


def test_a_batch_holds_the_pixels_and_labels_of_its_index() -> None:
    source = images(7)
    for batch in batches(
        train({"data": Stream(source, view="plain", batch=3)}, epochs=2), 5, SETTING
    ):
        sample = batch.data
        expected = view("plain", source.store[source.index[sample.index]], sample.index, RECIPE)
        assert torch.equal(sample.images, expected) and torch.equal(sample.label, sample.index)


def test_step_epoch_rate_and_key_say_where_a_batch_stands() -> None:
    made = list(batches(train({"data": Stream(images(7), batch=3)}, steps=8, rate=0.3), 5, SETTING))
    assert [int(batch.step) for batch in made] == list(range(8))
    assert [int(batch.epoch) for batch in made] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert {float(batch.rate) for batch in made} == {0.3}
    assert len({int(batch.key) for batch in made}) == 8
    assert all(
        isinstance(leaf, Tensor)
        for leaf in (made[0].step, made[0].epoch, made[0].rate, made[0].key)
    )


def test_the_requests_own_rate_goes_before_the_optimisers() -> None:
    request = Train(
        None, {"data": Stream(images(2))}, lambda *_: None, SGD(0.1), epochs=1, rate=0.025
    )
    assert float(next(batches(request, 1, SETTING)).rate) == 0.025


def test_epochs_and_keys_differ_in_order() -> None:
    request = train({"data": Stream(images(20), batch=20)}, epochs=5)
    orders = {
        tuple(row) for key in (1, 2) for row in drawn(list(batches(request, key, SETTING))).tolist()
    }
    assert len(orders) == 10


def test_streams_of_the_same_images_are_drawn_apart() -> None:
    both = {name: Stream(images(20), batch=20) for name in ("data", "other")}
    made = next(batches(train(both, epochs=1), 1, SETTING))
    assert made.data.index.tolist() != made.other.index.tolist()


def test_the_other_streams_cycle_while_the_first_counts_epochs() -> None:
    streams = {
        "data": Stream(images(12), batch=4),
        "other": Stream(images(5), batch=2, view="plain"),
    }
    made = list(batches(train(streams, epochs=3), 9, SETTING))
    other = drawn(made, "other")
    assert other.shape == (9, 2)
    for cycle in range(3):
        assert sorted(other[3 * cycle : 3 * cycle + 3].flatten()[:5].tolist()) == list(range(5))


def test_draws_with_replacement_repeat_and_are_uniform() -> None:
    stream = Stream(images(10, labelled=False), view="plain", batch=50, draw="with-replacement")
    rows = drawn(list(batches(train({"data": stream}, steps=60), 2, SETTING)))
    counts = Counter(rows.flatten().tolist())
    assert set(counts) == set(range(10))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    assert len({tuple(row) for row in rows.tolist()}) == 60


def test_an_unknown_way_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="'shuffled' or 'with-replacement', not 'sorted'"):
        next(batches(train({"data": Stream(images(3), draw="sorted")}, epochs=1), 1, SETTING))


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 9), size=st.integers(1, 5), at_once=st.integers(1, 60))
def test_how_many_views_are_made_at_once_changes_no_bit(
    count: int, size: int, at_once: int
) -> None:
    streams = {
        "data": Stream(images(count, side=8), view=("strong", "weak", "shift"), batch=size),
        "other": Stream(images(6, side=8), view="noise", batch=2, draw="with-replacement"),
    }
    request = train(streams, steps=7)
    expected = list(batches(request, 3, Setting(RECIPE)))
    cut = list(batches(request, 3, Setting(RECIPE, images_at_once=at_once)))
    for one, other in zip(expected, cut, strict=True):
        assert_same_batch(one, other)


def assert_same_batch(one: Batch, other: Batch) -> None:
    for name, sample in one.streams.items():
        twin = other.streams[name]
        pairs = zip(
            (*sample.views, sample.index, sample.label),
            (*twin.views, twin.index, twin.label),
            strict=True,
        )
        assert all(torch.equal(a, b) for a, b in pairs)
    assert (int(one.step), int(one.epoch), int(one.key)) == (
        int(other.step),
        int(other.epoch),
        int(other.key),
    )


def test_a_one_sample_clients_batch_holds_ten_different_views() -> None:
    stream = Stream(images(1, side=12), view=("strong", "weak"), batch=10)
    made = next(batches(train({"data": stream}, epochs=1), 4, SETTING))
    assert len({picture.numpy().tobytes() for picture in made.data.views[0]}) == 10


def test_views_of_one_image_are_drawn_apart() -> None:
    stream = Stream(images(8, side=12), view=("weak", "weak"), batch=8)
    first, second = next(batches(train({"data": stream}, epochs=1), 4, SETTING)).data.views
    assert not torch.equal(first, second)


def test_labels_may_be_soft_or_missing() -> None:
    soft = torch.rand(5, 3)
    made = next(
        batches(train({"data": Stream(images(5).labelled(soft), batch=5)}, epochs=1), 4, SETTING)
    )
    assert torch.equal(made.data.label, soft[made.data.index])
    bare = next(batches(train({"data": Stream(images(5, labelled=False))}, epochs=1), 4, SETTING))
    assert bare.data.label is None and set(named(dict(bare.streams))) == set()
    with pytest.raises(AttributeError):
        _ = bare.elsewhere


def test_training_on_nothing_or_for_no_length_is_refused() -> None:
    for streams in ({}, {"data": Stream(images(3)), "other": Stream(images(0))}):
        with pytest.raises(ValueError, match="empty stream"):
            train(streams, epochs=1)
    with pytest.raises(ValueError, match="either epochs or steps"):
        train({"data": Stream(images(3))})
    with pytest.raises(ValueError, match="or a step"):
        Train(None, {"data": Stream(images(3))}, epochs=1)
    with pytest.raises(ValueError, match="nothing to train"):
        Train({}, {"data": Stream(images(3))}, lambda *_: None, SGD(0.1), epochs=1)


def test_the_key_of_a_request_names_all_its_randomness() -> None:
    request = train({"data": Stream(images(6, side=8), view="strong", batch=4)}, epochs=2)
    for one, other in zip(
        batches(request, fold_int(1, 2), SETTING),
        batches(request, fold_int(1, 2), SETTING),
        strict=True,
    ):
        assert_same_batch(one, other)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    steps=st.lists(st.integers(1, 12), min_size=5, max_size=5),
    draw=st.sampled_from(["shuffled", "with-replacement"]),
    begin=st.integers(0, 9),
)
def test_lanes_dealt_together_get_what_each_of_them_gets_alone(
    counts: list[int], steps: list[int], draw: str, begin: int
) -> None:
    source = images(30)
    lanes = [
        Lane(
            train(
                {
                    "data": Stream(
                        source.subset(torch.arange(30) < count), ("strong", "plain"), 4, draw
                    )
                },
                steps=many,
            ),
            key,
        )
        for key, (count, many) in enumerate(zip(counts, steps, strict=False))
    ]
    several = Batcher(lanes, SETTING).chunk(range(begin, begin + 6))
    for place, lane in enumerate(lanes):
        alone = list(batches(lane.train, lane.key, SETTING))
        for row, number in enumerate(range(begin, begin + 6)):
            own = alone[min(number, lane.length - 1)]  # a lane that is done repeats its last step
            pairs = zip(tree_leaves(at(several, row, place)), tree_leaves(own), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def test_a_batch_can_be_copied_and_names_its_streams_when_asked_for_another() -> None:
    zero = torch.zeros(())
    batch = copy(Batch({"images": Sample((zero,), zero)}, zero, zero, zero, zero))
    assert batch.images.images is zero
    with pytest.raises(AttributeError, match="no stream 'labels' in this batch, which has images"):
        _ = batch.labels

"""The executor stack: what is grouped, what is held, what is left out."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedglean.engine import lanes
from fedglean.engine import stack as stacks
from fedglean.engine.batches import Lane, Setting
from fedglean.engine.lanes import segments
from fedglean.engine.loop import Loop
from fedglean.engine.stack import Stack
from fedglean.engine.task import Party, PartyError
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe
from fedglean.losses import cross_entropy
from fedglean.method import Apply, Mixture, Predict, Statistics, Stream, Train, Trained, together
from fedglean.models import Architecture
from fedglean.optimiser import SGD
from fedglean.testing.difference import difference

RECIPE = Recipe((0.5,), (0.25,), flip=False, pad=1)
SETTING = Setting(RECIPE, torch.float64, images_at_once=64)
STORE = torch.arange(60 * 64).reshape(60, 1, 8, 8).remainder(251).to(torch.uint8)
MODEL = Architecture("cnn", (1, 8, 8), 10).initial(1, torch.float64)


def some(begin: int, count: int) -> Images:
    index = torch.arange(begin, begin + count)
    return Images(STORE, index, index.remainder(10))


def loss(model: Any, batch: Any, frozen: Any) -> torch.Tensor:
    return cross_entropy(model(batch.images.images), batch.images.label)


def training(images: Images, epochs: int = 2) -> Train:
    return Train(
        MODEL, {"images": Stream(images, batch=4)}, loss, SGD(0.1, momentum=0.9), epochs=epochs
    )


async def client(begin: int, count: int) -> Any:
    sums = await Statistics(MODEL, some(begin, count))
    guess = await Predict(MODEL.with_statistics(sums), some(begin, count), view="weak")
    trained = await together(training(some(begin, count)), training(guess.hard))
    return (
        sums,
        guess.probabilities,
        [answer.models for answer in trained],
        [answer.metrics for answer in trained],
    )


def parties(counts: Sequence[int]) -> list[Party]:
    return [
        Party(f"client {place}", client(3 * place, count), place)
        for place, count in enumerate(counts)
    ]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The steps of the lanes that were trained together, group after group."""
    noted: list[list[int]] = []
    train = lanes.StackTrainer.train

    def noting(self: lanes.StackTrainer, group: Sequence[Lane], signature: Any) -> list[Trained]:
        noted.append([lane.length for lane in group])
        return train(self, group, signature)

    monkeypatch.setattr(lanes.StackTrainer, "train", noting)
    return noted


def test_clients_of_all_sizes_are_one_group(groups: list[list[int]]) -> None:
    Stack(SETTING).run(parties([2, 9, 17, 30]))
    assert [len(group) for group in groups] == [8]


def test_a_group_that_is_compiled_is_no_wider_than_there_are_parties(
    groups: list[list[int]],
) -> None:
    async def two(count: int) -> Any:
        return await together(training(some(0, count)), training(some(0, 2 * count)))

    def everyone() -> list[Party]:
        return [Party(f"client {count}", two(count), count) for count in (4, 12, 8)]

    got = Stack(replace(SETTING, compile=True)).run(everyone())
    assert groups == [[12, 8, 6], [4, 4, 2]]
    for one, other in zip(Loop(SETTING).run(everyone()), got, strict=True):
        assert (
            difference([each.models for each in one], [each.models for each in other], 1e-10)
            is None
        )


def test_a_ragged_block_gives_what_each_client_gives_alone() -> None:
    counts = [2, 9, 17, 30, 5]
    for alone, stacked in zip(
        Loop(SETTING).run(parties(counts)), Stack(SETTING).run(parties(counts)), strict=True
    ):
        assert difference(list(alone), list(stacked), 1e-10) is None


def test_a_mixture_that_each_client_makes_of_the_same_models_predicts_for_all_at_once() -> None:
    rows: list[int] = []
    model = MODEL.with_statistics(MODEL.record(torch.randn(9, 1, 8, 8, dtype=torch.float64)))

    def noted(mixture: Mixture, images: torch.Tensor) -> torch.Tensor:
        rows.append(len(images))
        return mixture.evaluate(images)

    async def guess(weight: float, begin: int, count: int) -> Any:
        return await Apply(noted, Mixture((model, model), (1.0, weight)), some(begin, count))

    def everyone() -> list[Party]:
        asked = [(2.0, 0, 3), (2.0, 7, 4), (3.0, 20, 5)]
        return [Party(f"client {place}", guess(*each), place) for place, each in enumerate(asked)]

    got = Stack(SETTING).run(everyone())
    assert rows == [7, 5]
    assert difference(Loop(SETTING).run(everyone()), got, 1e-10) is None


def test_statistics_are_compiled_for_sizes_of_batches_that_many_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[torch.Size] = []

    def fused(function: Any, half: bool) -> Any:
        def noting(model: Any, rows: torch.Tensor) -> Any:
            compiled.append(rows.shape[:2])
            return function(model, rows)

        return noting

    async def measured(count: int) -> Any:
        return await Statistics(MODEL, some(0, count), batch=4)

    def everyone() -> list[Party]:
        return [Party(f"client {count}", measured(count), count) for count in (59, 14, 3, 2)]

    monkeypatch.setattr(stacks, "fused", fused)
    got = Stack(replace(SETTING, compile=True)).run(everyone())
    assert (
        compiled == [(stacks.ROWS, 4)] * 2
    )  # seventeen batches of 4, the last filled up; not the few of 3 or 2
    for one, other in zip(Loop(SETTING).run(everyone()), got, strict=True):
        assert difference(one, other, 1e-10) is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 70))
def test_every_lane_takes_exactly_its_steps_and_widths_only_halve(
    lengths: list[int], least: int
) -> None:
    lengths = sorted(lengths, reverse=True)
    taken, at, widths = [0] * len(lengths), 0, []
    for width, steps in segments(lengths, least):
        assert width == len(lengths) or len(steps) >= least
        assert steps.start == at
        at = steps.stop
        widths.append(width)
        for lane in range(width):
            taken[lane] += sum(number < lengths[lane] for number in steps)
    assert taken == lengths
    assert all(after <= before // 2 for before, after in itertools.pairwise(widths))
    assert least <= 60 or widths == [len(lengths)]


def test_a_narrower_width_is_taken_where_it_lasts() -> None:
    assert list(segments([200, 30, 30, 30, 0, 0, 0, 0], 100)) == [
        (8, range(30)),
        (1, range(30, 200)),
    ]
    assert list(segments([200, 190, 180, 170], 100)) == [(4, range(200))]
    assert list(segments([200, 190, 180, 170])) == [
        (4, range(180)),
        (2, range(180, 190)),
        (1, range(190, 200)),
    ]


def test_nothing_has_one_shape_on_both_executors() -> None:
    def outputs(model: Any, images: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = model.evaluate(images)
        return made

    async def guess(count: int) -> Any:
        return await Apply(outputs, MODEL, some(0, count))

    def shapes(executor: Loop) -> list[tuple[int, ...]]:
        asked = [Party(f"client {count}", guess(count), count) for count in (7, 0)]
        return [tuple(answer.shape) for answer in executor.run(asked)]

    assert shapes(Loop(SETTING)) == shapes(Stack(SETTING)) == [(7, 10), (0,)]


def test_who_takes_no_step_has_no_metrics_on_either_executor() -> None:
    async def visit(steps: int) -> Any:
        return await replace(training(some(0, 9)), epochs=None, steps=steps)

    def found(executor: Loop) -> list[tuple[int, list[str]]]:
        asked = [Party(f"client {steps}", visit(steps), steps) for steps in (2, 0)]
        return [(answer.steps, list(answer.metrics)) for answer in executor.run(asked)]

    assert found(Loop(SETTING)) == found(Stack(SETTING)) == [(2, ["loss"]), (0, [])]


def test_an_idle_lane_changes_nothing() -> None:
    trainer = lanes.StackTrainer(SETTING)
    real, idle = Lane(training(some(0, 9)), 5), Lane(training(some(0, 9)), 5, idle=True)
    alone, filled = trainer.train([real], "a"), trainer.train([real, idle], "b")
    assert difference(alone[0].models, filled[0].models, 1e-12) is None
    assert filled[1].steps == 0
    assert difference(filled[1].models, MODEL.for_training()) is None


def test_a_failure_names_a_client_and_the_request() -> None:
    async def broken() -> None:
        await Train(MODEL, {"images": Stream(some(0, 4))}, lambda *_: 1 / 0, SGD(0.1), epochs=1)

    with pytest.raises(PartyError, match=r"client 0, request 0 \(Train\): ZeroDivisionError"):
        Stack(SETTING).run([Party("client 0", broken(), 1)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_gives_what_the_cpu_gives() -> None:
    lane = [
        Lane(training(some(3 * place, count)), place) for place, count in enumerate((30, 17, 9))
    ]
    cuda = [
        Lane(
            Train(
                Architecture("cnn", (1, 8, 8), 10).initial(1, torch.float64, "cuda"),
                {
                    "images": Stream(
                        Images(
                            STORE.cuda(),
                            each.train.streams["images"].images.index.cuda(),
                            each.train.streams["images"].images.label.cuda(),
                        ),
                        batch=4,
                    )
                },  # type: ignore[union-attr]
                loss,
                SGD(0.1, momentum=0.9),
                epochs=2,
            ),
            each.key,
        )
        for each in lane
    ]
    for here, there in zip(
        lanes.StackTrainer(SETTING).train(lane, "a"),
        lanes.StackTrainer(SETTING).train(cuda, "a"),
        strict=True,
    ):
        moved = {name: value.cpu() for name, value in there.model.parameters.items()}
        assert difference(dict(here.model.parameters), moved, 1e-9) is None

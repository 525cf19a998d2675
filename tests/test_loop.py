"""The reference executor: requests in, answers out, and an error that says where it struck."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglean import tree
from fedglean.engine.batches import Setting, batches
from fedglean.engine.loop import Loop
from fedglean.engine.stack import Stack
from fedglean.engine.task import Call, Party, PartyError, Task, run_together
from fedglean.errors import DataError
from fedglean.inputs.images import Images, Predictions
from fedglean.inputs.views import Recipe, view
from fedglean.losses import cross_entropy
from fedglean.method import Apply, Ask, Batch, Mixture, Predict, Statistics, Stream, Train, together
from fedglean.models import Architecture, Model
from fedglean.optimiser import SGD, standard_step
from fedglean.randomness import bits

RECIPE = Recipe((0.5,), (0.25,), flip=True, pad=1)
LOOP = Loop(Setting(RECIPE, torch.float64))
CNN = Architecture("cnn", (1, 4, 4), 3, width=0.25)


def model(seed: int = 1) -> Model:
    return CNN.initial(seed, torch.float64)


def images(count: int) -> Images:
    store = (bits(2, (2 * count + 1, 1, 4, 4)) & 255).to(torch.uint8)
    return Images(store, 2 * torch.arange(count) + 1, torch.arange(count) % 3)


def seen(source: Images, positions: Tensor) -> Tensor:
    return view("plain", source.store[source.index[positions]], positions, RECIPE, torch.float64)


def loss(live: Model, batch: Batch, frozen: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return cross_entropy(live(batch.data.images), batch.data.label), {"step": batch.step.double()}


@pytest.mark.parametrize("batch", [1, 2, 7, 100])
def test_predict_answers_every_image_once_and_in_order(batch: int) -> None:
    source, it = (
        images(7),
        Architecture("cnn", (1, 4, 4), 3, width=0.25, norm="layer").initial(1, torch.float64),
    )
    answer = LOOP.serve(Predict(it, source, batch=batch), 3)
    expected = it.evaluate(seen(source, torch.arange(7))).softmax(-1)
    torch.testing.assert_close(answer.probabilities, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(answer.hard.label, expected.argmax(-1)) and torch.equal(
        answer.images.index, source.index
    )


def test_predict_gives_back_whatever_apply_makes() -> None:
    sizes: list[int] = []

    def brightness(models: Any, made: Tensor) -> Tensor:
        sizes.append(len(made))
        return made.mean((1, 2, 3))

    source = images(7)
    answer = LOOP.serve(Apply(brightness, None, source, batch=3), 3)
    torch.testing.assert_close(answer, seen(source, torch.arange(7)).mean((1, 2, 3)))
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize("predictor", [model(), Mixture((model(), model()), (0.5, 0.5))])
def test_predicting_nothing_gives_no_rows_in_the_right_precision(
    predictor: Model | Mixture,
) -> None:
    answer = LOOP.serve(Predict(predictor, images(0), threshold=0.9), 3)
    assert answer.probabilities.shape == (0, 3) and answer.probabilities.dtype == torch.float64
    assert not answer.confident


def test_pseudo_labels_are_observed_when_a_threshold_makes_them_such() -> None:
    noted: list[Predictions] = []
    LOOP.serve(Predict(model(), images(5)), 3, noted.append)
    assert not noted
    answer = LOOP.serve(Predict(model(), images(5), threshold=0.3), 3, noted.append)
    assert noted == [answer]


def test_random_views_of_a_prediction_follow_the_key_and_not_the_batch() -> None:
    def itself(models: Any, made: Tensor) -> Tensor:
        return made

    pictures = [
        LOOP.serve(Apply(itself, None, images(9), view="weak", batch=b), key)
        for b, key in ((4, 1), (9, 1), (9, 2))
    ]
    assert torch.equal(pictures[0], pictures[1]) and not torch.equal(pictures[1], pictures[2])


def test_statistics_sum_over_batches_and_leave_a_batch_of_one_out() -> None:
    source, it = images(7), model()
    sums = LOOP.serve(Statistics(it, source, batch=3), 3)
    by_hand = tree.add(
        it.record(seen(source, torch.arange(0, 3))), it.record(seen(source, torch.arange(3, 6)))
    )
    assert float(sums["images"]) == 6
    for name, value in by_hand.items():
        torch.testing.assert_close(sums[name], value, rtol=1e-12, atol=1e-12)
        assert bool(torch.isfinite(sums[name]).all())


@pytest.mark.parametrize("count", [0, 1])
def test_statistics_of_too_few_images_are_those_of_none(count: int) -> None:
    sums = LOOP.serve(Statistics(model(), images(count)), 3)
    assert all(float(value.abs().sum()) == 0 for value in sums.values())


def test_training_is_the_step_repeated_over_the_batches_with_mean_metrics() -> None:
    sgd, start = SGD(0.1, momentum=0.9), model()
    request = Train(start, {"data": Stream(images(7), batch=3)}, loss, sgd, epochs=2)
    answer = LOOP.serve(request, 11)
    live, memory, losses = start.for_training(), sgd.init(start), []
    for batch in batches(request, 11, LOOP.setting):
        live, memory, metrics = standard_step(loss, sgd)(live, memory, batch, {})
        losses.append(float(metrics["loss"]))
    assert answer.steps == 6 == len(losses)
    assert (
        answer.metrics["loss"] == pytest.approx(sum(losses) / 6, rel=1e-12)
        and answer.metrics["step"] == 2.5
    )
    # Not to the bit: the executor lays images and kernels out in another order.
    torch.testing.assert_close(
        dict(answer.model.parameters), dict(live.parameters), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        tree.named(answer.memory), tree.named(memory), rtol=1e-12, atol=1e-12
    )


def test_training_leaves_what_it_started_from_alone() -> None:
    start = Architecture("cnn", (1, 4, 4), 3, width=0.25, norm="running").initial(1, torch.float64)
    memory = SGD(0.1, momentum=0.9).init(start)
    before = {path: leaf.clone() for path, leaf in tree.named([start, memory]).items()}
    LOOP.serve(
        Train(
            start,
            {"data": Stream(images(7))},
            loss,
            SGD(0.1, momentum=0.9),
            epochs=1,
            memory=memory,
        ),
        1,
    )
    assert all(
        torch.equal(leaf, before[path]) for path, leaf in tree.named([start, memory]).items()
    )


def test_two_halves_with_the_memory_between_are_momentum_going_on() -> None:
    sgd = SGD(0.1, momentum=0.9)
    streams = {"data": Stream(images(4), view="plain", batch=4)}
    whole = LOOP.serve(Train(model(), streams, loss, sgd, steps=2), 1)
    first = LOOP.serve(Train(model(), streams, loss, sgd, steps=1), 1)
    second = LOOP.serve(Train(first.models, streams, loss, sgd, steps=1, memory=first.memory), 1)
    # One full batch a step: another order of the same images changes nothing but rounding.
    for name, value in whole.model.parameters.items():
        torch.testing.assert_close(second.model.parameters[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("executor", [Loop, Stack])
def test_a_step_may_return_its_memory_in_any_order_of_names(executor: type[Loop]) -> None:
    def step(models: Any, memory: Any, batch: Batch, frozen: Any) -> Any:
        return models, {"two": 2 * memory["two"], "one": memory["one"] + 1}, {}

    memory = {"one": torch.zeros(()), "two": torch.ones(())}
    request = Train(model(), {"data": Stream(images(4))}, step=step, steps=3, memory=memory)
    trained = executor(LOOP.setting).serve(request, 5)
    assert {name: float(value) for name, value in trained.memory.items()} == {"one": 3, "two": 8}


@pytest.mark.parametrize(
    "answer",
    [
        lambda models, memory: (models, {}),
        lambda models, memory: (models, {**memory, "teacher": memory["one"]}, {}),
        lambda models, memory: (models, {}, {}),
    ],
)
@pytest.mark.parametrize("executor", [Loop, Stack])
def test_a_step_that_returns_something_built_otherwise_is_told_so(
    executor: type[Loop], answer: Any
) -> None:
    def step(models: Any, memory: Any, batch: Batch, frozen: Any) -> Any:
        return answer(models, memory)

    request = Train(
        model(), {"data": Stream(images(4))}, step=step, steps=3, memory={"one": torch.zeros(())}
    )
    with pytest.raises(TypeError, match="a step returns models, memory and metrics"):
        executor(LOOP.setting).serve(request, 5)


def test_requests_together_are_answered_in_order_with_keys_of_their_own() -> None:
    one = Train(model(), {"data": Stream(images(7), batch=3)}, loss, SGD(0.1), epochs=1)
    first, second, guess = LOOP.serve(together(one, one, Predict(model(), images(3))), 5)
    assert len(guess.probabilities) == 3
    assert not torch.equal(
        first.model.parameters["output.weight"], second.model.parameters["output.weight"]
    )
    assert LOOP.serve(together(), 5) == ()


@pytest.mark.parametrize("request_", ["train", None, Ask(lambda me, message: None, [0], {})])  # type: ignore[arg-type,return-value]
def test_a_request_that_a_client_may_not_make_is_refused(request_: Any) -> None:
    with pytest.raises(TypeError, match="Train, Predict, Apply or Statistics"):
        LOOP.serve(request_, 1)


async def fails_at_once() -> None:
    raise KeyError("rate")


async def fails_in_its_second_request() -> None:
    await Statistics(model(), images(3))
    await Apply(lambda models, made: 1 / 0, model(), images(3))  # type: ignore[arg-type,return-value]


async def fails_between_requests() -> None:
    answer = await Statistics(model(), images(3))
    answer["nowhere"]


async def stops_inside_an_answer() -> None:
    await Apply(lambda models, made: next(iter(())), model(), images(3))


def never_asks() -> None:
    return None


async def trains_on_what_has_no_labels() -> None:
    unlabelled = replace(images(3), label=None)
    await Train(model(), {"data": Stream(unlabelled)}, loss, SGD(0.1), steps=1)


async def looks_for_another_stream() -> None:
    await Train(model(), {"other": Stream(images(3))}, loss, SGD(0.1), steps=1)


async def takes_a_request_for_its_answer() -> None:
    trained = Train(model(), {"data": Stream(images(3))}, loss, SGD(0.1), steps=1)
    await Predict(trained.model, images(3))  # type: ignore[attr-defined]


async def awaits_something_else() -> None:
    await asyncio.sleep(0)


async def freezes_a_number() -> None:
    await Train(
        model(), {"data": Stream(images(3))}, loss, SGD(0.1), steps=1, frozen={"share": 0.5}
    )


@pytest.mark.parametrize(
    ("talk", "first_line"),
    [
        (
            takes_a_request_for_its_answer,
            "round 3, client 7, before its first request: AttributeError: 'Train' object has no "
            "attribute 'model'; `await` was forgotten, which gives a request's answer",
        ),
        (
            awaits_something_else,
            "round 3, client 7, before its first request: TypeError: a method awaits its own "
            "requests and coroutines of them alone; there is no event loop for anything else",
        ),
        (
            freezes_a_number,
            "round 3, client 7, request 0 (Train): TypeError: models, memory and frozen must hold "
            "only tensors, "
            "not 0.5; write torch.tensor(0.5)",
        ),
        (
            never_asks,
            "round 3, client 7, before its first request: TypeError: a party's function must be a "
            "coroutine: write `async def`, and `await` in the place of `yield` "
            "(docs/tutorial-method.md)",
        ),
        (
            trains_on_what_has_no_labels,
            "round 3, client 7, request 0 (Train): ValueError: these images have no labels; "
            "Predict(threshold=...) labels the confident ones",
        ),
        (
            looks_for_another_stream,
            "round 3, client 7, request 0 (Train): AttributeError: no stream 'data' in this batch, "
            "which has other",
        ),
        (fails_at_once, "round 3, client 7, before its first request: KeyError: 'rate'"),
        (
            fails_in_its_second_request,
            "round 3, client 7, request 1 (Apply): ZeroDivisionError: division by zero",
        ),
        (
            fails_between_requests,
            "round 3, client 7, after request 0 (Statistics): KeyError: 'nowhere'",
        ),
        (stops_inside_an_answer, "round 3, client 7, request 0 (Apply): StopIteration: "),
    ],
)
def test_a_failing_partys_error_names_round_client_and_request_first(
    talk: Any, first_line: str
) -> None:
    with pytest.raises(PartyError) as caught:
        LOOP.run([Party("round 3, client 7", talk(), 1)])
    assert str(caught.value).splitlines()[0] == first_line
    assert caught.value.__cause__ is not None


def test_a_users_mistake_passes_through_as_it_is() -> None:
    async def talk() -> None:
        await Statistics(model(), images(2))

    class Failing(Loop):
        def answer(self, calls: Sequence[Call]) -> list[Any]:
            raise DataError("no such image")

    with pytest.raises(DataError, match=r"^no such image$"):
        Failing(LOOP.setting).run([Party("client 1", talk(), 1)])


def test_parties_return_in_order_what_their_coroutines_return() -> None:
    async def talk(result: int) -> int:
        for _ in range(result):
            await Statistics(model(), images(2))
        return result

    assert LOOP.run([Party(f"client {n}", talk(n), n) for n in (2, 0, 1)]) == [2, 0, 1]


def test_requests_are_numbered_from_nought_and_those_that_wait_are_answered_together() -> None:
    async def talk(count: int) -> list[Any]:
        return [await Statistics(model(), images(2)) for _ in range(count)]

    answered = []

    def answer(waiting: Sequence[Task]) -> list[int]:
        answered.append([task.party.name for task in waiting])
        return [task.number for task in waiting]

    assert run_together([Party("a", talk(3), 1), Party("b", talk(1), 2)], answer) == [
        [0, 1, 2],
        [0],
    ]
    assert answered == [["a", "b"], ["a"], ["a"]]

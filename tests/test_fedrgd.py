"""FedRGD: its grouped means by hand, its schedule, and the contract."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedglean.errors import ConfigError
from fedglean.inputs.images import Images
from fedglean.method import Ask, Declared, Hub, Me, Method, Predict, Train, Trained, Upload
from fedglean.methods.fedrgd import FedRGD, group
from fedglean.models import Architecture, Model
from fedglean.testing import check_method
from fedglean.tree import Record
from fedglean.uploads import Reply
from fedglean_papers.semifl_rows import SemiFLRows
from uploads import reply_of

METHOD = FedRGD(steps=2, batch=8, threshold=0.3)
AS_IN_SEMIFL = SemiFLRows(
    combine="halves", labels_from="batch", mixup=False, threshold=0.2, active=1.0, epochs=1
)


@pytest.mark.parametrize(("method", "norm"), [(METHOD, "group"), (AS_IN_SEMIFL, "static")])
def test_fedrgd_keeps_the_contract(method: Method, norm: str) -> None:
    check_method(method, norm=norm, rounds=2)


def model(value: float) -> Model:
    return Model(
        Architecture("mlp", (1, 2, 2), 10), {"weight": torch.tensor([value], dtype=torch.float64)}
    )


def value(model: Model) -> float:
    return float(model.parameters["weight"])


def hub(round: int = 1, rounds: int = 60) -> Hub:
    images = Images(
        torch.zeros(1, 1, 2, 2, dtype=torch.uint8),
        torch.arange(1),
        torch.zeros(1, dtype=torch.long),
    )
    return Hub(round, rounds, images, (Declared(0, 5),) * 5, 0)


def reply(ask: Ask, uploads: dict[int, float]) -> Reply:
    sent = {}
    for client in ask.to:
        if client in uploads:
            sent[client] = Upload(model=model(uploads[client]))
    return reply_of(sent, {"model": ask.message["model"]})


def play(
    method: FedRGD, state: Record, copies: Sequence[float], uploads: dict[int, float]
) -> tuple[Record, list[Ask]]:
    """One round whose trainings end in given numbers, and what was asked in it."""
    talk, asks, answer = method.round(hub(), state), [], None
    while True:
        try:
            request: Any = talk.send(answer)
        except StopIteration as end:
            return end.value, asks
        if isinstance(request, Ask):
            asks.append(request)
            answer = reply(request, uploads)
        else:
            assert all(
                isinstance(each, Train) and value(each.models) == value(state.model)
                for each in request.requests
            )
            answer = [Trained(model(copy), {}, 16, {}) for copy in copies]


def test_a_groups_mean_includes_the_hubs_copy_and_the_hub_takes_the_mean_of_the_means() -> None:
    """Clients 0, 1, 2 with a copy, and 3, 4 with the other: (1 + 2 + 3 + 6) / 4 and (7 + 4 + 1) /
    3.
    """
    start = FedRGD().start(lambda name: model(0.0))
    state, asks = play(
        FedRGD(), start, copies=(1.0, 7.0), uploads={0: 2.0, 1: 3.0, 2: 6.0, 3: 4.0, 4: 1.0}
    )
    assert [ask.to for ask in asks] == [[0, 1, 2], [3, 4]]
    assert [value(mean) for mean in state.means] == [3.0, 4.0]
    assert value(state.model) == 3.5


def test_clients_go_on_from_their_groups_mean() -> None:
    state = Record(model=model(3.5), means=[model(3.0), model(4.0)], memories=[{}, {}])
    _, asks = play(FedRGD(), state, copies=(1.0, 1.0), uploads={})
    assert [value(ask.message["model"]) for ask in asks] == [3.0, 4.0]


def test_semifls_form_steps_with_momentum_from_the_one_hub_model_to_the_mean_of_the_halves() -> (
    None
):
    """V <- V / 2 + (W - A) from the trained W = 1, then 4; A is the mean of (W + 2 + 3 + 6) / 4 and
    (W + 4 + 1) / 3.
    """
    method = replace(AS_IN_SEMIFL, global_momentum=0.5)
    state, uploads = method.start(lambda name: model(0.0)), {0: 2.0, 1: 3.0, 2: 6.0, 3: 4.0, 4: 1.0}
    velocity = 0.0
    for trained in (1.0, 4.0):
        talk, asks = method.round(hub(), state), []
        request: Any = talk.send(None)
        while isinstance(request, Ask):
            assert value(request.message["model"]) == value(state.model)
            asks.append(request)
            request = talk.send(reply(request, uploads))
        assert isinstance(request, Train) and [ask.to for ask in asks] == [[0, 1, 2], [3, 4]]
        with pytest.raises(StopIteration) as end:
            talk.send(Trained(model(trained), {}, 1, {}))
        state = end.value.value
        velocity = velocity / 2 + trained - ((trained + 11) / 4 + (trained + 5) / 3) / 2
        assert value(state.model) == pytest.approx(trained - velocity)


def test_in_semifls_form_who_is_sure_of_nothing_stays_away_and_the_others_train_on_all() -> None:
    images = Images(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4))
    me = Me(0, images.subset(torch.zeros(4, dtype=torch.bool)), images, None, 0)
    for stays in (True, False):
        talk = AS_IN_SEMIFL.client(me, Record(model=model(0.0), rate=0.03))
        guess: Any = talk.send(None)
        assert isinstance(guess, Predict) and guess.threshold == AS_IN_SEMIFL.threshold
        if stays:
            with pytest.raises(StopIteration) as end:
                talk.send(SimpleNamespace(confident=[]))
            assert end.value.value is None
        else:
            request = talk.send(SimpleNamespace(confident=images, hard=images))
            assert (
                request.step == AS_IN_SEMIFL.step_with_own_labels
                and len(request.streams["images"].images) == 4
            )


def test_a_group_without_an_answer_is_the_hubs_copy() -> None:
    state, _ = play(
        FedRGD(), FedRGD().start(lambda name: model(0.0)), copies=(1.0, 7.0), uploads={3: 5.0}
    )
    assert [value(mean) for mean in state.means] == [1.0, 6.0]


def test_groups_are_cut_by_number_and_miss_nobody() -> None:
    active = [3, 4, 8, 11, 20]
    assert [group(active, number, 2) for number in (0, 1)] == [[3, 4, 8], [11, 20]]
    more_groups_than_clients = [group(active, number, 7) for number in range(7)]
    assert [client for each in more_groups_than_clients for client in each] == active
    assert max(map(len, more_groups_than_clients)) == 1


def test_the_rate_grows_and_falls_along_a_part_of_a_cosine() -> None:
    method = FedRGD(rate=0.8, warm_up=0.5)
    assert method.rate_of(hub(round=15, rounds=60)) == pytest.approx(
        0.4 * math.cos(7 / 16 * math.pi * 14 / 60)
    )
    assert method.rate_of(hub(round=60, rounds=60)) == pytest.approx(
        0.8 * math.cos(7 / 16 * math.pi * 59 / 60)
    )
    assert FedRGD(rate=0.8, warm_up=0.0).rate_of(hub(round=1)) == 0.8


def test_fedrgd_refuses_a_hub_without_labels() -> None:
    with pytest.raises(ConfigError, match="FedRGD needs labelled images at the hub"):
        FedRGD().check([Declared(3, 5)], hub_labels=0)

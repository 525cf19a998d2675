"""RSCFed: the released formulas in numpy, from what clients uploaded; its teacher; and the
contract.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedglean import tree
from fedglean.engine.loop import Loop
from fedglean.errors import ConfigError
from fedglean.exchange.gate import Envelope
from fedglean.inputs.images import Images
from fedglean.method import Batch, Declared, Me, Sample
from fedglean.methods.rscfed import RSCFed
from fedglean.models import Architecture, Model
from fedglean.testing import check_method
from fedglean.testing.engines import UploadLog, variant
from fedglean.testing.play import play
from fedglean.testing.small_federation import CLIENTS, small_experiment
from fedglean.tree import Record

METHOD = RSCFed(
    batch=8,
    subset_size=4,
    warm_up=1,
    labelled_scale=2.0,
    unlabelled_scale=5.0,
    unlabelled_weight=0.5,
)
Row = NDArray[np.float64]


@pytest.mark.parametrize("norm", ["static", "running"])
def test_rscfed_keeps_the_contract(norm: str) -> None:
    check_method(METHOD, norm=norm, rounds=2)


def uploads_of_a_round(method: RSCFed) -> tuple[dict[int, dict[int, Row]], Row]:
    """By exchange and client what the clients uploaded in round 1, and what the global model
    became.
    """
    watched = variant(small_experiment(method, rounds=1), Loop, UploadLog)
    state = play(watched).state
    asks: dict[int, dict[int, Row]] = {}
    envelopes: list[Envelope] = watched.placement.uploads  # type: ignore[attr-defined]
    for envelope in envelopes:
        if "model" in envelope.upload.trees:  # not the statistics
            asks.setdefault(envelope.ask, {})[envelope.client] = tree.row(
                envelope.upload.trees["model"]
            ).numpy()
    return asks, tree.row(state.model.for_training()).numpy()


def consensus(models: dict[int, Row], parts: list[slice], method: RSCFed) -> Row:
    """What the released code makes of a subset, in its own order and without its being split over
    two exchanges.
    """
    images = {client: CLIENTS[client][0] or CLIENTS[client][1] for client in models}
    labelled = {client for client in models if CLIENTS[client][0]}
    weight = {c: images[c] * (method.labelled_times if c in labelled else 1) for c in models}
    mean = sum(weight[c] * models[c] for c in models) / sum(weight.values())
    distance = {
        c: sum(np.linalg.norm(models[c][part] - mean[part]) for part in parts) for c in models
    }
    scale = method.labelled_scale if labelled else method.unlabelled_scale
    final = {
        c: weight[c] / sum(weight.values()) * np.exp(-scale * distance[c] / images[c])
        for c in models
    }
    for client in labelled:
        final[client] *= method.labelled_times
    return np.asarray(sum(final[c] * models[c] for c in models) / sum(final.values()))


def test_the_global_model_is_the_mean_of_the_subsets_as_the_released_code_weighs_them() -> None:
    asks, model = uploads_of_a_round(METHOD)
    sizes = [leaf.numel() for leaf in small_experiment(METHOD).start().model.parameters.values()]
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    warm_up, *subsets = sorted(asks)
    assert set(asks[warm_up]) == {
        client for client, (labelled, _) in enumerate(CLIENTS) if labelled
    }
    first, second = subsets[::2], subsets[1::2]
    assert [set(asks[ask]) for ask in first] == [set(asks[ask]) for ask in second]
    expected = np.mean([consensus(asks[ask], parts, METHOD) for ask in first], axis=0)
    assert np.abs(model - expected).max() < 1e-12
    assert (
        np.abs(
            model - np.mean([model for ask in first for model in asks[ask].values()], axis=0)
        ).max()
        > 1e-4
    )


def linear(**weights: list[float]) -> Model:
    architecture = Architecture("mlp", (1, 4, 4), 10)
    return Model(
        architecture,
        {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()},
    )


@pytest.mark.parametrize(
    ("labelled", "expected"), [(2, 2 * math.exp(-9)), (0, 3 / 36 * math.exp(-6))]
)
def test_a_client_weighs_itself_by_its_distance_from_the_mean(
    labelled: int, expected: float
) -> None:
    """Distances 5 and 1 of two tensors make 6; with beta 3 that is 18, over 2 labelled or 3
    unlabelled images.
    """
    some = Images(torch.zeros(5, 1, 4, 4, dtype=torch.uint8), torch.arange(5))
    none = some.subset(torch.zeros(5, dtype=torch.bool))
    known = some.subset(torch.arange(5) < labelled) if labelled else none
    state = {"model": linear(a=[3.0, 4.0], b=[1.0]), "memory": {}}
    me = Me(0, known, some.subset(torch.arange(5) >= 2), state, 0)
    talk = RSCFed().weigh(me, Record(model=linear(a=[0.0, 0.0], b=[2.0]), scale=3.0))
    with pytest.raises(StopIteration) as end:
        talk.send(None)
    assert end.value.value.weight("model") == pytest.approx(expected, rel=1e-14)


def unlabelled_batch(make: Callable[[int], torch.Tensor]) -> Batch:
    zero = torch.zeros((), dtype=torch.float64)
    views = (make(1), make(2))
    return Batch(
        {"images": Sample(views, torch.arange(6))}, zero, zero, torch.tensor(0.5), torch.tensor(0)
    )


def pictures(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 1, 4, 4)))


def small_model(seed: int) -> Model:
    return Architecture("mlp", (1, 4, 4), 10, width=0.004).initial(seed, torch.float64)


def test_the_loss_is_the_squared_difference_from_the_sharpened_teacher() -> None:
    student, teacher = small_model(1), small_model(2)
    found = RSCFed().teacher_loss(student, unlabelled_batch(pictures), {"teacher": teacher})
    said = teacher.evaluate(pictures(1)).softmax(-1).numpy() ** 2
    said /= said.sum(-1, keepdims=True)
    answer = student(pictures(2)).softmax(-1).numpy()
    assert float(found) == pytest.approx(0.02 * ((answer - said) ** 2).sum() / 6, rel=1e-12)


def test_the_teacher_is_the_mean_of_all_students_until_its_decay_is_reached() -> None:
    method, student = RSCFed(unlabelled_weight=5.0, teacher_decay=0.7), small_model(1)
    steps = torch.zeros((), dtype=torch.float64)
    memory = {**method.sgd(0.0).init(student), "teacher": small_model(2), "steps": steps}
    students, teachers = [], []
    for _ in range(4):
        student, memory, _ = method.step(student, memory, unlabelled_batch(pictures), {})
        students.append(tree.row(student))
        teachers.append(tree.row(memory["teacher"]))
    assert (students[0] - students[2]).abs().max() > 1e-4
    for number in range(3):
        assert torch.allclose(
            teachers[number], torch.stack(students[: number + 1]).mean(0), rtol=1e-12
        )
    assert torch.allclose(teachers[3], 0.7 * teachers[2] + 0.3 * students[3], rtol=1e-12)


def test_the_teacher_goes_on_from_visit_to_visit() -> None:
    outcome = play(small_experiment(replace(METHOD, subset_size=8), rounds=2))
    steps = {client: -(-CLIENTS[client][1] // METHOD.batch) for client in (1, 4)}
    assert {client: float(outcome.kept[client]["memory"]["steps"]) for client in steps} == {
        client: count * METHOD.subsets * 2 for client, count in steps.items()
    }


def test_rscfed_refuses_clients_without_any_label() -> None:
    with pytest.raises(ConfigError, match="RSCFed needs clients with labels"):
        RSCFed().check([Declared(0, 9)], hub_labels=20)

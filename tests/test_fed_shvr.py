"""Fed-SHVR on quadratics: clients with other optima, other curvatures and other numbers of steps,
one known answer.

The method runs as it is, through hub, gate and executor, but for its loss: a client's images are
all alike, and their pixels say where its optimum lies (the second ten) and how steep the way there
is (the first ten). The ten output biases of the model are what is optimised.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.federation import divide
from fedglean.data.partition import Split
from fedglean.engine.batches import Setting
from fedglean.engine.clients import Clients, Deliver
from fedglean.engine.loop import Loop
from fedglean.engine.placement import Exchanger, Here
from fedglean.errors import ConfigError
from fedglean.exchange.states import ClientStates
from fedglean.inputs.views import Recipe
from fedglean.method import Batch
from fedglean.methods.fed_shvr import FedSHVR
from fedglean.models import Model
from fedglean.runs.config import configure
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.testing.difference import difference
from fedglean.testing.faults import DAMAGES, drop, poison
from fedglean.testing.play import restarted
from fedglean.tree import Record, Tree

#: (labelled, unlabelled) images: 3, 9, 5, 14 and 7 steps a round.
COUNTS = ((3, 1), (9, 2), (5, 5), (2, 14), (7, 0))
STEPS = np.array([3, 9, 5, 14, 7])
SHARES = np.array([4, 11, 10, 16, 7]) / 48
ROUNDS = 45

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic(FedSHVR):
    """Fed-SHVR with a loss whose minimum is known."""

    epochs: int = 1
    labelled_batch: int = 1
    unlabelled_batch: int = 1
    rate: float = 0.08

    def start(self, make: Callable[..., Model]) -> Record:
        return super().start(lambda name: make(name, 0.001))

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        sample = next(iter(batch.streams.values()))
        pixels = sample.images.flatten(1).mean(0)
        curvature, optimum = 1 + pixels[:10], 6 * pixels[10:] - 3
        return 0.5 * (curvature * (model.parameters["output.bias"] - optimum).square()).sum()


def pictures() -> NDArray[np.uint8]:
    """One image of 1 x 4 x 5 for each client."""
    return np.random.default_rng(0).integers(0, 256, (len(COUNTS), 1, 4, 5), dtype=np.uint8)


def optimum(weights: Vector) -> Vector:
    """Where the weighted sum of the clients' quadratics is least."""
    pixels = pictures().reshape(len(COUNTS), 20) / 255
    curvature, places = 1 + pixels[:, :10], 6 * pixels[:, 10:] - 3
    return np.asarray(
        (weights[:, None] * curvature * places).sum(0) / (weights[:, None] * curvature).sum(0)
    )


def experiment(method: FedSHVR, deliver: Deliver = lambda envelope: [envelope]) -> Experiment:
    counts = [count for pair in COUNTS for count in pair]
    owner = np.repeat(np.arange(len(counts)) // 2, counts)
    images = torch.from_numpy(pictures()[owner])
    labels = torch.arange(len(owner)) % 10
    held = torch.split(torch.arange(len(owner)), counts)
    split = Split(torch.zeros(0, dtype=torch.long), held[::2], held[1::2])
    dataset = Dataset(
        "quadratics", tuple("0123456789"), images, labels, images, labels, (0.0,), (1.0,), False, 0
    )
    config = configure(
        "fed-shvr", model="mlp", rounds=ROUNDS, dtype="float64", device="cpu", evaluate_every=ROUNDS
    )
    federation, truth = divide(dataset, split, torch.device("cpu"))
    setting = Setting(Recipe((0.0,), (1.0,), False, 0), torch.float64)
    evaluator = Evaluator(images, labels, truth, setting)
    executor = Loop(setting)
    clients = Clients(federation, executor, deliver=deliver)
    exchanger = Exchanger(Here(clients), len(federation.declared))
    parts = dataset, split, federation, evaluator, executor, exchanger
    return Experiment(config, method, *parts)


def bias(progress: Progress) -> Vector:
    return np.asarray(progress.state.model.parameters["output.bias"])


def imbalance(progress: Progress, weights: Vector = SHARES) -> float:
    """How far the weighted corrections c - c_k are from summing to nothing."""
    mean = np.asarray(progress.state.mean_gradient["output.bias"])
    kept = [progress.kept.states.get(client) for client in range(len(COUNTS))]
    own = np.stack(
        [np.zeros(10) if state is None else np.asarray(state["output.bias"]) for state in kept]
    )
    return float(np.abs(mean - weights @ own).max())


def train(
    case: Experiment, rounds: int = ROUNDS, progress: Progress | None = None
) -> tuple[Progress, float]:
    """The progress after so many rounds, and the largest imbalance on the way."""
    progress = progress or Progress(0, case.start(), ClientStates(), [])
    worst = 0.0
    weights = SHARES if case.method.normalise else SHARES * STEPS  # type: ignore[attr-defined]
    for number in range(progress.done + 1, rounds + 1):
        play_round(case, progress, number)
        worst = max(worst, imbalance(progress, weights))
    return progress, worst


def error(progress: Progress, weights: Vector = SHARES) -> float:
    return float(np.abs(bias(progress) - optimum(weights)).max())


def test_the_clients_take_the_steps_that_the_test_says() -> None:
    case = experiment(Quadratic())
    assert [Quadratic().steps(client) for client in case.federation.declared] == STEPS.tolist()
    assert np.allclose([client.total / 48 for client in case.federation.declared], SHARES)


def test_fed_shvr_finds_the_optimum_of_all_clients_together() -> None:
    progress, worst = train(experiment(Quadratic()))
    assert error(progress) < 1e-8
    assert worst < 1e-12


def test_without_the_correction_it_is_fednova_beside_the_optimum_and_fedavg_is_further_off() -> (
    None
):
    variants = Quadratic(correct=False), Quadratic(correct=False, normalise=False)
    fednova, fedavg = (error(train(experiment(method))[0]) for method in variants)
    assert 0.01 < fednova < fedavg
    assert fedavg > 0.1


def test_without_normalisation_it_finds_the_optimum_in_which_steps_count() -> None:
    progress, worst = train(experiment(Quadratic(normalise=False)))
    assert error(progress, SHARES * STEPS) < 1e-8
    assert error(progress) > 0.1
    assert worst < 1e-12


def test_the_first_two_rounds_are_those_of_the_printed_equations() -> None:
    """Equations (14) to (16) with d_k, by hand: the correction of round 2 is (average - own) of
    round 1.
    """
    method = Quadratic()
    pixels = pictures().reshape(len(COUNTS), 20) / 255
    curvature, places = 1 + pixels[:, :10], 6 * pixels[:, 10:] - 3
    case = experiment(method)
    theta, correction = (
        np.asarray(case.start().model.parameters["output.bias"]),
        np.zeros((len(COUNTS), 10)),
    )
    for _ in range(2):
        updates = np.zeros((len(COUNTS), 10))
        for client, steps in enumerate(STEPS):
            own = theta.copy()
            for _ in range(steps):
                own = own - method.rate * (
                    curvature[client] * (own - places[client]) + correction[client]
                )
            updates[client] = (theta - own) / (method.rate * steps)
        average = SHARES @ updates
        theta = theta - method.rate * (SHARES @ STEPS) * average
        correction = correction + average - updates
    progress, _ = train(case, rounds=2)
    np.testing.assert_allclose(bias(progress), theta, rtol=1e-12)


@pytest.mark.parametrize("name", ["not a number", "wrong shape", "absurd"])
def test_a_refused_upload_costs_a_round_but_not_the_optimum(name: str) -> None:
    progress, worst = train(experiment(Quadratic(), poison(DAMAGES[name], (5, 2), (9, 3))))
    assert [line["round"] for line in progress.history if line["refused"]] == [5, 9]
    assert worst < 1e-12
    assert error(progress) < 1e-8


def test_a_lost_first_upload_leaves_no_trace_in_the_corrections() -> None:
    progress, worst = train(experiment(Quadratic(), drop((1, 0), (2, 0))))
    assert worst < 1e-12
    assert error(progress) < 1e-8


def test_a_hub_that_died_repeats_the_round_and_ends_where_it_would_have() -> None:
    case = experiment(Quadratic())
    progress, _ = train(case, rounds=4)
    stored = restarted(case, progress)
    play_round(case, progress, 5)
    assert difference(stored.state, progress.state) is not None
    again, worst = train(case, progress=stored)
    straight, _ = train(case)
    assert worst < 1e-12
    assert error(again) < 1e-8
    assert difference(straight.state, again.state) is None
    assert difference(straight.kept.states, again.kept.states) is None


def test_dropout_without_a_layer_that_drops_is_refused() -> None:
    options = {"data": "digits", "labels": "each:2", "clients": 5, "perturb": "dropout"}
    with pytest.raises(ConfigError, match="needs a model that drops"):
        prepare(configure("fed-shvr", model="cnn", **options)).start()
    prepare(configure("fed-shvr", model="mlp", dropout=0.5, **options)).start()

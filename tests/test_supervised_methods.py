"""Federated methods on labels at the clients, each against what its authors' equations give by
hand.

On quadratics the methods run as they are, through hub, gate and executor, but for the loss: a
client's images are all alike, and their pixels say where its optimum lies (the second ten) and how
steep the way there is (the first ten). The ten output biases of the model are what is optimised.
"""

import math
import sys
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

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
from fedglean.method import Batch, Declared, Me, Method, Sample, Upload
from fedglean.methods import fedavgm, fednova, fedprox, scaffold, vrl_sgd
from fedglean.methods.common import epochs_in_time, supervised
from fedglean.methods.fedavgm import FedAvgM
from fedglean.methods.fednova import FedNova, gradients_in
from fedglean.methods.fedprox import FedProx
from fedglean.methods.heterofl import HeteroFL
from fedglean.methods.scaffold import Scaffold
from fedglean.methods.vrl_sgd import VRLSGD
from fedglean.models import Architecture, Model
from fedglean.runs.config import configure, make_method
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.testing import check_method
from fedglean.testing.faults import DAMAGES, chain, drop, poison
from fedglean.tree import Tree
from single_runs import run
from uploads import reply_of

Vector = NDArray[np.float64]

PROX = FedProx(active=1.0, epochs=2, proximity_weight=0.1, stragglers=0.5)
NOVA = FedNova(active=1.0, epochs=2, stragglers=0.5)
SCAFFOLD = Scaffold(active=1.0, epochs=1)
VRL = VRLSGD(period=3, batch=4, rate=0.05)
MOMENTUM = FedAvgM(active=1.0, epochs=1)
FULL_WIDTH = replace(make_method(configure("heterofl-semifl")), active=1.0, epochs=1, batch=10)  # type: ignore[type-var]
HETERO = HeteroFL(active=1.0, epochs=1)

CASES: dict[str, tuple[Method, str]] = {
    "fedprox": (PROX, "static"),
    "fednova": (NOVA, "static"),
    "fednova with every momentum": (
        replace(NOVA, momentum=0.9, proximity_weight=0.1, global_momentum=0.5, annealed=True),
        "running",
    ),
    "scaffold": (SCAFFOLD, "static"),
    "scaffold clipped": (replace(SCAFFOLD, clip=1.0, global_rate=0.5), "running"),
    "vrl-sgd": (VRL, "static"),
    "vrl-sgd warmed up": (replace(VRL, warm_up=True), "running"),
    "fedavgm": (MOMENTUM, "static"),
    "heterofl-semifl": (FULL_WIDTH, "static"),
    "heterofl": (HETERO, "static"),
    "heterofl with drawn widths": (
        replace(HETERO, dynamic=True, widths="1,0.5", mask=False),
        "running",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_keeps_the_contract(name: str) -> None:
    method, norm = CASES[name]
    check_method(method, norm=norm, rounds=2)


@pytest.mark.parametrize(
    "method", [PROX, NOVA, SCAFFOLD, VRL, MOMENTUM, HETERO], ids=lambda it: type(it).__name__
)
def test_labels_at_the_hub_alone_are_refused_with_the_way_out(method: Method) -> None:
    with pytest.raises(ConfigError, match="needs clients with labels; 'hub-only'"):
        method.check([Declared(0, 5), Declared(0, 0)], hub_labels=20)
    method.check([Declared(1, 5), Declared(0, 9)], hub_labels=0)


COUNTS = np.array([2, 5, 3, 7, 4])
SHARES = COUNTS / COUNTS.sum()
EQUAL = np.ones(5)
RATE = 0.15
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 1, 4, 5), dtype=np.uint8)
CURVATURE: Vector = 1 + PIXELS.reshape(5, 20)[:, :10] / 255
PLACES: Vector = 6 * (PIXELS.reshape(5, 20)[:, 10:] / 255) - 3
ONE_BY_ONE = {"batch": 1, "view": "plain"}


def quadratic(model: Model, batch: Batch, frozen: Tree) -> Tensor:
    pixels = batch.labelled.images.flatten(1).mean(0)
    curvature, optimum = 1 + pixels[:10], 6 * pixels[10:] - 3
    return 0.5 * (curvature * (model.parameters["output.bias"] - optimum).square()).sum()


@pytest.fixture
def _quadratics(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fedprox, fednova, scaffold, vrl_sgd, fedavgm):
        monkeypatch.setattr(module, "supervised", quadratic)


on_quadratics = pytest.mark.usefixtures("_quadratics")


def experiment(
    method: Method, deliver: Deliver = lambda envelope: [envelope], rounds: int = 40
) -> Experiment:
    """Five clients with 2, 5, 3, 7 and 4 labelled images, and one with four that nobody
    labelled.
    """
    counts = [*COUNTS.tolist(), 4]
    owner = np.repeat([0, 1, 2, 3, 4, 0], counts)
    images, labels = torch.from_numpy(PIXELS[owner]), torch.arange(len(owner)) % 10
    held, none = torch.split(torch.arange(len(owner)), counts), torch.zeros(0, dtype=torch.long)
    split = Split(none, (*held[:5], none), (*[none] * 5, held[5]))
    dataset = Dataset(
        "quadratics", tuple("0123456789"), images, labels, images, labels, (0.0,), (1.0,), False, 0
    )
    federation, truth = divide(dataset, split, torch.device("cpu"))
    setting = Setting(Recipe((0.0,), (1.0,), False, 0), torch.float64)
    config = configure(
        "fedavg", model="mlp", rounds=rounds, dtype="float64", device="cpu", evaluate_every=rounds
    )
    evaluator = Evaluator(images, labels, truth, setting)
    executor = Loop(setting)
    clients = Clients(federation, executor, deliver=deliver)
    exchanger = Exchanger(Here(clients), len(federation.declared))
    parts = dataset, split, federation, evaluator, executor, exchanger
    return Experiment(config, method, *parts)


def small_model(name: str) -> Model:
    return Architecture("mlp", (1, 4, 5), 10, 0.001).initial(1, torch.float64)


START: Vector = small_model("model").parameters["output.bias"].numpy()


def train(
    method: Method, rounds: int = 40, deliver: Deliver = lambda envelope: [envelope]
) -> tuple[Progress, float]:
    """The progress after so many rounds, and how far c ever was from the mean of the c_k, where
    there are such.
    """
    case = experiment(method, deliver, rounds)
    progress, worst = Progress(0, method.start(small_model), ClientStates(), []), 0.0
    for number in range(1, rounds + 1):
        play_round(case, progress, number)
        if hasattr(progress.state, "control"):
            worst = max(worst, imbalance(progress))
    return progress, worst


def imbalance(progress: Progress) -> float:
    kept = [progress.kept.states.get(client) for client in range(5)]
    own = np.stack(
        [np.zeros(10) if state is None else state["output.bias"].numpy() for state in kept]
    )
    return float(np.abs(progress.state.control["output.bias"].numpy() - own.mean(0)).max())


def bias(progress: Progress) -> Vector:
    return np.asarray(progress.state.model.parameters["output.bias"])


def optimum(weights: Vector) -> Vector:
    """Where the weighted sum of the clients' quadratics is least."""
    return np.asarray(
        (weights[:, None] * CURVATURE * PLACES).sum(0) / (weights[:, None] * CURVATURE).sum(0)
    )


def visit(
    client: int,
    start: Vector,
    steps: int,
    correction: Vector | float = 0.0,
    momentum: float = 0.0,
    pull: float = 0.0,
) -> Vector:
    """One client's steps on its quadratic, written down once more."""
    own, velocity = start.copy(), np.zeros(10)
    for _ in range(steps):
        velocity = momentum * velocity + CURVATURE[client] * (own - PLACES[client]) + correction
        own = own - RATE * velocity - RATE * pull * (own - start)
    return own


def gap(progress: Progress, expected: Vector) -> float:
    return float(np.abs(bias(progress) - expected).max())


def test_the_gradient_of_fedprox_has_the_pull_added() -> None:
    key = torch.tensor(0)
    images = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(3, 1, 4, 5)
    sample = Sample((images,), torch.arange(3), torch.tensor([1, 7, 7]))
    batch = Batch({"labelled": sample}, key, key, torch.tensor(0.1), key)
    model, sent = (
        small_model("model"),
        Architecture("mlp", (1, 4, 5), 10, 0.001).initial(2, torch.float64).parameters,
    )

    def gradient(loss: Any) -> dict[str, Tensor]:
        return grad(lambda weights: loss(model.with_parameters(weights), batch, {"sent": sent}))(
            model.parameters
        )

    with_pull, without = gradient(FedProx(proximity_weight=0.3).loss), gradient(supervised)
    for name, weight in model.parameters.items():
        torch.testing.assert_close(with_pull[name], without[name] + 0.3 * (weight - sent[name]))


@on_quadratics
def test_fedprox_takes_the_steps_of_its_equation() -> None:
    theta = START
    for _ in range(2):
        theta = SHARES @ np.stack([visit(k, theta, 2 * n, pull=0.7) for k, n in enumerate(COUNTS)])
    method = FedProx(active=1.0, epochs=2, rate=RATE, proximity_weight=0.7, **ONE_BY_ONE)
    assert gap(train(method, rounds=2)[0], theta) < 1e-12


def test_stragglers_manage_any_number_of_epochs_and_the_others_all() -> None:
    def managed(stragglers: float) -> list[int]:
        empty: Any = None
        return [
            epochs_in_time(Me(0, empty, empty, None, key), 4, stragglers) for key in range(2000)
        ]

    assert set(managed(0.0)) == {4}
    counts = np.bincount(managed(0.4), minlength=5)
    assert counts[0] == 0 and np.abs(counts[1:] / 2000 - [0.1, 0.1, 0.1, 0.7]).max() < 0.03


@pytest.mark.parametrize("steps", [1, 2, 17])
def test_the_gradients_in_a_visit_are_counted_as_the_closed_forms_say(steps: int) -> None:
    rho, pull = 0.9, 0.03
    assert gradients_in(steps) == steps
    with_momentum = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert math.isclose(gradients_in(steps, rho), with_momentum, rel_tol=1e-12)
    assert math.isclose(
        gradients_in(steps, 0.0, pull), (1 - (1 - pull) ** steps) / pull, rel_tol=1e-12
    )


@on_quadratics
@pytest.mark.parametrize(
    ("momentum", "pull", "hub"), [(0.0, 0.0, 0.0), (0.9, 0.0, 0.5), (0.8, 0.6, 0.0)]
)
def test_fednova_goes_the_normalised_way(momentum: float, pull: float, hub: float) -> None:
    theta, velocity = START, np.zeros(10)
    for _ in range(3):
        # Every gradient is 1 on a slope: how far a client gets there is how many gradients are in
        # its way.
        counted = np.array([slope(n, momentum, RATE * pull) for n in COUNTS])
        ways = np.stack(
            [
                (theta - visit(k, theta, n, 0.0, momentum, pull)) / counted[k]
                for k, n in enumerate(COUNTS)
            ]
        )
        effective = SHARES @ (COUNTS if pull else counted)
        velocity = hub * velocity + effective * (SHARES @ ways)
        theta = theta - velocity
    settings = {
        "momentum": momentum,
        "proximity_weight": pull,
        "global_momentum": hub,
        **ONE_BY_ONE,
    }
    assert (
        gap(train(FedNova(active=1.0, epochs=1, rate=RATE, **settings), rounds=3)[0], theta) < 1e-12
    )


def test_fednova_refuses_a_pull_that_leaps_over_what_was_sent() -> None:
    """On a slope the second of two such steps undoes the first, and no gradient is left in the
    way.
    """
    assert slope(2, 0.0, pull=2.0) == 0.0
    with pytest.raises(ConfigError, match=r"rate x proximity_weight must be below 1, .* not 2"):
        FedNova(rate=0.5, proximity_weight=4.0)
    FedNova(rate=0.5, proximity_weight=1.9)


@pytest.mark.parametrize(
    "steps", [{}, {"steps": torch.tensor(3.0)}], ids=["no steps", "steps of no weight"]
)
def test_a_round_of_fednova_without_steps_changes_nothing(steps: dict[str, Tensor]) -> None:
    method = FedNova()
    state = method.start(small_model)
    talk = method.round(experiment(method).hub(1), state)
    ask = talk.send(None)
    weight = {"model": 2.0, **dict.fromkeys(steps, 0.0)}
    sent = Upload(model=small_model("other"), weight=weight, **steps)
    with pytest.raises(StopIteration) as stop:
        talk.send(reply_of({0: sent}, {**ask.message, **steps}))
    assert stop.value.value is state


def slope(steps: int, momentum: float, pull: float) -> float:
    place = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        place = place - velocity - pull * place
    return -place


@on_quadratics
def test_fednova_ends_at_its_own_fixed_point_far_nearer_to_the_optimum_than_fedavg() -> None:
    """Where sum_k p_k d_k = 0: a client's way from theta is 1 - (1 - rate * curvature)^steps of
    that to its optimum.
    """
    rate = RATE / 3
    reach = 1 - (1 - rate * CURVATURE) ** COUNTS[:, None]
    weight = SHARES[:, None] * reach / COUNTS[:, None]
    fixed = (weight * PLACES).sum(0) / weight.sum(0)
    nova = train(FedNova(active=1.0, epochs=1, rate=rate, **ONE_BY_ONE), rounds=50)[0]
    average = train(
        FedProx(active=1.0, epochs=1, rate=rate, proximity_weight=0.0, **ONE_BY_ONE), rounds=50
    )[0]
    assert gap(nova, fixed) < 1e-5
    assert 0.01 < gap(nova, optimum(SHARES)) < gap(average, optimum(SHARES)) / 2


QUADRATIC_SCAFFOLD = Scaffold(active=1.0, epochs=1, rate=RATE, **ONE_BY_ONE)
QUADRATIC_VRL = VRLSGD(period=6, rate=RATE, **ONE_BY_ONE)


@on_quadratics
def test_scaffold_takes_the_steps_of_its_algorithm() -> None:
    """With c_k and c as printed, K the client's own number of steps."""
    theta, control, own = START, np.zeros(10), np.zeros((5, 10))
    for _ in range(3):
        ends = np.stack([visit(k, theta, n, control - own[k]) for k, n in enumerate(COUNTS)])
        new = own - control + (theta - ends) / (COUNTS[:, None] * RATE)
        theta, control, own = (
            theta + 0.9 * (ends - theta).mean(0),
            control + (new - own).mean(0),
            new,
        )
    assert gap(train(replace(QUADRATIC_SCAFFOLD, global_rate=0.9), rounds=3)[0], theta) < 1e-12


@on_quadratics
@pytest.mark.parametrize(("active", "rounds"), [(1.0, 40), (0.5, 150)])
def test_scaffold_finds_the_optimum_of_all_clients_whatever_their_steps_and_whoever_comes(
    active: float, rounds: int
) -> None:
    progress, worst = train(replace(QUADRATIC_SCAFFOLD, active=active), rounds)
    assert gap(progress, optimum(EQUAL)) < 1e-8
    assert worst < 1e-12


@on_quadratics
def test_without_corrections_the_same_clients_miss_it() -> None:
    plain = FedAvgM(
        active=1.0, epochs=1, rate=RATE, global_momentum=0.0, weigh_by="nothing", **ONE_BY_ONE
    )
    assert gap(train(plain)[0], optimum(EQUAL)) > 0.1


@on_quadratics
@pytest.mark.parametrize("warm_up", [False, True])
def test_vrl_sgd_takes_the_steps_of_the_printed_recursion(warm_up: bool) -> None:
    """Delta_k += (mean - own) / (k rate), and steps by gradient - Delta_k."""
    theta, delta = START, np.zeros((5, 10))
    for number in range(4):
        steps = 1 if warm_up and number == 0 else 6
        ends = np.stack([visit(k, theta, steps, -delta[k]) for k in range(5)])
        theta = ends.mean(0)
        delta = delta + (theta - ends) / (steps * RATE)
    assert gap(train(replace(QUADRATIC_VRL, warm_up=warm_up), rounds=4)[0], theta) < 1e-12


@on_quadratics
def test_vrl_sgd_finds_the_optimum_of_all_clients() -> None:
    progress, worst = train(QUADRATIC_VRL)
    assert gap(progress, optimum(EQUAL)) < 1e-8
    assert worst < 1e-12


@on_quadratics
def test_scaffold_with_everybody_and_equal_steps_is_vrl_sgd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "COUNTS", np.full(5, 6))
    both = [train(method, rounds=5)[0] for method in (QUADRATIC_SCAFFOLD, QUADRATIC_VRL)]
    assert gap(both[0], bias(both[1])) < 1e-12
    assert gap(both[0], START) > 0.1


@on_quadratics
@pytest.mark.parametrize(
    "method", [QUADRATIC_SCAFFOLD, QUADRATIC_VRL], ids=lambda it: type(it).__name__
)
@pytest.mark.parametrize("name", ["not a number", "absurd"])
def test_a_refused_upload_costs_a_round_but_not_the_optimum(method: Method, name: str) -> None:
    faults = chain(poison(DAMAGES[name], (5, 2), (9, 3)), drop((1, 0), (2, 0), (11, 4)))
    progress, worst = train(method, 50, faults)
    assert [line["round"] for line in progress.history if line["refused"]] == [5, 9]
    assert worst < 1e-12
    assert gap(progress, optimum(EQUAL)) < 1e-8


@on_quadratics
@pytest.mark.parametrize(("weigh_by", "weights"), [("images", SHARES), ("nothing", EQUAL / 5)])
def test_fedavgm_moves_by_momentum_at_the_hub(weigh_by: str, weights: Vector) -> None:
    theta, velocity = START, np.zeros(10)
    for _ in range(4):
        mean = weights @ np.stack([visit(k, theta, n, momentum=0.3) for k, n in enumerate(COUNTS)])
        velocity = 0.6 * velocity + (theta - mean)
        theta = theta - velocity
    method = FedAvgM(
        active=1.0,
        epochs=1,
        rate=RATE,
        global_momentum=0.6,
        momentum=0.3,
        weigh_by=weigh_by,
        **ONE_BY_ONE,
    )
    assert gap(train(method, rounds=4)[0], theta) < 1e-12


@on_quadratics
def test_the_row_of_semifls_table_clips_decays_and_keeps_nesterov_momentum_at_clients() -> None:
    theta, hub, kept = START, np.zeros(10), np.zeros((5, 10))
    for number in range(3):
        rate = RATE * 0.5 * (1 + math.cos(math.pi * number / 3))
        ends = np.zeros((5, 10))
        for k, steps in enumerate(COUNTS):
            own = theta.copy()
            for _ in range(steps):
                gradient = CURVATURE[k] * (own - PLACES[k])
                gradient = gradient * min(1.0, 1.0 / (np.linalg.norm(gradient) + 1e-6)) + 5e-4 * own
                kept[k] = 0.9 * kept[k] + gradient
                own = own - rate * (gradient + 0.9 * kept[k])
            ends[k] = own
        hub = 0.5 * hub + (theta - ends.mean(0))
        theta = theta - hub
    method = replace(FULL_WIDTH, rate=RATE, **ONE_BY_ONE)  # type: ignore[arg-type]
    assert gap(train(method, rounds=3)[0], theta) < 1e-12


def test_scaffold_is_five_points_ahead_of_fedavg_with_clients_that_are_unlike() -> None:
    """Digits by Dirichlet 0.1, all labelled, four of ten clients a round; seven to 23 points with
    seeds 0 to 5.
    """
    corrected = configure("scaffold", data="digits", rounds=10, evaluate_every=10, executor="loop")
    options: dict[str, Any] = {"split": asdict(corrected.split), "model": asdict(corrected.model)}
    alike = {
        name: corrected.settings[name] for name in ("active", "epochs", "batch", "rate", "view")
    }
    plain = configure(
        "fedavg",
        data="digits",
        rounds=10,
        evaluate_every=10,
        executor="loop",
        settings=alike,
        **options,
    )
    assert run(corrected).last.accuracy >= run(plain).last.accuracy + 0.05

"""Semi-supervised learning under FedAvg: each method's own mechanism against a second computation,
and the contract.

In the small federation below every client's images fit into a batch a whole number of times. A
filled-up batch is then the client's whole set, in whatever order, so that a training can be
computed again with torch's own optimiser.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coroutines import first_request
from fedglean.data.partition import Split
from fedglean.data.sources import load
from fedglean.engine.batches import Setting
from fedglean.engine.loop import Loop
from fedglean.errors import ConfigError
from fedglean.exchange.states import ClientStates
from fedglean.losses import mix, mixmatch_losses
from fedglean.method import Ask, Batch, Declared, Hub, Me, Method, Sample, Train, Trained, Upload
from fedglean.methods.fed_fixmatch import FedFixMatch, FedSGDFixMatch
from fedglean.methods.fed_mixmatch import FedMixMatch
from fedglean.methods.fed_mt import FedMT
from fedglean.methods.fedsem import FedSem
from fedglean.methods.hassle import Hassle
from fedglean.models import Architecture, Model
from fedglean.runs.config import configure, make_method
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress
from fedglean.testing import check_method
from fedglean.testing.play import play
from fedglean.tree import Record
from fedglean_papers.hassle_release import HassleRelease
from fedglean_papers.semifl_rows import SemiFLRows
from uploads import reply_of

FIXMATCH = FedFixMatch(
    active=1.0, epochs=1, labelled_batch=6, unlabelled_batch=8, threshold=0.2, rate=0.03
)
MIXMATCH = FedMixMatch(active=1.0, epochs=1, batch=8, rate=0.03)
TEACHER = FedMT(
    epochs=1, labelled_batch=8, batch=8, momentum=0.5, ramp_epochs=1.5, keep_teacher=True
)

CASES: dict[str, tuple[Method, str]] = {
    "fedavg-fixmatch": (FIXMATCH, "static"),
    "fedavg-fixmatch labelling by the global model": (
        replace(FIXMATCH, labels_from="global"),
        "static",
    ),
    "fedavg-fixmatch with running averages": (FIXMATCH, "running"),
    "fedsgd-fixmatch": (FedSGDFixMatch(active=1.0, steps=2, threshold=0.2), "static"),
    "fedavg-mixmatch": (MIXMATCH, "static"),
    "fedavg-mixmatch with running averages": (MIXMATCH, "running"),
    "fed-mt": (TEACHER, "static"),
    "fed-mt with a new teacher at every visit": (replace(TEACHER, keep_teacher=False), "static"),
    "fed-mt with running averages": (TEACHER, "running"),
    "fedsem": (FedSem(epochs=1, batch=8, labels_only=0.4), "static"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_keeps_the_contract(name: str) -> None:
    method, norm = CASES[name]
    check_method(method, norm=norm, rounds=3 if " " not in name else 2)


@pytest.mark.parametrize(
    "method", ["fedavg-fixmatch", "fedavg-mixmatch", "fedsem", "fed-pseudo", "fed-mt"]
)
def test_labels_at_the_hub_alone_are_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="needs clients with labels"):
        make_method(configure(method)).check([Declared(0, 5)], hub_labels=20)


@pytest.mark.parametrize("method", ["fedavg-fixmatch-hub", "fedsgd-fixmatch"])
def test_labels_at_clients_alone_are_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="needs labelled images at the hub"):
        make_method(configure(method)).check([Declared(5, 5)], hub_labels=0)


#: (labelled, unlabelled) images of a partially labelled, a fully labelled, an unlabelled and a
#: lopsided client.
COUNTS = ((8, 8), (12, 0), (0, 16), (2, 4))
SIZES = [count for pair in COUNTS for count in pair]
BATCH = 48

Weights = dict[str, Tensor]


def experiment(method: Method, rounds: int = 2) -> Experiment:
    *held, hub = torch.split(torch.arange(sum(SIZES) + 10), [*SIZES, 10])
    split = Split(hub, tuple(held[::2]), tuple(held[1::2]))
    options: dict[str, Any] = {
        "dtype": "float64",
        "device": "cpu",
        "executor": "loop",
        "evaluate_every": rounds,
    }
    prepared = prepare(
        configure("fedavg", data="digits", model="mlp", rounds=rounds, **options), split
    )
    return replace(prepared, method=method)


def start(case: Experiment) -> Progress:
    """Before round 1, with a net small enough to be trained twice."""
    small = Architecture("mlp", (1, 8, 8), 10, 0.01)
    return Progress(
        0, case.method.start(lambda name: small.initial(0, torch.float64)), ClientStates(), []
    )


def plain_images(positions: Tensor) -> Tensor:
    digits = load("digits")
    scaled = digits.train_images[positions].double() / 255
    return ((scaled - digits.mean[0]) / digits.std[0]).flatten(1)


def forward(weights: Weights, images: Tensor) -> Tensor:
    hidden = F.linear(images, weights["hidden.weight"], weights["hidden.bias"]).relu()
    return F.linear(hidden, weights["output.weight"], weights["output.bias"])


def descended(
    weights: Weights, rate: float, losses: Sequence[Callable[[Weights], Tensor]]
) -> Weights:
    """Where torch's own optimiser gets by these losses, a step each."""
    live = {name: value.clone().requires_grad_() for name, value in weights.items()}
    optimiser = torch.optim.SGD(live.values(), lr=rate)
    for loss in losses:
        optimiser.zero_grad()
        loss(live).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: value.detach() for name, value in live.items()}


def supervised(parts: list[tuple[float, Tensor, Tensor]], live: Weights) -> Tensor:
    """Weighted sum of cross-entropies; a part without images is none."""
    losses = [
        weight * F.cross_entropy(forward(live, images), label)
        for weight, images, label in parts
        if len(label)
    ]
    return torch.stack(losses).sum()


def averaged(parts: Sequence[tuple[float, Weights]]) -> Weights:
    total = sum(weight for weight, _ in parts)
    return {
        name: sum(weight / total * part[name] for weight, part in parts) for name in parts[0][1]
    }  # type: ignore[misc]


def clients() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Labelled images, their labels and the unlabelled images of each client."""
    held = torch.split(torch.arange(sum(SIZES)), SIZES)
    labels = load("digits").train_labels
    return [
        (plain_images(a), labels[a], plain_images(b))
        for a, b in zip(held[::2], held[1::2], strict=True)
    ]


def same(model: Model, weights: Weights) -> None:
    for name, value in weights.items():
        torch.testing.assert_close(model.parameters[name], value, rtol=1e-9, atol=1e-12)


def test_fedsem_trains_on_labels_first_and_on_the_global_models_guesses_afterwards() -> None:
    method = FedSem(labels_only=0.5, epochs=2, batch=BATCH, rate=0.1)
    case = experiment(method)
    begin = start(case)
    weights: Weights = dict(begin.state.model.parameters)
    for guessing in (False, True):
        parts = []
        for known, label, unknown in clients():
            guess = forward(weights, unknown).argmax(-1)
            images = torch.cat([known, unknown]) if guessing else known
            labels = torch.cat([label, guess]) if guessing else label
            if len(images):
                loss = partial(supervised, [(1.0, images, labels)])
                parts.append((len(images), descended(weights, method.rate, [loss] * method.epochs)))
        weights = averaged(parts)
    outcome = play(case, begin=begin)
    same(outcome.state.model, weights)
    assert [line["abstained"] for line in outcome.history] == [1, 0]


def test_fed_pseudo_is_fedavg_on_hard_labels_whose_weight_grows() -> None:
    """48 epochs a round: a client takes as many steps as it has images of the larger kind."""
    batches: dict[str, Any] = {"labelled_batch": BATCH, "unlabelled_batch": BATCH}
    method = make_method(
        configure("fed-pseudo", perturb="none", epochs=48, ramp_epochs=72.0, rate=0.1, **batches)
    )
    case = experiment(method)
    begin = start(case)
    weights: Weights = dict(begin.state.model.parameters)
    for done in (0, 48):
        parts = []
        for known, label, unknown in clients():
            guess, steps = forward(weights, unknown).argmax(-1), max(len(known), len(unknown))
            shares = [min(1.0, (done + at * 48 / steps) / 72.0) for at in range(steps)]
            losses = [
                partial(supervised, [(1.0, known, label), (share, unknown, guess)])
                for share in shares
            ]
            parts.append((len(known) + len(unknown), descended(weights, 0.1, losses)))
        weights = averaged(parts)
    same(play(case, begin=begin).state.model, weights)


def taught(
    teaching: tuple[float, Tensor, Tensor], labelled: tuple[Tensor, Tensor], live: Weights
) -> Tensor:
    weight, images, target = teaching
    loss = weight * F.mse_loss(forward(live, images).softmax(-1), target)
    return loss + supervised([(1.0, *labelled)], live) if len(labelled[1]) else loss


@pytest.mark.parametrize("keep", [True, False])
def test_fed_mt_follows_each_clients_own_average_of_its_students(keep: bool) -> None:
    """Unperturbed images, three epochs a round: the second round has left the ramp after its first
    step.
    """
    method = FedMT(
        epochs=3,
        labelled_batch=BATCH,
        batch=BATCH,
        rate=0.1,
        ramp_epochs=4.0,
        early_average=0.5,
        late_average=0.8,
        keep_teacher=keep,
        view="plain",
    )
    case = experiment(method)
    begin = start(case)
    weights: Weights = dict(begin.state.model.parameters)
    teachers: dict[int, Weights] = {}
    for done in (0, 3):
        parts = []
        for number, (known, label, unknown) in enumerate(clients()):
            images, student = torch.cat([known, unknown]), weights
            teacher = teachers.get(number, weights) if keep else weights
            for epoch in range(done, done + 3):
                target = forward(teacher, images).softmax(-1)
                weight = 50 * math.exp(-5 * (1 - min(1, epoch / 4)) ** 2)
                loss = partial(taught, (weight, images, target), (known, label))
                student = descended(student, method.rate, [loss])
                share = 0.5 if epoch < 4 else 0.8
                teacher = {
                    name: share * teacher[name] + (1 - share) * student[name] for name in teacher
                }
            teachers[number] = teacher
            parts.append((len(images), student))
        weights = averaged(parts)
    outcome = play(case, begin=begin)
    same(outcome.state.model, weights)
    assert set(outcome.kept) == (set(range(len(COUNTS))) if keep else set())
    for number, teacher in outcome.kept.items():
        same(teacher, teachers[number])


def small_model(seed: int = 0) -> Model:
    return Architecture("mlp", (1, 4, 4), 5, 0.002).initial(seed, torch.float64)


def drawn(seed: int, count: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 1, 4, 4)))


def batch_of(*views: Tensor, labelled: Tensor, label: Tensor) -> Batch:
    zero = torch.zeros((), dtype=torch.long)
    streams = {
        "labelled": Sample((labelled,), torch.arange(len(label)), label),
        "unlabelled": Sample(views, torch.arange(len(views[0]))),
    }
    return Batch(streams, zero, zero, torch.tensor(0.1), torch.tensor(7))


def numpy_probabilities(model: Model, images: Tensor) -> np.ndarray[Any, Any]:
    of = {name: value.numpy() for name, value in model.parameters.items()}
    hidden = np.maximum(images.flatten(1).numpy() @ of["hidden.weight"].T + of["hidden.bias"], 0)
    logits = hidden @ of["output.weight"].T + of["output.bias"]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


@pytest.mark.parametrize("labels_from", ["local", "global"])
def test_fixmatch_at_a_client_learns_confident_guesses_of_the_local_or_the_global_model(
    labels_from: str,
) -> None:
    method = FedFixMatch(labels_from=labels_from, threshold=0.26, unlabelled_weight=2.0)
    model, sent = small_model(0), small_model(1)
    weak, strong, known, label = drawn(0, 30), drawn(1, 30), drawn(2, 6), torch.arange(6) % 5
    frozen = {"labeller": sent} if labels_from == "global" else {}
    loss, metrics = method.loss(model, batch_of(weak, strong, labelled=known, label=label), frozen)
    guess = numpy_probabilities(sent if labels_from == "global" else model, weak)
    sure = guess.max(1) >= 0.26
    assert 5 < sure.sum() < 25
    losses = -np.log(numpy_probabilities(model, strong)[np.arange(30), guess.argmax(1)])
    labelled = -np.log(numpy_probabilities(model, known)[np.arange(6), label.numpy()]).mean()
    np.testing.assert_allclose(float(loss), labelled + 2 * (losses * sure).sum() / 30, rtol=1e-10)
    np.testing.assert_allclose(float(metrics["confident"]), sure.mean())


def test_the_guess_of_fixmatch_has_no_gradient() -> None:
    weights = {name: value.requires_grad_() for name, value in small_model().parameters.items()}
    model = Model(small_model().architecture, weights)
    weak = drawn(0, 8).requires_grad_()
    batch = batch_of(weak, drawn(1, 8), labelled=drawn(2, 4), label=torch.arange(4))
    FedFixMatch(threshold=0.0).loss(model, batch, {})[0].backward()  # type: ignore[no-untyped-call]
    assert weak.grad is None or not weak.grad.any()


def test_mixmatch_mixes_all_images_and_splits_the_loss_again() -> None:
    model, key = small_model(), torch.tensor(11)
    views, known, label = (drawn(0, 6), drawn(1, 6)), drawn(2, 6), torch.arange(6) % 5
    labelled, guessed = mixmatch_losses(model, (known, label), views, 2.0, 0.75, key)
    mean = (numpy_probabilities(model, views[0]) + numpy_probabilities(model, views[1])) / 2
    sharp = mean**2 / (mean**2).sum(1, keepdims=True)
    soft = torch.from_numpy(np.concatenate([np.eye(5)[label.numpy()], sharp, sharp]))
    mixed, target = mix(key, torch.cat([known, *views]), soft, 0.75)
    probabilities, wanted = numpy_probabilities(model, mixed), target.numpy()
    np.testing.assert_allclose(
        float(labelled), -(wanted[:6] * np.log(probabilities[:6])).sum(1).mean(), rtol=1e-10
    )
    np.testing.assert_allclose(
        float(guessed), ((probabilities[6:] - wanted[6:]) ** 2).mean(), rtol=1e-10
    )
    assert float((mixed - torch.cat([known, *views])).abs().max()) > 0.01


def test_the_weight_of_mixmatch_grows_by_rounds() -> None:
    case = experiment(FedMixMatch(ramp=0.5, unlabelled_weight=80.0), rounds=8)
    hubs = [
        Hub(number, 8, case.federation.hub, case.federation.declared, 0) for number in (1, 3, 5, 8)
    ]
    asks = [first_request(case.method.round(hub, case.start())) for hub in hubs]
    assert [ask.message["weight"] for ask in asks] == [0.0, 40.0, 80.0, 80.0]


@pytest.mark.parametrize("method", [FIXMATCH, MIXMATCH], ids=["fixmatch", "mixmatch"])
def test_fully_labelled_clients_do_fedavg_and_unlabelled_ones_stay_away(
    method: FedFixMatch | FedMixMatch,
) -> None:
    case = experiment(method)
    message = Record(model=case.start().model, weight=1.0)
    streams = []
    for number in range(len(COUNTS)):
        talk = method.client(case.federation.me(number, None, 0), message)
        request = first_request(talk)
        streams.append(None if request is None else set(request.streams))
    assert streams == [{"unlabelled", "labelled"}, {"labelled"}, None, {"unlabelled", "labelled"}]


def test_fedsgd_takes_one_step_of_momentum_along_the_hubs_and_the_clients_gradients() -> None:
    """Two steps against torch's own optimiser, gradients made up."""
    method = FedSGDFixMatch(
        steps=2, unlabelled_weight=0.5, rate=0.2, momentum=0.9, decay=0.01, clip=0.7
    )
    case = experiment(method, rounds=1)
    model = small_model()
    memory = method.sgd.init(model)
    talk = method.round(case.hub(1), Record(model=model, memory=memory))
    live = {name: value.clone().requires_grad_() for name, value in model.parameters.items()}
    optimiser = torch.optim.SGD(
        live.values(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01
    )
    request: Any = talk.send(None)
    for step in range(2):
        here = request.models
        same(here, {name: value.detach() for name, value in live.items()})
        hubs, first, second = (small_model(10 * step + place).parameters for place in (1, 2, 3))
        assert isinstance(request, Train) and request.length == 1
        ask = talk.send(Trained(_moved(here, hubs), {}, 1, {}))
        assert isinstance(ask, Ask) and set(ask.message) == {"model"}
        uploads = {}
        for client, gradient in enumerate((first, second)):
            uploads[client] = Upload(model=_moved(here, gradient))
        for name, value in live.items():
            value.grad = hubs[name] + 0.5 * (first[name] + second[name]) / 2
        torch.nn.utils.clip_grad_norm_(live.values(), 0.7)
        optimiser.step()
        try:
            request = talk.send(reply_of(uploads, {"model": here}))
        except StopIteration as stop:
            same(stop.value.model, {name: value.detach() for name, value in live.items()})
            return
    pytest.fail("the round did not end after two steps")


def test_in_parallel_the_hubs_momentum_steps_from_the_model_that_it_has_trained() -> None:
    """Three rounds against torch's own optimiser, trainings made up; in the second no client
    answers.
    """
    method = SemiFLRows(combine="parallel", mixup=False)
    hub, state = experiment(method).hub(1), method.start(lambda name: small_model())
    live = {
        name: value.clone().requires_grad_() for name, value in small_model().parameters.items()
    }
    optimiser = torch.optim.SGD(live.values(), lr=1.0, momentum=0.5)
    for tuned, mean in ((1, 2), (3, None), (5, 6)):
        talk = method.round(hub, state)
        ask = talk.send(None)
        uploads = {} if mean is None else {0: Upload(model=small_model(mean))}
        assert isinstance(talk.send(reply_of(uploads, {"model": ask.message["model"]})), Train)
        with pytest.raises(StopIteration) as stop:
            talk.send(Trained(small_model(tuned), state.memory, 1, {}))
        state = stop.value.value
        for name, value in live.items():
            trained = small_model(tuned).parameters[name]
            met = trained if mean is None else (trained + small_model(mean).parameters[name]) / 2
            value.data, value.grad = trained.clone(), trained - met
        optimiser.step()
        same(state.model, {name: value.detach() for name, value in live.items()})


@pytest.mark.parametrize("method", [Hassle(active=1.0), HassleRelease(active=1.0)])
def test_hassles_residuals_learn_from_the_other_dual_or_as_released_from_the_one_before_it(
    method: Hassle,
) -> None:
    """Eqs. (7)-(9) once more; the released teacher is the other dual one round older, plus the
    other residual.
    """
    is_released = isinstance(method, HassleRelease)
    names = ("supervised", "unsupervised", "supervised_residual", "unsupervised_residual")
    now = {name: small_model(seed) for seed, name in enumerate(names)}
    before = {name: small_model(seed) for seed, name in enumerate(names[:2], start=7)}
    case = experiment(method)
    ask = first_request(method.round(case.hub(2), Record(models=now, previous=before, tested=now)))
    talk = method.client(case.federation.me(0, None, 0), Record(ask.message))
    work = talk.send(None)
    if not is_released:
        work = talk.send(SimpleNamespace(confident=case.federation.labelled[0]))
    images, label = drawn(0, 6), torch.arange(6) % 5
    zero = torch.zeros((), dtype=torch.long)
    batch = Batch({"images": Sample((images,), zero, label)}, zero, zero, zero, zero)
    for own, other, temperature in (
        ("supervised", "unsupervised", 2.0),
        ("unsupervised", "supervised", 1.0),
    ):
        request = next(each for each in work.requests if each.models is now[f"{own}_residual"])
        student, teacher = now[f"{own}_residual"](images), now[other](images)
        if is_released:
            teacher = before[other](images) + now[f"{other}_residual"](images)
        wanted, learnt = (
            (logits / temperature).softmax(-1) for logits in (teacher - now[own](images), student)
        )
        expected = (wanted * (wanted / learnt).log()).sum(-1).mean()
        expected = expected + F.cross_entropy(now[own](images) + student, label)
        torch.testing.assert_close(request.loss(request.models, batch, request.frozen), expected)


def _moved(model: Model, gradient: Weights) -> Model:
    return model.with_parameters(
        {name: value - gradient[name] for name, value in model.parameters.items()}
    )


def test_a_client_of_fedsgd_sends_the_gradient_of_fixmatchs_loss() -> None:
    case = experiment(FedSGDFixMatch(threshold=0.12, client_batch=16))
    model = case.start().model
    setting = case.executor.setting
    talk = FedSGDFixMatch(threshold=0.12, client_batch=16).client(
        case.federation.me(2, None, 0), Record(model=model)
    )
    request = talk.send(None)
    seen: list[Batch] = []

    def noting(live: Model, batch: Batch, frozen: Any) -> Any:
        seen.append(batch)
        return request.loss(live, batch, frozen)

    answer = Loop(Setting(setting.recipe, torch.float64)).serve(replace(request, loss=noting), 5)
    weak, strong = (view.flatten(1) for view in seen[0].unlabelled.views)
    live = {name: value.clone().requires_grad_() for name, value in model.parameters.items()}
    confidence, guess = forward(live, weak).detach().softmax(-1).max(-1)
    mask = confidence >= 0.12
    assert 0 < int(mask.sum()) < 16
    (F.cross_entropy(forward(live, strong), guess, reduction="none") * mask).mean().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(StopIteration) as stop:
        talk.send(answer)
    sent = stop.value.value.trees["model"]
    for name, value in live.items():
        assert value.grad is not None
        torch.testing.assert_close(
            model.parameters[name] - sent.parameters[name], value.grad, rtol=1e-6, atol=1e-12
        )


def test_a_client_without_unlabelled_images_gives_no_gradient() -> None:
    case = experiment(FedSGDFixMatch())
    me: Me = case.federation.me(1, None, 0)
    assert first_request(FedSGDFixMatch().client(me, Record(model=case.start().model))) is None

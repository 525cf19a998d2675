"""FedMatch: two parts that do not disturb each other, helpers that are truly nearest, sparse
messages, the contract.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from coroutines import first_request
from fedglean import tree
from fedglean.engine.loop import Loop
from fedglean.errors import ConfigError
from fedglean.exchange.states import ClientStates
from fedglean.method import Batch, Declared, Sample, Train
from fedglean.methods.fedmatch import (
    FedMatch,
    merge,
    models_sent,
    nearest,
    picture_of_noise,
    sparse,
    total,
    vote,
)
from fedglean.methods.fedmatch_semifl import FedMatchSemiFL
from fedglean.models import Architecture, Model
from fedglean.runs.evaluate import logits
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.testing import check_method
from fedglean.testing.play import play
from fedglean.testing.small_federation import CLIENTS, small_experiment
from fedglean.tree import Record

METHOD = FedMatch(
    active=1.0,
    rate=0.01,
    threshold=0.15,
    helper_interval=2,
    labelled_batch=4,
    unlabelled_batch=8,
    smallest_change=1e-4,
)
AS_IN_SEMIFL = FedMatchSemiFL(active=1.0, threshold=0.2, epochs=1)
ARCHITECTURE = Architecture("mlp", (1, 4, 4), 10, width=0.004)
Matrix = NDArray[np.float64]


@pytest.mark.parametrize("method", [METHOD, AS_IN_SEMIFL], ids=lambda method: type(method).__name__)
def test_fedmatch_keeps_the_contract(method: Any) -> None:
    check_method(method, rounds=2)


def parts() -> dict[str, Model]:
    return {
        name: ARCHITECTURE.initial(number, torch.float64)
        for number, name in enumerate(("sigma", "psi"))
    }


def batch(*streams: str) -> Batch:
    draw = np.random.default_rng(0)
    images = {
        name: torch.from_numpy(draw.normal(size=(2, 6, 1, 4, 4)))
        for name in ("labelled", "unlabelled")
    }
    samples = {
        "labelled": Sample((images["labelled"][0],), torch.arange(6), torch.arange(6)),
        "unlabelled": Sample(tuple(images["unlabelled"]), torch.arange(6)),
    }
    zero = torch.zeros((), dtype=torch.float64)
    return Batch(
        {name: samples[name] for name in streams}, zero, zero, zero + 0.05, torch.tensor(0)
    )


@pytest.mark.parametrize(("stream", "taught"), [("labelled", "sigma"), ("unlabelled", "psi")])
def test_labels_move_sigma_alone_and_unlabelled_images_psi_alone(stream: str, taught: str) -> None:
    old = parts()
    new, _, _ = FedMatch(threshold=0.0).step(old, {}, batch(stream), {"helpers": []})
    moved = {part: bool((tree.row(new[part]) != tree.row(old[part])).any()) for part in old}
    assert moved == {part: part == taught for part in old}


def by_autograd(method: FedMatch, helpers: list[Model]) -> dict[str, dict[str, Tensor]]:
    """The two steps as torch.autograd takes them, from the losses as the paper has them, in numpy's
    plain words.
    """
    both = batch("labelled", "unlabelled")
    old = parts()
    sigma = {
        name: weight.clone().requires_grad_() for name, weight in old["sigma"].parameters.items()
    }
    psi = {name: weight.clone().requires_grad_() for name, weight in old["psi"].parameters.items()}

    def output(images: Tensor) -> Tensor:
        return Model(ARCHITECTURE, {name: sigma[name] + psi[name] for name in sigma})(images)

    log = output(both.labelled.images).log_softmax(-1)
    loss = (
        -10 * torch.stack([log[row, label] for row, label in enumerate(both.labelled.label)]).mean()
    )
    gradient = torch.autograd.grad(loss, list(sigma.values()))
    sigma = {
        name: (w - 0.05 * g).detach() for (name, w), g in zip(sigma.items(), gradient, strict=True)
    }

    plain, strong = (output(view).softmax(-1) for view in both.unlabelled.views)
    said = [helper(both.unlabelled.images).softmax(-1).detach() for helper in helpers]
    sure = [row for row in range(6) if float(plain[row].detach().max()) >= method.threshold]
    assert 0 < len(sure) < 6
    terms = []
    for row in sure:
        votes = [int(each[row].argmax()) for each in (plain, *said)]
        label = max(sorted(set(votes)), key=votes.count)
        apart = sum((each[row] * (each[row] / plain[row]).log()).sum() for each in said) / len(said)
        terms.append(
            -method.agreement_weight * strong[row, label].log() + method.consistency_weight * apart
        )
    loss = torch.stack(terms).mean()
    loss = loss + method.closeness_weight * sum(
        ((sigma[name] - psi[name]) ** 2).sum() for name in sigma
    )
    loss = loss + method.sparsity_weight * sum(psi[name].abs().sum() for name in psi)
    gradient = torch.autograd.grad(loss, list(psi.values()))
    moved = {
        name: (w - 0.05 * g).detach() for (name, w), g in zip(psi.items(), gradient, strict=True)
    }
    return {"sigma": sigma, "psi": moved}


def test_a_step_descends_the_papers_losses_and_psi_follows_at_the_new_sigma() -> None:
    confidences = (
        total(**parts())(batch("unlabelled").unlabelled.images).softmax(-1).amax(-1).sort().values
    )
    method = FedMatch(
        threshold=float(confidences[2:4].mean()), agreement_weight=2.0, consistency_weight=3.0
    )
    method = replace(method, closeness_weight=0.5, sparsity_weight=0.1)
    helpers = [ARCHITECTURE.initial(number, torch.float64) for number in (7, 8)]
    found, _, metrics = method.step(
        parts(), {}, batch("labelled", "unlabelled"), {"helpers": helpers}
    )
    expected = by_autograd(method, helpers)
    for part in ("sigma", "psi"):
        for name, weight in expected[part].items():
            assert torch.allclose(found[part].parameters[name], weight, rtol=1e-10, atol=1e-12), (
                part,
                name,
            )
    assert 0 < float(metrics["confident"]) < 1


def test_helpers_are_the_nearest_clients_of_all() -> None:
    draw = np.random.default_rng(1)
    points = draw.dirichlet(np.ones(10), size=40)
    answers = {3 * number: torch.from_numpy(point) for number, point in enumerate(points)}
    for number in range(40):
        distances = ((points - points[number]) ** 2).sum(1)
        distances[number] = np.inf
        assert nearest(answers, 3 * number, 2) == [
            3 * int(place) for place in np.argsort(distances)[:2]
        ]
    assert nearest(answers, 1, 2) == []
    assert len(nearest(answers, 0, 100)) == 39


def test_clients_answer_the_noise_as_they_answer_any_picture() -> None:
    """After one round: the answers are the predictions of sigma + psi of each client, whose psi the
    hub remembers.
    """
    experiment = small_experiment(replace(METHOD, smallest=0.0, smallest_change=0.0), rounds=1)
    outcome = play(experiment)
    state = outcome.state
    noise = picture_of_noise(state.tested)
    seen = [
        client for client, (labelled, unlabelled) in enumerate(CLIENTS) if labelled + unlabelled
    ]
    assert sorted(state.answers) == sorted(state.psis) == seen
    for client in (1, 6):
        own = outcome.kept[client]
        assert torch.equal(tree.row(own["psi"]), tree.row(state.psis[client]))
        whole = Model(state.tested.architecture, total(**own).parameters, state.tested.statistics)
        setting = experiment.executor.setting
        expected = logits(whole, noise.pixels(torch.arange(1)), setting).softmax(-1)[0]
        assert torch.allclose(state.answers[client], expected, rtol=1e-10)


def test_what_clients_send_follows_their_labels() -> None:
    state = play(small_experiment(replace(METHOD, active=1.0), rounds=1)).state
    sent = small_experiment(METHOD).start()
    # Client 5 has labels alone: the psi that the hub remembers of it is the one that it was sent.
    assert torch.equal(tree.row(state.psis[5]), tree.row(sent.psi))
    assert not torch.equal(tree.row(state.psis[4]), tree.row(sent.psi))
    assert not torch.equal(tree.row(state.sigma), tree.row(sent.sigma))


def test_the_noise_is_a_normal_cut_off_at_the_ends_of_the_scale() -> None:
    model = Architecture("mlp", (3, 64, 64), 10, width=0.001).initial(0)
    pixels = picture_of_noise(model).pixels(torch.arange(1)).double().numpy()
    draws = np.random.default_rng(0).normal(125, 125, 200_000)
    inside = draws[(draws > 0) & (draws < 255)]
    assert abs(pixels.mean() - inside.mean()) < 2 and abs(pixels.std() - inside.std()) < 2
    assert np.array_equal(pixels, picture_of_noise(model).pixels(torch.arange(1)).numpy())


def test_the_majority_decides_and_the_first_class_of_a_tie() -> None:
    outputs = [torch.eye(4)[labels] for labels in ([0, 1, 3, 2], [0, 2, 2, 1], [1, 2, 1, 3])]
    assert vote(outputs).tolist() == [0, 2, 1, 1]


def vector(*numbers: float) -> Model:
    return Model(ARCHITECTURE, {"weight": torch.tensor(numbers, dtype=torch.float64)})


def test_only_noticeable_changes_travel() -> None:
    old, new = vector(1.0, 2.0, 3.0, 0.5), vector(1.5, 2.01, 2.0, 0.45)
    received = merge({"sigma": new, "psi": old}, {"sigma": old, "psi": old}, 0.1)
    assert received["sigma"].parameters["weight"].tolist() == [1.5, 2.0, 2.0, 0.5]
    assert (
        models_sent(received, {"sigma": old, "psi": old}) == 0.5
    )  # two of four elements of one model, none of the other
    assert models_sent(received["sigma"], old) == 0.5
    assert models_sent({"sigma": old, "psi": old}, None) == 2.0
    assert merge(new, None, 0.1) is new
    assert sparse(vector(0.2, -0.05, -0.3, 0.1), 0.1).parameters["weight"].tolist() == [
        0.2,
        0.0,
        -0.3,
        0.0,
    ]


def test_a_round_reports_how_much_a_sparse_exchange_would_send() -> None:
    """At first all of sigma and psi comes down; later, of changes that are not worth sending,
    nothing at all.
    """
    quiet = replace(METHOD, smallest_change=1e3, helper_interval=1)
    first, second = (line["report"] for line in play(small_experiment(quiet, rounds=2)).history[:2])
    assert (first["models_down"], first["models_up"]) == (2.0, 0.0)
    assert (second["models_down"], second["models_up"]) == (0.0, 0.0)
    loud = replace(METHOD, smallest_change=0.0, smallest=0.0, helper_interval=1)
    first, second = (line["report"] for line in play(small_experiment(loud, rounds=2)).history[:2])
    assert 0.5 < first["models_up"] < 2.0  # some clients train one part alone
    assert 2.0 < second["models_down"] <= 4.0  # both parts and two helpers


def test_fedmatch_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ConfigError, match="FedMatch needs labels"):
        FedMatch().check([Declared(0, 5)], hub_labels=0)
    FedMatch().check([Declared(0, 5)], hub_labels=20)
    FedMatch().check([Declared(1, 5)], hub_labels=0)
    running = Architecture("cnn", (1, 8, 8), 10, norm="running").initial(0)
    for method in (FedMatch(), FedMatchSemiFL()):
        with pytest.raises(ConfigError, match="cannot share running averages"):
            method.start(lambda name: running)
    with pytest.raises(ConfigError, match="labelled images at the hub"):
        FedMatchSemiFL().check([Declared(1, 5)], hub_labels=0)
    with pytest.raises(ConfigError, match="trains convolutions only"):
        FedMatchSemiFL().start(lambda name: ARCHITECTURE.initial(0))


def test_who_is_sure_of_nothing_stays_away_from_semifls_form() -> None:
    """Confidences by hand, of the model that was sent with its test statistics: the threshold lies
    between clients.
    """
    experiment = small_experiment(AS_IN_SEMIFL, rounds=2)
    progress = Progress(0, experiment.start(), ClientStates(), [])
    play_round(experiment, progress, 1)
    state, setting = progress.state, experiment.executor.setting
    surest = {}
    for client in range(len(CLIENTS)):
        me = experiment.federation.me(client, None, 0)
        if len(me.unlabelled):
            seen = logits(
                state.tested, me.unlabelled.pixels(torch.arange(len(me.unlabelled))), setting
            )
            surest[client] = float(seen.softmax(-1).max())
    threshold = float(np.median(list(surest.values())))
    method = replace(AS_IN_SEMIFL, threshold=threshold)
    ask = first_request(method.round(experiment.hub(2), state))
    for client, sureness in surest.items():
        talk = method.client(experiment.federation.me(client, None, 0), Record(ask.message))
        guess = Loop(setting).serve(replace(talk.send(None), view="plain"), 0)
        try:
            assert isinstance(talk.send(guess), Train) and sureness >= threshold
        except StopIteration as stop:
            assert stop.value is None and sureness < threshold  # noqa: PT017


def test_the_hub_of_semifls_form_clips_its_gradient_before_half_of_it_is_dropped() -> None:
    """A step with torch's own optimiser and clipping; only kernels move."""
    method = replace(AS_IN_SEMIFL, clip=0.1, decay=0.01)
    architecture = Architecture("cnn", (1, 8, 8), 10, width=0.25)
    sigma, psi = (architecture.initial(number, torch.float64) for number in (0, 1))
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 1, 8, 8)))
    zero = torch.zeros((), dtype=torch.float64)
    labelled = Batch(
        {"labelled": Sample((images,), zero, torch.arange(10))},
        zero,
        zero,
        zero + 0.03,
        torch.tensor(0),
    )
    found, _, _ = method.hub_step(sigma, method.sgd.init(sigma), labelled, {"psi": psi})
    live = {name: weight.clone().requires_grad_() for name, weight in sigma.parameters.items()}
    output = Model(
        architecture, {name: weight + psi.parameters[name] for name, weight in live.items()}
    )(images)
    torch.nn.functional.cross_entropy(output, torch.arange(10)).backward()  # type: ignore[no-untyped-call]
    assert torch.nn.utils.clip_grad_norm_(live.values(), 0.1) > 0.1
    for weight in live.values():
        assert weight.grad is not None
        weight.grad[len(weight) // 2 :] = 0
    torch.optim.SGD(live.values(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.01).step()
    for name, weight in live.items():
        expected = (
            weight.detach()
            if name.startswith("conv") and weight.dim() == 4
            else sigma.parameters[name]
        )
        torch.testing.assert_close(found.parameters[name], expected, rtol=1e-10, atol=1e-12)


def test_semifls_form_trains_kernels_alone_and_at_the_hub_half_of_them() -> None:
    experiment = small_experiment(replace(AS_IN_SEMIFL, decay=0.0), rounds=2)
    start, end = experiment.start(), play(experiment).state
    for part in ("sigma", "psi"):
        for name, old in getattr(start, part).parameters.items():
            new, kernel = getattr(end, part).parameters[name], name.startswith("conv")
            assert torch.equal(new, old) is not kernel, (part, name)
            if kernel and part == "sigma":
                half = len(old) // 2
                assert torch.equal(new[half:], old[half:]) and not torch.equal(
                    new[:half], old[:half]
                )
            if not kernel and part == "psi":
                assert not new.any()

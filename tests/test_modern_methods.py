"""SAGE, (FL)^2, CBAFed and ProxyFL: what makes each of them, against hand computations; and the
contract.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from fedglean import run
from fedglean.errors import ConfigError
from fedglean.inputs.images import Images, Predictions
from fedglean.method import (
    Ask,
    Batch,
    Declared,
    Hub,
    Me,
    Method,
    Predict,
    Sample,
    Together,
    Train,
    Trained,
    Upload,
)
from fedglean.methods import METHODS
from fedglean.methods.cbafed import CBAFed, choose, class_shares, thresholds
from fedglean.methods.fl2 import FL2, adaptive_ascent, adaptive_threshold
from fedglean.methods.proxies import classify, contrast, feature_extractor, proxy_loss, widest_gap
from fedglean.methods.proxyfl import ProxyFL
from fedglean.methods.sage import Sage, correct_softly
from fedglean.models import Architecture, Model
from fedglean.randomness import normal
from fedglean.testing import check_method
from fedglean.tree import Record
from fedglean.uploads import Reply
from uploads import reply_of

CASES: dict[str, tuple[Method, str]] = {
    "sage": (
        Sage(active=1.0, epochs=1, labelled_batch=8, unlabelled_batch=12, threshold=0.3),
        "static",
    ),
    "fl2": (FL2(active=1.0, epochs=1, pretraining=2, client_batch=8, confident=0.3), "static"),
    "fl2 with running averages, annealed": (
        FL2(active=1.0, epochs=1, pretraining=1, client_batch=8, confident=0.3, annealed=True),
        "running",
    ),
    "cbafed": (
        CBAFed(warmup_epochs=4, epochs=3, connect_every=2, batch=8, base=0.2, rare=0.06),
        "static",
    ),
    "proxyfl": (
        ProxyFL(
            active=1.0,
            epochs=2,
            labelled_batch=8,
            unlabelled_batch=12,
            threshold=0.3,
            tuning_epochs=2,
        ),
        "static",
    ),
    "proxyfl with running averages": (
        ProxyFL(
            active=1.0,
            epochs=1,
            labelled_batch=16,
            unlabelled_batch=12,
            threshold=0.3,
            tuning_epochs=1,
        ),
        "running",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_keeps_the_contract(name: str) -> None:
    method, norm = CASES[name]
    check_method(method, norm=norm, rounds=3 if name == "cbafed" else 2)


@pytest.mark.parametrize("name", ["sage", "fl2", "cbafed", "proxyfl"])
def test_a_federation_without_the_labels_a_method_needs_is_refused(name: str) -> None:
    at_clients, at_hub = [Declared(3, 5)], [Declared(0, 5)]
    wrong, right = (
        ((at_clients, 0), (at_hub, 20)) if name == "fl2" else ((at_hub, 20), (at_clients, 0))
    )
    method = METHODS[name].method()
    method.check(*right)
    with pytest.raises(
        ConfigError, match=r"needs (clients with labels|labelled images at the hub)"
    ):
        method.check(*wrong)


CNN = Architecture("cnn", (1, 4, 4), 3, width=0.25)


def model(seed: int = 0, norm: str = "static") -> Model:
    return replace(CNN, norm=norm).initial(seed, torch.float64)


def pixels(seed: int, count: int = 6) -> Tensor:
    return normal(seed, (count, 1, 4, 4))


def batch(**streams: Sample) -> Batch:
    return Batch(
        streams,
        torch.tensor(0),
        torch.tensor(0),
        torch.tensor(0.1, dtype=torch.float64),
        torch.tensor(0),
    )


def sample(*views: Tensor, label: Tensor | None = None) -> Sample:
    index = torch.arange(len(views[0]))
    return Sample(views, index) if label is None else Sample(views, index, label)


def images(count: int, label: list[int] | None = None) -> Images:
    store = torch.zeros(20, 1, 4, 4, dtype=torch.uint8)
    return Images(store, torch.arange(count), None if label is None else torch.tensor(label))


def party(labelled: list[int], unlabelled: int, state: Any = None) -> Me:
    unknown = images(unlabelled)
    known = Images(
        unknown.store, 10 + torch.arange(len(labelled)), torch.tensor(labelled, dtype=torch.long)
    )
    return Me(0, known, unknown, state, key=1)


def driven(talk: Any, answer: Callable[[Any], Any]) -> Any:
    """What a party returns whose requests are answered by hand."""
    reply = None
    while True:
        try:
            request = talk.send(reply)
        except StopIteration as stop:
            return stop.value
        parts = request.requests if isinstance(request, Together) else None
        reply = answer(request) if parts is None else [answer(part) for part in parts]


def test_sage_leans_to_the_global_guess_as_the_confidences_part() -> None:
    def row(confidence: float, guess: int) -> list[float]:
        rest = [(1 - confidence) / 2] * 3
        rest[guess] = confidence
        return rest

    def table(*rows: tuple[float, int]) -> Tensor:
        return torch.tensor([row(*each) for each in rows], dtype=torch.float64)

    local = table((0.97, 0), (0.96, 1), (0.60, 0), (0.99, 2), (0.70, 0), (0.95, 1))
    common = table((0.92, 1), (0.96, 2), (0.97, 2), (0.49, 0), (0.94, 1), (0.85, 1))
    target, mask = correct_softly(local, common, threshold=0.95, half_gap=0.05)
    tenth = 2.0**-10  # a gap of ten times 0.05
    expected = [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1], [1 - tenth, 0, tenth], [0, 1, 0], [0, 1, 0]]
    torch.testing.assert_close(
        target, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert mask.tolist() == [1, 1, 1, 1, 0, 1]


def test_sage_descends_the_divergence_from_its_targets_and_the_labels_loss() -> None:
    local, common, method = model(2), model(7), Sage(threshold=0.55, unlabelled_weight=0.7)
    weak, strong, known, label = pixels(1), pixels(2), pixels(3, 4), torch.tensor([0, 2, 1, 0])
    streams = {"unlabelled": sample(weak, strong), "labelled": sample(known, label=label)}
    everything = torch.cat([known, strong, weak])  # normalised as one batch
    target, mask = correct_softly(
        local(everything)[-6:].softmax(-1), common.evaluate(weak).softmax(-1), 0.55, 0.05
    )
    assert 0 < mask.sum() < len(mask) and (target.amax(-1) < 1).any()

    def by_hand(weights: dict[str, Tensor]) -> Tensor:
        logits = local.with_parameters(weights)(everything)
        divergence = F.kl_div(logits[4:10].log_softmax(-1), target, reduction="none").sum(-1)
        return F.cross_entropy(logits[:4], label) + 0.7 * (divergence * mask).sum() / 6

    def ours(weights: dict[str, Tensor]) -> Tensor:
        return method.loss(local.with_parameters(weights), batch(**streams), {"global": common})[0]

    torch.testing.assert_close(grad(ours)(local.parameters), grad(by_hand)(local.parameters))


def test_sage_counts_epochs_by_labelled_batches_over_all_images() -> None:
    method = Sage(epochs=3, labelled_batch=2, unlabelled_batch=5)
    requests: list[Train] = []

    def answer(request: Train) -> Trained:
        requests.append(request)
        return Trained(request.models, {}, request.length, {})

    upload = driven(method.client(party([1, 2], 7), Record(model=model())), answer)
    assert requests[0].length == 3 * (9 // 2)
    assert len(requests[0].streams["unlabelled"].images) == 9
    assert requests[0].streams["unlabelled"].images.label is None
    assert upload.weight("model") == 9


TABLE = torch.tensor(
    [[0.9, 0.1, 0.0], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64
)
# Mean confidence 0.65; mean predictions 0.5, 0.35, 0.15, so thresholds 0.65, 0.455, 0.195 by class.


def test_fl2_thresholds_follow_a_clients_confidence_and_its_classes() -> None:
    threshold, status = adaptive_threshold(TABLE)
    assert status == pytest.approx(0.65)
    assert threshold.tolist() == pytest.approx([0.65, 0.65, 0.455, 0.195])


def test_fl2_trains_on_what_passes_and_weighs_one_minus_the_mean_confidence() -> None:
    requests: list[Any] = []

    def answer(request: Any) -> Any:
        requests.append(request)
        if isinstance(request, Predict):
            return Predictions(request.images, TABLE, request.threshold)
        return Trained(request.models, {"momentum": 1}, request.length, {})

    message = Record(model=model(), rate=0.03)
    upload = driven(FL2(confident=0.8).client(party([], 4), message), answer)
    chosen = requests[1].streams["fix"].images
    assert chosen.index.tolist() == [0, 2, 3]  # the second image misses 0.65
    assert chosen.label.tolist() == [
        [0, 1],
        [1, 0],
        [2, 0],
    ]  # class, and whether it is held to flatness
    assert upload.weight("model") == pytest.approx(0.35)
    equal = driven(FL2(weigh_by_status=False).client(party([], 4), message), answer)
    assert equal.weight("model") == 1.0


def perturbed_by_hand(leaves: dict[str, Tensor], radius: float) -> dict[str, Tensor]:
    """ASAM's step: T = |w| + 0.01 for weights, 1 for biases; rho T^2 g / |T g|."""
    scales = {
        n: (w.detach().abs() + 0.01) if "weight" in n else torch.ones_like(w)
        for n, w in leaves.items()
    }
    length = math.sqrt(sum(float(((scales[n] * w.grad) ** 2).sum()) for n, w in leaves.items()))
    return {n: radius * scales[n] ** 2 * w.grad / length for n, w in leaves.items()}


@pytest.mark.parametrize("norm", ["static", "group"])
def test_fl2s_gradient_is_that_of_the_labels_plus_the_divergences_at_the_perturbed_weights(
    norm: str,
) -> None:
    it, strong = model(5, norm), pixels(4)
    label, confident = torch.tensor([0, 1, 2, 0, 1, 1]), torch.tensor([1, 0, 1, 1, 0, 0])
    leaves = {name: value.clone().requires_grad_() for name, value in it.parameters.items()}
    sure = confident.bool()
    F.cross_entropy(Model(it.architecture, leaves)(strong)[sure], label[sure]).backward()  # type: ignore[no-untyped-call]
    step = perturbed_by_hand(leaves, radius=0.5)

    target = it(strong).softmax(-1)
    there = {name: (it.parameters[name] + step[name]).requires_grad_() for name in leaves}
    log_there = Model(it.architecture, there)(strong)[sure].log_softmax(-1)
    divergence = (target[sure] * (target[sure].log() - log_there)).sum() / len(strong)
    at_there = torch.autograd.grad(divergence, list(there.values()))
    plain = torch.autograd.grad(
        F.cross_entropy(Model(it.architecture, leaves)(strong), label), list(leaves.values())
    )

    method, fix = FL2(radius=0.5), sample(strong, label=torch.stack([label, confident], -1))
    ours = grad(lambda weights: method.loss(it.with_parameters(weights), batch(fix=fix), {}))(
        it.parameters
    )
    assert max(float(g.abs().max()) for g in at_there) > 1e-3
    for name, a, b in zip(leaves, plain, at_there, strict=True):
        torch.testing.assert_close(ours[name], a + b, rtol=1e-9, atol=1e-12)


def test_fl2_without_a_confident_image_learns_from_the_labels_alone() -> None:
    it, strong, label = model(5), pixels(4), torch.tensor([0, 1, 2, 0, 1, 1])
    fix = sample(strong, label=torch.stack([label, torch.zeros_like(label)], -1))
    ours = grad(lambda weights: FL2().loss(it.with_parameters(weights), batch(fix=fix), {}))(
        it.parameters
    )
    plain = grad(lambda weights: F.cross_entropy(it.with_parameters(weights)(strong), label))(
        it.parameters
    )
    torch.testing.assert_close(ours, plain)


def test_fl2s_perturbation_has_the_radius_where_weights_are_measured_by_their_size() -> None:
    weights = {"a.weight": normal(1, (3, 2)), "a.bias": normal(2, (3,))}
    step = adaptive_ascent(
        weights, {"a.weight": normal(3, (3, 2)), "a.bias": normal(4, (3,))}, radius=0.3
    )
    measured = torch.cat(
        [(step["a.weight"] / (weights["a.weight"].abs() + 0.01)).flatten(), step["a.bias"]]
    )
    assert float(measured.norm()) == pytest.approx(0.3)


def test_cbafeds_thresholds_by_hand_on_a_table_of_counts() -> None:
    shares = class_shares(torch.tensor([10.0, 20.0, 30.0, 140.0], dtype=torch.float64))
    assert shares.tolist() == pytest.approx(
        [0.02, 0.04, 0.06, 0.28]
    )  # 0.05, 0.1, 0.15, 0.7 of 4 classes
    deviation = np.std([0.02, 0.04, 0.06, 0.28], ddof=1)
    expected = [0.86 - deviation, 0.88 - deviation, 0.90 - deviation, 0.95]
    assert thresholds(shares, 0.84, 0.95).tolist() == pytest.approx(expected)
    balanced = class_shares(torch.full((10,), 7.0))
    assert thresholds(balanced, 0.84, 0.95).tolist() == pytest.approx([0.94] * 10)


def test_cbafed_keeps_sure_first_guesses_and_rare_second_ones() -> None:
    rows = [[0.8, 0.15, 0.05], [0.6, 0.3, 0.1], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7], [0.05, 0.9, 0.05]]
    threshold, rare = torch.tensor([0.7, 0.9, 0.5]), torch.tensor([False, True, False])
    label, kept = choose(torch.tensor(rows), threshold, rare)
    # Above; second guess is rare; second guess is not; above; exactly at the threshold is not above
    # it.
    assert kept.tolist() == [True, True, False, True, False]
    assert label[kept].tolist() == [0, 1, 2]


def shifted(it: Model, by: float) -> Model:
    return it.with_parameters({name: value + by for name, value in it.parameters.items()})


def offset(it: Model, origin: Model) -> float:
    differences = torch.cat(
        [(it.parameters[n] - origin.parameters[n]).flatten() for n in it.parameters]
    )
    assert float(differences.max() - differences.min()) < 1e-12
    return float(differences.mean())


@pytest.mark.parametrize(("epochs", "lengths"), [(11, [1, 5, 5]), (14, [1, 5, 5, 3]), (1, [1])])
def test_cbafed_goes_back_towards_older_weights_every_five_epochs(
    epochs: int, lengths: list[int]
) -> None:
    """Training moves all weights by one an epoch; the release's rule, epoch by epoch, says where
    they end.
    """
    origin, seen = model(), []

    def answer(request: Train) -> Trained:
        seen.append(request.epochs)
        assert request.rate == 0.03
        return Trained(shifted(request.models, float(request.epochs or 0)), {}, request.length, {})

    trained, _ = driven(CBAFed().learn_labels(party([0, 1], 0), origin, epochs), answer)
    weight = older = 0.0
    for epoch in range(epochs):
        weight += 1
        if epoch == 0:
            older = weight
        elif epoch % 5 == 0:
            weight = older = 0.8 * older + 0.2 * weight
    assert seen == lengths
    assert offset(trained, origin) == pytest.approx(weight)


def test_cbafed_averages_with_older_weights_every_fifth_round_after_the_warm_up() -> None:
    """Each exchange moves the model by one; at rounds 7 and 12, the warm-up being round 1, half of
    it is taken back.
    """
    origin, method = model(norm="group"), CBAFed()
    state = Record(model=origin, older=origin, counts=torch.zeros(3, dtype=torch.float64))
    weight, older, asked = 0.0, 0.0, []

    def answer(request: Ask) -> Reply:
        asked.append((request.client.__name__, list(request.to)))
        sent = Upload(model=shifted(request.message["model"], 1.0), counts=state.counts + 2)
        return reply_of({0: sent}, {"model": origin, "counts": state.counts})

    for number in range(1, 14):
        hub = Hub(number, 20, images(0), (Declared(2, 0), Declared(0, 9)), key=number)
        state = driven(method.round(hub, state), answer)
        weight += 1
        if number == 1:
            older = weight
        if number in (7, 12):
            weight = older = (older + weight) / 2
        assert offset(state.model, origin) == pytest.approx(weight)
    assert asked[0] == ("warm_up", [0]) and asked[1] == ("client", [0, 1])


def test_cbafed_reports_the_classes_it_trained_on_and_weighs_their_number() -> None:
    rows = [[0.9, 0.05, 0.05], [0.4, 0.35, 0.25], [0.1, 0.8, 0.1], [0.45, 0.15, 0.4]]
    counts = torch.tensor([8.0, 8.0, 0.0])  # shares 0.15, 0.15, 0; thresholds 0.66, 0.66, 0.51
    rates: list[float] = []

    def answer(request: Any) -> Any:
        if isinstance(request, Predict):
            return Predictions(request.images, torch.tensor(rows), request.threshold)
        rates.append(request.rate)
        return Trained(
            request.models, {"of": len(request.streams["labelled"].images)}, request.length, {}
        )

    message = Record(model=model(), class_counts=counts)
    upload = driven(CBAFed(base=0.6, epochs=1).client(party([1, 1], 4), message), answer)
    # Two labels of class 1; images 0 and 2 are sure of 0 and 1; image 3 is taken for its second
    # guess, a rare class.
    assert upload.trees["counts"].tolist() == [1, 3, 1]
    assert upload.weight("model") == 5 and upload.weight("counts") == 1.0
    assert rates == [0.03, 0.02] and upload.keep.keys() == {"labelled", "unlabelled"}


@pytest.mark.parametrize("norm", ["static", "running"])
def test_features_followed_by_the_last_layer_are_the_model(norm: str) -> None:
    whole, apart, x = model(3, norm), model(3, norm), pixels(8)
    torch.testing.assert_close(classify(apart, feature_extractor(apart)(x)), whole(x))
    for name in whole.statistics:  # running averages move on all the same
        torch.testing.assert_close(apart.statistics[name], whole.statistics[name])


def test_proxyfls_contrast_image_by_image() -> None:
    features, proxies = (
        F.normalize(normal(1, (7, 5)), dim=-1),
        F.normalize(normal(2, (4, 5)), dim=-1),
    )
    probabilities = (1.5 * normal(3, (7, 4))).softmax(-1)
    sure = torch.tensor([True, False, False, True, False, True, False])
    prior = torch.tensor([0.3, 0.2, 0.1, 0.4], dtype=torch.float64)
    ours = contrast(features, proxies, probabilities, sure, prior).numpy()
    f, w, p = features.numpy(), proxies.numpy(), probabilities.numpy()
    sets = [
        {int(p[i].argmax())} if sure[i] else {c for c in range(4) if p[i, c] > prior[c]}
        for i in range(7)
    ]
    for i in range(7):
        pull = f[i] @ w[p[i].argmax()] if sure[i] else sum(p[i, c] * (f[i] @ w[c]) for c in sets[i])
        pushes = [f[i] @ f[j] for j in range(7) if not sets[i] & sets[j] and f[i] @ f[j] >= 1e-6]
        expected = -np.log(np.exp(pull) / (np.exp(pull) + sum(np.exp(push) for push in pushes)))
        assert ours[i] == pytest.approx(expected)
    assert (ours > 0).sum() >= 4


def test_proxyfls_margin_and_loss_by_hand() -> None:
    proxies = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    margin = widest_gap(proxies)
    assert float(margin) == pytest.approx(math.sqrt(9 + 4))  # nearest neighbours: 2, sqrt(13), 2
    points, label = (
        torch.tensor([[0.0, 1.0], [3.0, 3.0]], dtype=torch.float64),
        torch.tensor([2, 1]),
    )
    distances = np.array([[1, math.sqrt(18), 1], [math.sqrt(18), 1, math.sqrt(10)]])
    distances[[0, 1], [2, 1]] += math.sqrt(13)
    expected = np.mean(
        [d[y] + np.log(np.exp(-d).sum()) for d, y in zip(distances, [2, 1], strict=True)]
    )
    assert float(proxy_loss(proxies, points, label, margin)) == pytest.approx(expected)


def test_tuning_descends_the_proxy_loss_over_all_clients_rows() -> None:
    rows = 2 * normal(1, (1, 3, 4)) + normal(2, (5, 3, 4))
    mean, points, label = rows.mean(0), rows.flatten(0, 1), torch.arange(3).repeat(5)
    margin = widest_gap(mean)
    slope = torch.zeros_like(mean)
    for place in range(mean.numel()):  # central differences
        nudge = (
            torch.zeros(mean.numel(), dtype=mean.dtype)
            .index_fill(0, torch.tensor(place), 1e-6)
            .reshape(mean.shape)
        )
        up, down = (proxy_loss(mean + sign * nudge, points, label, margin) for sign in (1, -1))
        slope.view(-1)[place] = (up - down) / 2e-6
    one_step = ProxyFL(tuning_epochs=1, tuning_batch=15, tuning_rate=0.05).tune(mean, rows, key=1)
    torch.testing.assert_close(one_step, mean - 0.05 * slope, atol=1e-9, rtol=0)
    tuned = ProxyFL(tuning_epochs=20, tuning_rate=0.05).tune(mean, rows, key=1)
    assert proxy_loss(tuned, points, label, margin) < 0.9 * proxy_loss(mean, points, label, margin)


def test_a_row_that_lies_far_off_pulls_no_harder_than_one_nearby() -> None:
    proxies, label = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0])
    direction = F.normalize(normal(1, (1, 3)), dim=-1)
    slopes = [
        grad(proxy_loss)(proxies, far * direction, label, torch.tensor(1.0))[0]
        for far in (1.0, 1000.0)
    ]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_proxyfl_averages_class_shares_slowly_and_tests_the_model_without_its_projections() -> None:
    origin, method = model(norm="group"), ProxyFL(prior_decay=0.9, tuning_epochs=0)
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    counts = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)

    def answer(request: Ask) -> Reply:
        assert request.message["model"].parameters.keys() - origin.parameters.keys() == {
            "projection.features.weight",
            "projection.features.bias",
            "projection.proxies.weight",
        }
        weight = {"model": 5, "counts": 1.0}
        sent = Upload(model=request.message["model"], counts=counts, weight=weight)
        return reply_of({0: sent}, {"model": request.message["model"], "counts": counts})

    hub = Hub(1, 20, images(0), (Declared(2, 3),), key=1)
    state = driven(method.round(hub, Record(model=origin, prior=uniform)), answer)
    assert state.prior.tolist() == pytest.approx([0.36, 0.33, 0.31])
    tested = method.predictors(state)["model"]
    assert tested.parameters.keys() == origin.parameters.keys()
    torch.testing.assert_close(tested.evaluate(pixels(1)), state.model.evaluate(pixels(1)))


def test_proxyfl_refuses_a_model_with_too_many_features() -> None:
    with pytest.raises(ConfigError, match="mlp has 5000"):
        ProxyFL().start(lambda name: Architecture("mlp", (1, 4, 4), 3).initial(0))


def test_fl2_beats_as_many_epochs_on_the_hubs_labels_alone_after_four_rounds() -> None:
    """Fifty epochs before and five in each of four rounds; `hub-only` takes its seventy in fourteen
    rounds.
    """
    alone = run("hub-only", data="digits", seed=1, executor="loop", rounds=14)
    together = run("fl2", data="digits", seed=1, executor="loop", rounds=4)
    assert together.last.accuracy >= alone.last.accuracy + 0.03

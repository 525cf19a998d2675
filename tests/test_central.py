"""The centralised references: their losses by hand, what goes on from round to round, and the
contract.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from coroutines import first_request
from fedglean import run
from fedglean.errors import ConfigError
from fedglean.inputs.images import Images
from fedglean.method import Batch, Declared, Me, Sample
from fedglean.methods.central import Central
from fedglean.methods.fixmatch import FixMatch
from fedglean.methods.mean_teacher import MeanTeacher
from fedglean.methods.mixmatch import MixMatch
from fedglean.methods.pi_model import PiModel
from fedglean.methods.pseudo_labeling import PseudoLabeling
from fedglean.methods.remixmatch import ReMixMatch, align, average_guess, turn_at_random
from fedglean.methods.uda import UDA
from fedglean.models import Architecture, Model
from fedglean.randomness import beta, fold, normal, order
from fedglean.testing import check_method
from fedglean.tree import Record, Tree

Array = NDArray[np.float64]
CLASSES, KEY = 3, 17
LABEL = torch.tensor([2, 0, 1, 0])
FAMILY: tuple[type[Central], ...] = (
    PiModel,
    PseudoLabeling,
    MeanTeacher,
    MixMatch,
    UDA,
    ReMixMatch,
    FixMatch,
)


def model(seed: int = 1) -> Model:
    return Architecture("cnn", (1, 4, 4), CLASSES, width=0.25).initial(seed, torch.float64)


def images(seed: int, count: int = 4) -> Tensor:
    return normal(seed, (count, 1, 4, 4))


def batch(views: int, count: int = 4, step: int = 0) -> Batch:
    index = torch.arange(count)
    streams = {
        "labelled": Sample((images(1),), torch.arange(4), LABEL),
        "unlabelled": Sample(tuple(images(2 + view, count) for view in range(views)), index),
    }
    scalars = (
        torch.tensor(step),
        torch.tensor(0),
        torch.tensor(0.1, dtype=torch.float64),
        torch.tensor(KEY),
    )
    return Batch(streams, *scalars)


def known(progress: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"progress": torch.tensor(progress, dtype=torch.float64), "average": model(2), **more}


def value(method: Central, it: Batch, frozen: Tree, learner: Model | None = None) -> float:
    result = method.loss(learner or model(), it, frozen)
    return float(result if isinstance(result, Tensor) else result[0])


def softmax(logits: Tensor) -> Array:
    raised = np.exp(logits.detach().numpy())
    return np.asarray(raised / raised.sum(1, keepdims=True))


def entropy(logits: Tensor, target: Array) -> Array:
    """Cross-entropy an image."""
    return np.asarray(-(target * np.log(softmax(logits))).sum(1))


def labels_alone(it: Batch) -> float:
    return float(entropy(model()(it.labelled.images), np.eye(CLASSES)[LABEL]).mean())


def sharpened(probability: Array, temperature: float) -> Array:
    power = probability ** (1 / temperature)
    return np.asarray(power / power.sum(1, keepdims=True))


@pytest.mark.parametrize("kind", FAMILY)
def test_a_centralised_method_keeps_the_contract(
    kind: type[Central], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacked among clients as awkward as any: the exchange itself does not care how many there
    are.
    """
    monkeypatch.setattr(Central, "check", lambda self, clients, hub_labels: None)
    small: dict[str, Any] = {"steps": 2, "batch": 4, "ratio": 2, "average": 0.8}
    if hasattr(kind, "threshold"):
        small["threshold"] = 0.2
    check_method(
        kind(**small), norm="running" if kind in (MixMatch, MeanTeacher) else "static", rounds=2
    )


@pytest.mark.parametrize("clients", [[], [(5, 5), (5, 5)], [(0, 9)], [(9, 0)]])
def test_another_federation_than_one_site_is_refused(clients: list[tuple[int, int]]) -> None:
    with pytest.raises(ConfigError, match="a single client, with labelled and unlabelled images"):
        FixMatch().check([Declared(*pair) for pair in clients], 20)
    FixMatch().check([Declared(1, 1)], 0)


def test_the_average_follows_the_weights_and_is_the_first_predictor() -> None:
    method, state = PiModel(average=0.75), Record(tested={"model": model(1), "average": model(2)})
    assert list(method.predictors(state).values()) == [
        state.tested["average"],
        state.tested["model"],
    ]
    frozen = {"steps_done": torch.tensor(0.0), "all_steps": torch.tensor(10.0)}
    memory = {**method.fresh_memory(model()), "average": model(2)}
    moved, memory, _ = method.step(model(), memory, batch(2), frozen)
    for name, old in model(2).parameters.items():
        expected = 0.75 * old.numpy() + 0.25 * moved.parameters[name].detach().numpy()
        np.testing.assert_allclose(
            memory["average"].parameters[name].detach().numpy(), expected, rtol=1e-12
        )


def client(method: Central, state: Tree, **message: Any) -> Any:
    """What a site with 4 labelled and 6 other images asks for first."""
    store = torch.zeros(10, 1, 4, 4, dtype=torch.uint8)
    own = Images(store, torch.arange(4), LABEL), Images(store, torch.arange(4, 10))
    start = method.extend(model())
    sent = Record(
        {"model": start, "average": start, "rate": 0.01, "round": 3, "rounds": 4, **message}
    )
    return first_request(method.client(Me(0, *own, state, 1), sent))


@pytest.mark.parametrize("kind", FAMILY)
def test_a_site_goes_on_with_what_it_kept_and_the_average_that_the_hub_sent(
    kind: type[Central],
) -> None:
    method = kind()
    first = client(method, None)
    assert all(float(leaf.abs().max()) == 0 for leaf in first.memory["momentum"].values())
    kept = {name: part for name, part in first.memory.items() if name != "average"}
    again = client(method, kept, average=method.extend(model(5)))
    assert all(again.memory[name] is kept[name] for name in kept)
    torch.testing.assert_close(
        again.memory["average"].parameters, method.extend(model(5)).parameters
    )
    assert (
        len(again.streams["unlabelled"].images) == 10
        and again.streams["unlabelled"].images.label is None
    )


@dataclass(frozen=True)
class Clock(PiModel):
    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Any:
        return super().loss(model, batch, frozen), {"progress": frozen["progress"]}


def test_progress_counts_the_steps_of_all_rounds() -> None:
    request = client(Clock(steps=5), None)
    _, _, metrics = request.step(request.models, request.memory, batch(2, step=2), request.frozen)
    assert float(metrics["progress"]) == pytest.approx((2 * 5 + 2) / (4 * 5))


@pytest.mark.parametrize(
    ("progress", "share"), [(0.0, math.exp(-5)), (0.1, math.exp(-5 * 0.75**2)), (0.4, 1), (0.9, 1)]
)
def test_the_pi_model_ramps_the_squared_difference_of_two_views(
    progress: float, share: float
) -> None:
    it = batch(2)
    first, second = (softmax(model()(view)) for view in it.unlabelled.views)
    expected = labels_alone(it) + 10 * share * np.mean((first - second) ** 2)
    assert value(PiModel(), it, known(progress)) == pytest.approx(expected, rel=1e-10)


def test_mean_teachers_term_moves_the_student_and_never_the_teacher() -> None:
    it = batch(2)
    student, teacher = (
        softmax(model()(it.unlabelled.views[0])),
        softmax(model(2)(it.unlabelled.views[1])),
    )
    expected = labels_alone(it) + 50 * np.mean((student - teacher) ** 2)
    assert value(MeanTeacher(), it, known()) == pytest.approx(expected, rel=1e-10)

    def term(weights: Tree, teachers: Tree) -> Tensor:
        frozen = known() | {"average": model(2).with_parameters(teachers)}
        learner = model().with_parameters(weights)
        return MeanTeacher().loss(learner, it, frozen) - MeanTeacher(weight=0).loss(
            learner, it, frozen
        )

    own, others = dict(model().parameters), dict(model(2).parameters)
    assert all(float(slope.abs().max()) > 1e-3 for slope in grad(term)(own, others).values())
    assert all(
        float(slope.abs().max()) == 0 for slope in grad(term, argnums=1)(own, others).values()
    )


def test_pseudo_labels_are_the_models_own_confident_answers() -> None:
    it = batch(1, count=8)
    logits = model()(it.unlabelled.images)
    probability = softmax(logits)
    threshold = float(np.median(probability.max(1)))
    losses = entropy(logits, np.eye(CLASSES)[probability.argmax(1)]) * (
        probability.max(1) >= threshold
    )
    method = PseudoLabeling(threshold=threshold, weight=2.0)
    for progress, share in ((0.0, 0), (0.1, 0.25), (0.4, 1)):
        expected = labels_alone(it) + 2 * share * losses.mean()
        assert value(method, it, known(progress)) == pytest.approx(expected, rel=1e-10)


def test_mixmatchs_targets_and_loss_by_hand() -> None:
    it = batch(2, count=8)
    views = it.unlabelled.views
    guess = sharpened((softmax(model()(views[0])) + softmax(model()(views[1]))) / 2, 0.5)
    target = np.concatenate([np.eye(CLASSES)[LABEL], guess, guess])
    pixels = np.concatenate([it.labelled.images, *views])
    ratio = float(beta(fold(KEY, "ratio"), 0.5, 0.5))
    ratio, partner = max(ratio, 1 - ratio), order(fold(KEY, "partners"), 20).numpy()
    logits = model()(torch.from_numpy(ratio * pixels + (1 - ratio) * pixels[partner]))
    target = ratio * target + (1 - ratio) * target[partner]
    fit, guessed = entropy(logits, target)[:4].mean(), np.mean((softmax(logits) - target)[4:] ** 2)
    method = MixMatch(batch=4, ratio=2)
    assert value(method, it, known(0.1)) == pytest.approx(fit + 100 * 0.25 * guessed, rel=1e-10)
    assert value(method, it, known(0.7)) == pytest.approx(fit + 100 * guessed, rel=1e-10)


def joint(it: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Labelled, weak and strong, normalised together."""
    parts = it.labelled.images, *it.unlabelled.views
    labelled, weak, strong = model()(torch.cat(parts)).split([len(part) for part in parts])  # type: ignore[no-untyped-call]
    return labelled, weak, strong


def test_fixmatch_labels_a_strong_view_where_the_weak_one_is_confident() -> None:
    it = batch(2, count=12)
    labelled, weak, strong = joint(it)
    probability = softmax(weak)
    threshold = float(np.median(probability.max(1)))
    mask = probability.max(1) >= threshold
    assert 0 < mask.sum() < 12
    guessed = entropy(strong, np.eye(CLASSES)[probability.argmax(1)])[mask].sum() / 12
    loss, metrics = FixMatch(threshold=threshold, weight=3.0).loss(model(), it, known())
    assert float(loss) == pytest.approx(
        entropy(labelled, np.eye(CLASSES)[LABEL]).mean() + 3 * guessed, rel=1e-10
    )
    assert float(metrics["confident"]) == pytest.approx(mask.mean())


@pytest.mark.parametrize("signal", ["none", "linear", "exp"])
def test_uda_sharpens_its_targets_and_holds_known_labels_back(signal: str) -> None:
    it = batch(2, count=12)
    labelled, weak, strong = joint(it)
    confidence, right = softmax(weak).max(1), softmax(labelled)[np.arange(4), LABEL]
    threshold, progress = float(np.median(confidence)), 0.2
    ceiling = {"none": 1.0, "linear": 0.2 * 2 / 3 + 1 / 3, "exp": math.exp(-4) * 2 / 3 + 1 / 3}[
        signal
    ]
    useful = right <= ceiling
    assert useful.all() if signal == "none" else 0 < useful.sum() < 4
    fit = entropy(labelled, np.eye(CLASSES)[LABEL])[useful].mean()
    guessed = (entropy(strong, sharpened(softmax(weak), 0.4)) * (confidence >= threshold)).mean()
    found = value(UDA(threshold=threshold, signal=signal), it, known(progress))
    assert found == pytest.approx(fit + guessed, rel=1e-10)


def test_udas_ceilings_start_at_chance_end_at_one_and_differ_in_between() -> None:
    ends, middle = torch.tensor([0.0, 1.0]).double(), torch.tensor(0.5).double()
    log, linear, exp = (UDA(signal=signal) for signal in ("log", "linear", "exp"))
    for method in (log, linear, exp):
        np.testing.assert_allclose(method.ceiling(ends, 10).numpy(), [0.1, 1.0], atol=7e-3)
    halves = [float(method.ceiling(middle, 10)) for method in (log, linear, exp)]
    np.testing.assert_allclose(
        halves, [1 - 0.9 * math.exp(-2.5), 0.55, 0.1 + 0.9 * math.exp(-2.5)], rtol=1e-12
    )


def test_alignment_moves_guesses_from_what_is_said_too_often_to_what_is_wanted() -> None:
    guess = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    found = align(guess, torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]))
    # 0.5 * 0.5 / 0.75 = 1/3 and 0.5 * 0.5 / 0.25 = 1; 0.9 * 0.5 / 0.75 = 0.6 and 0.1 * 0.5 / 0.25 =
    # 0.2.
    np.testing.assert_allclose(found.numpy(), [[0.25, 0.75], [0.75, 0.25]], rtol=1e-12)
    first = average_guess(torch.zeros(2), torch.tensor([0.2, 0.8]), 0.9)
    assert first.tolist() == pytest.approx([0.2, 0.8])
    assert average_guess(first, torch.tensor([1.0, 0.0]), 0.9).tolist() == pytest.approx(
        [0.28, 0.72]
    )


def test_turned_images_are_numpys_rotations() -> None:
    pixels = images(3, 40)
    turned, turn = turn_at_random(torch.tensor(KEY), pixels)
    assert set(turn.tolist()) == {0, 1, 2, 3}
    for image, after, quarters in zip(pixels.numpy(), turned.numpy(), turn.tolist(), strict=True):
        np.testing.assert_array_equal(after, np.rot90(image, quarters, (1, 2)))


def test_the_rotation_head_leaves_the_classes_as_they_were() -> None:
    method, plain, pixels = ReMixMatch(), model(), images(3)
    built = method.extend(plain)
    assert (
        built(pixels).shape == (4, CLASSES + 4)
        and method.classifier(built).architecture == plain.architecture
    )
    torch.testing.assert_close(built(pixels)[:, :CLASSES], plain(pixels))
    torch.testing.assert_close(method.classifier(built).parameters, dict(plain.parameters))
    with pytest.raises(ConfigError, match="square, not 4 x 6"):
        method.extend(Architecture("cnn", (1, 4, 6), CLASSES).initial(1))


def test_remixmatchs_step_remembers_its_guesses_and_descends_the_loss_made_by_hand() -> None:
    method, it = ReMixMatch(batch=4, ratio=2, alignment=0.9), batch(3, count=8)
    learner = method.extend(model())
    weak, strong, other = it.unlabelled.views
    guess = softmax(learner(weak)[:, :CLASSES])
    before, wanted = np.array([0.2, 0.5, 0.3]), np.array([0.5, 0.25, 0.25])
    mean = 0.9 * before + 0.1 * guess.mean(0)
    raw = guess * wanted / mean
    target = sharpened(raw / raw.sum(1, keepdims=True), 0.5)
    frozen = {
        "steps_done": torch.tensor(1.0),
        "all_steps": torch.tensor(128.0),
        "label_share": torch.from_numpy(wanted),
    }
    memory = {
        **method.fresh_memory(learner),
        "average": learner,
        "mean_guess": torch.from_numpy(before),
    }
    _, after, metrics = method.step(learner, memory, it, frozen)
    np.testing.assert_allclose(after["mean_guess"].numpy(), mean, rtol=1e-12)

    pixels = np.concatenate([it.labelled.images, strong, other, weak])
    soft = np.concatenate([np.eye(CLASSES)[LABEL], target, target, target])
    ratio = float(beta(fold(KEY, "ratio"), 0.75, 0.75))
    ratio, partner = max(ratio, 1 - ratio), order(fold(KEY, "partners"), 28).numpy()
    soft = ratio * soft + (1 - ratio) * soft[partner]
    losses = entropy(
        learner(torch.from_numpy(ratio * pixels + (1 - ratio) * pixels[partner]))[:, :CLASSES], soft
    )
    unmixed = entropy(learner(strong)[:, :CLASSES], target).mean()
    # The rotation head starts at zero: all four turns are as likely. Step 1 of 128 is half of the
    # ramp's 1/64.
    expected = (
        losses[:4].mean() + 0.5 * (1.5 * losses[4:].mean() + 0.5 * unmixed) + 0.5 * math.log(4)
    )
    assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-10)


def test_guesses_are_aligned_to_the_sites_own_labels() -> None:
    assert client(ReMixMatch(), None).frozen["label_share"].tolist() == [0.5, 0.25, 0.25]


def test_unlabelled_images_are_worth_five_points_to_fixmatch() -> None:
    """Twenty labels among the digits of one site; the same run without its unlabelled loss is what
    the labels teach.
    """
    short: dict[str, Any] = {
        "data": "digits",
        "seed": 2,
        "executor": "loop",
        "rounds": 12,
        "evaluate_every": 12,
    }
    labels_alone = run("fixmatch", ratio=3, weight=0.0, **short)
    assert run("fixmatch", ratio=3, **short).last.accuracy >= labels_alone.last.accuracy + 0.05


def test_several_sites_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match="use clients = 1"):
        run("fixmatch", data="digits", clients=2, rounds=1)

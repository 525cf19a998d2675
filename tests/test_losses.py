"""The shared pieces of losses against their definitions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.func import vmap

from fedglean.losses import (
    consistency,
    cross_entropy,
    distillation,
    guess_label,
    jointly,
    lanes,
    masked_cross_entropy,
    mix,
    mix_ratio,
    moving_average,
    one_hot,
    pseudo_label_loss,
    ramp,
    sharpen,
    squared_distance,
    uniformity,
)
from fedglean.models import Architecture
from fedglean.randomness import beta, fold, normal, order


def logits(seed: int, rows: int = 6, classes: int = 4) -> Tensor:
    return 2 * normal(seed, (rows, classes))


def simplex_minimum(probability: np.ndarray, attraction: float, softness: float) -> np.ndarray:
    """argmin over distributions v of -attraction * sum v log f + softness * KL(v, uniform), found
    numerically.
    """
    classes = len(probability)

    def objective(v: np.ndarray) -> float:
        v = np.clip(v, 1e-300, None)
        return float(-attraction * v @ np.log(probability) + softness * v @ np.log(v * classes))

    def slope(v: np.ndarray) -> np.ndarray:
        v = np.clip(v, 1e-300, None)
        return np.asarray(-attraction * np.log(probability) + softness * (np.log(v * classes) + 1))

    whole = {"type": "eq", "fun": lambda v: v.sum() - 1, "jac": lambda v: np.ones(classes)}
    found = minimize(
        objective,
        np.full(classes, 1 / classes),
        jac=slope,
        method="SLSQP",
        constraints=[whole],
        bounds=[(1e-12, 1)] * classes,
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return np.asarray(found.x)


@pytest.mark.parametrize("weights", [(1.0, 0.75), (0.5, 1.0), (1.0, 0.3)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sharpening_minimises_the_regularised_objective(
    weights: tuple[float, float], seed: int
) -> None:
    probability = logits(seed, rows=1).softmax(-1)
    attraction, softness = weights
    soft = sharpen(probability, attraction / softness)[0].numpy()
    np.testing.assert_allclose(
        soft, simplex_minimum(probability[0].numpy(), attraction, softness), atol=1e-6
    )


@settings(deadline=None)
@given(exponent=st.floats(0.01, 10), seed=st.integers(0, 50))
def test_sharpening_is_a_normalised_power(exponent: float, seed: int) -> None:
    probability = logits(seed).softmax(-1)
    power = probability**exponent
    torch.testing.assert_close(sharpen(probability, exponent), power / power.sum(-1, keepdim=True))


def test_sharpening_survives_a_class_that_is_ruled_out() -> None:
    soft = sharpen(torch.tensor([[0.0, 1.0, 0.0]]), 1.3)
    assert bool(torch.isfinite(soft).all()) and soft[0, 1] == 1


def test_uniformity_is_the_divergence_from_the_uniform_distribution() -> None:
    given_logits = logits(4)
    p = given_logits.softmax(-1).numpy()
    expected = np.mean(np.sum(p * np.log(p / (1 / 4)), axis=1))
    assert float(uniformity(given_logits)) == pytest.approx(expected, rel=1e-12)
    assert float(uniformity(torch.zeros(2, 5))) == pytest.approx(0, abs=1e-6)
    assert float(uniformity(torch.tensor([[1e4, 0.0, 0.0]]))) == pytest.approx(math.log(3))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_distillation_is_torchs_divergence_from_teacher_to_student(temperature: float) -> None:
    student, teacher = logits(5).requires_grad_(), logits(6).requires_grad_()
    found = distillation(student, teacher, temperature)
    teach = torch.distributions.Categorical(logits=teacher / temperature)
    learn = torch.distributions.Categorical(logits=student / temperature)
    expected = torch.distributions.kl_divergence(teach, learn).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    found.backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None and student.grad is not None


def test_cross_entropy_takes_classes_and_soft_labels() -> None:
    given_logits, label = logits(7), torch.tensor([0, 1, 2, 3, 0, 1])
    by_hand = -np.mean(
        [
            float(row.log_softmax(-1)[target])
            for row, target in zip(given_logits, label, strict=True)
        ]
    )
    assert float(cross_entropy(given_logits, label)) == pytest.approx(by_hand, rel=1e-12)
    assert float(cross_entropy(given_logits, F.one_hot(label, 4).double())) == pytest.approx(
        by_hand, rel=1e-12
    )


def test_mix_ratios_are_between_0_and_1_in_the_images_dtype_and_differ_by_key() -> None:
    ratios = vmap(lambda k: mix_ratio(k, 0.75, torch.zeros(())), randomness="error")(
        fold(1, torch.arange(500))
    )
    assert ratios.dtype == torch.float32 and float(ratios.min()) >= 0 and float(ratios.max()) <= 1
    assert len(set(ratios.tolist())) > 490 and float(ratios.mean()) == pytest.approx(0.5, abs=0.08)


def test_squared_distance_sums_over_all_leaves() -> None:
    a, b = (
        {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([[3.0]])},
        {"x": torch.zeros(2), "y": torch.tensor([[5.0]])},
    )
    assert float(squared_distance(a, b)) == 1 + 4 + 4


def test_lanes_normalise_each_view_by_its_own_statistics() -> None:
    model = Architecture("cnn", (1, 4, 4), 3, width=0.25).initial(1, torch.float64)
    bright, dark = normal(1, (5, 1, 4, 4)) + 3, normal(2, (5, 1, 4, 4)) - 3
    first, second = lanes(model, bright, dark)
    torch.testing.assert_close(first, model(bright))
    torch.testing.assert_close(second, model(dark))
    assert not torch.allclose(torch.cat([first, second]), model(torch.cat([bright, dark])))


def test_batches_that_go_jointly_share_their_statistics() -> None:
    model = Architecture("cnn", (1, 4, 4), 3, width=0.25).initial(1, torch.float64)
    bright, dark = normal(1, (5, 1, 4, 4)) + 3, normal(2, (2, 1, 4, 4)) - 3
    first, second = jointly(model, bright, dark)
    whole = model(torch.cat([bright, dark]))
    torch.testing.assert_close(first, whole[:5])
    torch.testing.assert_close(second, whole[5:])


def test_masked_cross_entropy_is_a_mean_over_the_batch_or_over_the_masked() -> None:
    given_logits, label, mask = (
        logits(8),
        torch.tensor([0, 1, 2, 3, 0, 1]),
        torch.tensor([1.0, 0, 0, 1, 0, 0]).double(),
    )
    total = -sum(float(given_logits[place].log_softmax(-1)[label[place]]) for place in (0, 3))
    assert float(masked_cross_entropy(given_logits, label, mask)) == pytest.approx(
        total / 6, rel=1e-12
    )
    assert float(masked_cross_entropy(given_logits, label, mask, "masked")) == pytest.approx(
        total / 2, rel=1e-12
    )
    assert float(masked_cross_entropy(given_logits, label, 0 * mask, "masked")) == 0


def test_a_pseudo_label_counts_from_its_threshold_on_and_its_guess_has_no_gradient() -> None:
    guess = (
        torch.tensor([[0.96, 0.02, 0.02], [0.94, 0.03, 0.03], [0.01, 0.01, 0.98]])
        .double()
        .log()
        .requires_grad_()
    )
    learner = logits(9, rows=3, classes=3).requires_grad_()
    loss, mask = pseudo_label_loss(guess, learner, 0.95)
    assert mask.tolist() == [1, 0, 1]
    by_hand = -(learner[0].log_softmax(-1)[0] + learner[2].log_softmax(-1)[2]) / 3
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-12)
    loss.backward()  # type: ignore[no-untyped-call]
    assert guess.grad is None and learner.grad is not None
    assert learner.grad[1].abs().sum() == 0 and learner.grad[0].abs().sum() > 0


def test_consistency_pulls_the_student_alone() -> None:
    student, teacher = logits(10).requires_grad_(), logits(11).requires_grad_()
    found = consistency(student, teacher)
    expected = np.mean(
        (student.detach().softmax(-1).numpy() - teacher.detach().softmax(-1).numpy()) ** 2
    )
    assert found.item() == pytest.approx(expected, rel=1e-12)
    found.backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None and student.grad is not None and float(student.grad.abs().max()) > 0


def test_a_ramp_is_linear_or_sigmoid_and_whole_at_its_end() -> None:
    done = torch.tensor([0.0, 5.0, 10.0, 30.0])
    assert ramp(done, 10.0).tolist() == [0, 0.5, 1, 1]
    assert ramp(done, 0.0).tolist() == [1, 1, 1, 1]
    torch.testing.assert_close(
        ramp(done, 10.0, "sigmoid"),
        torch.tensor([math.exp(-5), math.exp(-1.25), 1.0, 1.0]),
        rtol=1e-6,
        atol=0,
    )


def test_a_moving_average_takes_in_every_leaf() -> None:
    found = moving_average(
        {"x": torch.tensor([1.0]), "y": (torch.tensor(4.0),)},
        {"x": torch.tensor([3.0]), "y": (torch.tensor(0.0),)},
        0.75,
    )
    assert found["x"].tolist() == [1.5] and float(found["y"][0]) == 3


def test_one_hot_makes_classes_soft_and_leaves_soft_labels_alone() -> None:
    label = torch.tensor([2, 0])
    assert one_hot(label, torch.zeros(2, 3).double()).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert one_hot(label, torch.zeros(2, 3).double()).dtype == torch.float64
    soft = logits(1).softmax(-1)
    assert one_hot(soft, soft) is soft


def test_a_guessed_label_is_the_sharpened_mean_of_the_views() -> None:
    a, b = logits(12), logits(13).requires_grad_()
    mean = (a.softmax(-1).numpy() + b.detach().softmax(-1).numpy()) / 2
    squared = mean**2
    found = guess_label([a, b], 2.0)
    np.testing.assert_allclose(found.numpy(), squared / squared.sum(1, keepdims=True), rtol=1e-12)
    assert not found.requires_grad


def test_mixing_keeps_each_image_as_the_larger_part_and_labels_with_it() -> None:
    images, label = normal(14, (6, 1, 2, 2)), logits(15).softmax(-1)
    keys = fold(16, torch.arange(40))
    for key in keys.tolist():  # type: ignore[union-attr]
        ratio = float(beta(fold(key, "ratio"), 0.75, 0.75))
        ratio, partner = max(ratio, 1 - ratio), order(fold(key, "partners"), 6).numpy()
        mixed, soft = mix(torch.tensor(key), images, label, 0.75)
        np.testing.assert_allclose(
            mixed.numpy(), ratio * images.numpy() + (1 - ratio) * images.numpy()[partner]
        )
        np.testing.assert_allclose(
            soft.numpy(), ratio * label.numpy() + (1 - ratio) * label.numpy()[partner]
        )
    lifted = vmap(lambda k: mix(k, images, label, 0.75)[0])(keys)
    torch.testing.assert_close(lifted[-1], mixed)

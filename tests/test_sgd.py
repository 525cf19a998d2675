"""The standard step is torch.optim.SGD with clipped gradients, written as a pure function."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedglean import tree
from fedglean.method import Batch, Sample
from fedglean.models import Architecture, Model
from fedglean.optimiser import SGD, cosine, standard_step

MLP = Architecture("mlp", (1, 3, 3), 4, width=0.002)
CNN = Architecture("cnn", (1, 4, 4), 3, width=0.125, norm="running")
STEPS = 6


def batch(
    seed: int, shape: tuple[int, ...], classes: int, rate: float = 0.1, images: int = 5
) -> Batch:
    source = torch.Generator().manual_seed(seed)
    pixels = torch.randn(images, *shape, generator=source, dtype=torch.float64)
    label = torch.randint(classes, (images,), generator=source)
    sample = Sample((pixels,), torch.arange(images), label)
    return Batch(
        {"data": sample},
        torch.tensor(0),
        torch.tensor(0),
        torch.tensor(rate, dtype=torch.float64),
        torch.tensor(seed),
    )


def loss(model: Model, batch: Batch, frozen: Any) -> Tensor:
    return F.cross_entropy(model(batch.data.images), batch.data.label)


def torch_trained(
    model: Model, sgd: SGD, batches: list[Batch], correction: dict[str, Tensor] | None = None
) -> Any:
    """The same steps with torch's optimiser; a correction is what the gradients get on top, after
    clipping.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in model.parameters.items()}
    optimiser = torch.optim.SGD(
        leaves.values(), sgd.rate, sgd.momentum, weight_decay=sgd.decay, nesterov=sgd.nesterov
    )
    for step in batches:
        optimiser.zero_grad()
        loss(Model(model.architecture, leaves), step, {}).backward()  # type: ignore[no-untyped-call]
        if sgd.clip is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), sgd.clip)
        for name, extra in (correction or {}).items():
            leaves[name].grad.add_(extra)  # type: ignore[union-attr]
        optimiser.step()
    return {name: value.detach() for name, value in leaves.items()}


def ours(
    model: Model, sgd: SGD, batches: list[Batch], frozen: dict[str, Any] | None = None
) -> Model:
    step, memory = standard_step(loss, sgd), sgd.init(model)
    for one in batches:
        model, memory, _ = step(model, memory, one, frozen or {})
    return model


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "sgd",
    [
        SGD(0.1),
        SGD(0.1, decay=0.01),
        SGD(0.1, momentum=0.9),
        SGD(0.1, momentum=0.9, nesterov=True, decay=5e-4, clip=1.0),
        SGD(0.1, clip=0.05),
        SGD(0.1, clip=1e6),
    ],
)
@pytest.mark.parametrize("corrected", [False, True])
def test_several_steps_equal_torchs_optimiser(sgd: SGD, corrected: bool) -> None:
    model = MLP.initial(1, torch.float64)
    batches = [batch(seed, MLP.shape, 4) for seed in range(STEPS)]
    correction = (
        tree.map(lambda w: 0.03 * torch.cos(w), dict(model.parameters)) if corrected else None
    )
    trained = ours(model, sgd, batches, {"correction": correction} if corrected else {})
    assert_close(trained.parameters, torch_trained(model, sgd, batches, correction))


def test_the_rate_is_the_batchs_and_not_the_optimisers() -> None:
    model = MLP.initial(1, torch.float64)
    slow = ours(model, SGD(0.1), [batch(1, MLP.shape, 4, rate=0.02)])
    assert_close(slow.parameters, torch_trained(model, SGD(0.02), [batch(1, MLP.shape, 4)]))


def test_clipping_is_over_all_models_of_a_dictionary_together() -> None:
    models = {name: MLP.initial(seed, torch.float64) for seed, name in enumerate("ab")}

    def both(live: Any, batch: Batch, frozen: Any) -> Tensor:
        return loss(live["a"], batch, frozen) + 3 * loss(live["b"], batch, frozen)

    sgd, one = SGD(1.0, clip=1e-3), batch(1, MLP.shape, 4, rate=1.0)
    moved, _, _ = standard_step(both, sgd)(models, {}, one, {})
    steps = [
        moved[name].parameters[leaf] - models[name].parameters[leaf]
        for name in "ab"
        for leaf in moved["a"].parameters
    ]
    assert float(torch.cat([step.flatten() for step in steps]).norm()) == pytest.approx(
        1e-3, rel=1e-2
    )


def test_tensors_are_trained_like_models_alone_and_beside_them() -> None:
    model, one, sgd = (
        MLP.initial(1, torch.float64),
        batch(1, MLP.shape, 4),
        SGD(0.1, momentum=0.9, clip=1e6),
    )
    head = {name: value for name, value in model.parameters.items() if name.startswith("output")}
    rest = {name: value for name, value in model.parameters.items() if name not in head}

    def of_parts(parts: Any, batch: Batch, frozen: Any) -> Tensor:
        return loss(model.with_parameters({**rest, **parts}), batch, frozen)

    whole, _, _ = standard_step(loss, sgd)(model, sgd.init(model), one, {})
    part, memory, _ = standard_step(of_parts, sgd)(head, sgd.init(head), one, {})
    assert_close(part, {name: whole.parameters[name] for name in head})
    assert memory["momentum"].keys() == head.keys()

    def shifted(live: Any, batch: Batch, frozen: Any) -> Tensor:
        return F.cross_entropy(live["model"](batch.data.images) + live["shift"], batch.data.label)

    both, _, _ = standard_step(shifted, SGD(0.1))(
        {"model": model, "shift": torch.zeros(4).double()}, {}, one, {}
    )
    bias = both["model"].parameters["output.bias"] - model.parameters["output.bias"]
    torch.testing.assert_close(both["shift"], bias, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_trained_is_refused_in_a_sentence() -> None:
    with pytest.raises(TypeError, match="a model, a tensor or a dictionary of them, not a list"):
        SGD(0.1, momentum=0.9).init([MLP.initial(1)])


def test_running_statistics_advance_as_those_of_torchs_batch_norm() -> None:
    model = CNN.initial(1, torch.float64)
    reference = nn.BatchNorm2d(len(model.parameters["norm1.weight"])).double()
    batches = [batch(seed, CNN.shape, 3) for seed in range(STEPS)]
    step = standard_step(loss, SGD(0.1))
    for one in batches:
        weight, bias = model.parameters["conv1.weight"], model.parameters.get("conv1.bias")
        reference(F.conv2d(one.data.images, weight, bias, padding=weight.shape[-1] // 2))
        before = {name: value.clone() for name, value in model.statistics.items()}
        old, (model, _, _) = model, step(model, {}, one, {})
        assert all(torch.equal(old.statistics[name], before[name]) for name in before)
        torch.testing.assert_close(
            model.statistics["norm1.mean"], reference.running_mean, rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(
            model.statistics["norm1.variance"], reference.running_var, rtol=1e-12, atol=1e-12
        )


def test_two_lanes_equal_two_separate_steps() -> None:
    models = [CNN.initial(seed, torch.float64) for seed in (1, 2)]
    batches = [batch(seed, CNN.shape, 3) for seed in (3, 4)]
    sgd = SGD(0.1, momentum=0.9, nesterov=True, decay=5e-4, clip=0.1)
    corrections = [tree.map(lambda w: 0.1 * w, dict(model.parameters)) for model in models]
    step = standard_step(loss, sgd)
    alone = [
        step(model, sgd.init(model), one, {"correction": extra})
        for model, one, extra in zip(models, batches, corrections, strict=True)
    ]
    stacked = [
        tree.map(lambda *leaves: torch.stack(leaves), *pair)
        for pair in (models, [sgd.init(model) for model in models], batches, corrections)
    ]
    lifted = vmap(lambda m, v, b, c: step(m, v, b, {"correction": c}), randomness="error")(*stacked)
    for lane in range(2):
        together = tree.map(lambda leaf, lane=lane: leaf[lane], lifted)
        assert_close(tree.named(list(together)), tree.named(list(alone[lane])))


def test_metrics_come_with_the_loss_and_carry_no_graph() -> None:
    def with_metrics(model: Model, batch: Batch, frozen: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return loss(model, batch, frozen), {"largest": model(batch.data.images).max()}

    model, one = MLP.initial(1, torch.float64), batch(1, MLP.shape, 4)
    _, _, metrics = standard_step(with_metrics, SGD(0.1))(model, {}, one, {})
    assert set(metrics) == {"loss", "largest"} and not any(
        value.requires_grad for value in metrics.values()
    )
    assert float(metrics["loss"]) == pytest.approx(float(loss(model, one, {})), rel=1e-12)


@pytest.mark.parametrize(
    ("mistaken", "sentence"),
    [
        (
            lambda logits, label: F.cross_entropy(logits, label, reduction="none"),
            r"shape \(5,\); take its .mean",
        ),
        (lambda logits, label: (logits.argmax(-1) == label).sum(), "the loss has no gradient"),
        (lambda logits, label: F.cross_entropy(logits.detach(), label), "the loss has no gradient"),
        (lambda logits, label: None, "a loss returns a tensor, .* this is a NoneType"),
        (
            lambda logits, label: (F.cross_entropy(logits, label), {"sure": 0.5}),
            "the metric 'sure' of a loss must be",
        ),
    ],
)
@pytest.mark.parametrize("lanes", [0, 2])
def test_what_is_no_loss_is_refused_in_a_sentence(mistaken: Any, sentence: str, lanes: int) -> None:
    def wrong(model: Model, batch: Batch, frozen: Any) -> Any:
        return mistaken(model(batch.data.images), batch.data.label)

    model, one = MLP.initial(1, torch.float64), batch(1, MLP.shape, 4)
    step = standard_step(wrong, SGD(0.1))
    if lanes:
        model, one = (
            tree.map(lambda leaf: torch.stack([leaf] * lanes), part) for part in (model, one)
        )
        step = vmap(step, in_dims=(0, None, 0, None))
    with pytest.raises((TypeError, ValueError), match=sentence):
        step(model, {}, one, {})


def test_the_cosine_falls_from_the_rate_to_nothing() -> None:
    assert cosine(0.03, 0.0) == 0.03
    assert cosine(0.03, 0.5) == pytest.approx(0.015, rel=1e-12)
    assert cosine(0.03, 1.0) == pytest.approx(0.0, abs=1e-15)

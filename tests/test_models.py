"""Models against straightforward modules with PyTorch's own batch norm, and through `grad` and
`vmap`.
"""

import copy
import json
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from fedglean.errors import ConfigError
from fedglean.models import MODELS, NORMS, Architecture, Model
from fedglean.models import convolution as convolutions
from fedglean.models.convolution import convolution, in_groups
from fedglean.models.layers import Layers, plan_of
from fedglean.models.nets import NetKind
from fedglean.models.norm import batch
from fedglean.randomness import key, normal

TINY = {
    "cnn": Architecture("cnn", (1, 8, 8), 3, width=0.25),
    "mlp": Architecture("mlp", (1, 4, 4), 3, width=0.001, dropout=0.5),
    "lenet": Architecture("lenet", (1, 12, 12), 3, width=0.25),
    "resnet8": Architecture("resnet8", (3, 8, 8), 3, width=1 / 16),
    "cnn13": Architecture("cnn13", (3, 16, 16), 3, width=1 / 32),
    "wrn-28-2": Architecture("wrn-28-2", (3, 8, 8), 3, width=0.25),
}


def tiny(name: str, norm: str = "static") -> Architecture:
    fields = TINY[name].to_json()
    return Architecture.from_json({**fields, "norm": norm})


def images(architecture: Architecture, count: int, name: str = "images") -> Tensor:
    return 1 + normal(key(7, name), (count, *architecture.shape))


def double(architecture: Architecture, seed: int = 1) -> Model:
    return architecture.initial(seed, torch.float64)


def stacked(models: list[Model]) -> Model:
    together: Model = tree_map(lambda *values: torch.stack(values), *models)
    return together


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def count(name: str, shape: tuple[int, int, int], classes: int = 10, width: float = 1.0) -> int:
    asked = Architecture(name, shape, classes, width).plan.parameters
    return sum(math.prod(size) for size, _, _ in asked.values())


class PlainBlock(nn.Module):
    def __init__(
        self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(before), nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = norm(after), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.change = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.norm1(x))
        branch = self.conv2(torch.relu(self.norm2(self.conv1(active))))
        return branch + (x if self.change is None else self.change(active))


class PlainWide(nn.Sequential):
    def __init__(self, k: int, norm: Callable[[int], nn.Module]) -> None:
        widths = [16, *([16 * k] * 4), *([32 * k] * 4), *([64 * k] * 4)]
        strides = [1, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]
        blocks = [
            PlainBlock(*sizes, norm) for sizes in zip(widths, widths[1:], strides, strict=False)
        ]
        head = [
            norm(64 * k),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64 * k, 10),
        ]
        super().__init__(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *head)


class PlainPostBlock(nn.Module):
    def __init__(
        self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), norm(after)
        same = nn.Identity()
        self.down = (
            same
            if stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(branch + self.down(x))


class PlainResNet8(nn.Sequential):
    def __init__(self, w: int, norm: Callable[[int], nn.Module]) -> None:
        stem = [nn.Conv2d(3, w, 3, 1, 1, bias=False), norm(w), nn.ReLU()]
        stages = [
            PlainPostBlock(w, w, 1, norm),
            PlainPostBlock(w, 2 * w, 2, norm),
            PlainPostBlock(2 * w, 4 * w, 2, norm),
        ]
        super().__init__(
            *stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, 10)
        )


class PlainCNN(nn.Sequential):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        first = [nn.Conv2d(1, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(16, 32, 3, padding=1, bias=False), norm(32), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(128, 10))


class PlainCNN13(nn.Sequential):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        def unit(before: int, after: int, kernel: int = 3, padding: int = 1) -> list[nn.Module]:
            return [
                nn.Conv2d(before, after, kernel, padding=padding, bias=False),
                norm(after),
                nn.LeakyReLU(0.1),
            ]

        first = [*unit(3, 8), *unit(8, 8), *unit(8, 8), nn.MaxPool2d(2)]
        second = [*unit(8, 16), *unit(16, 16), *unit(16, 16), nn.MaxPool2d(2)]
        third = [*unit(16, 32, padding=0), *unit(32, 16, 1, 0), *unit(16, 8, 1, 0), nn.AvgPool2d(2)]
        super().__init__(*first, *second, *third, nn.Flatten(), nn.Linear(8, 10))


class PlainLeNet(nn.Sequential):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        first = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
        super().__init__(*first, *second, *dense)


class PlainMLP(nn.Sequential):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))


def with_weights_of(module: nn.Module, model: Model) -> nn.Module:
    module = module.double()
    theirs, ours = list(module.parameters()), list(model.parameters.values())
    assert [value.shape for value in theirs] == [value.shape for value in ours]
    for left, right in zip(theirs, ours, strict=True):
        left.data = right
    return module


def no_averages(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def cumulative_averages(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, momentum=None)


ORACLES = {
    "wrn-28-1": (Architecture("wrn-28-1", (3, 8, 8), 10), lambda norm: PlainWide(1, norm)),
    "wrn-28-2": (Architecture("wrn-28-2", (3, 8, 8), 10), lambda norm: PlainWide(2, norm)),
    "resnet8": (
        Architecture("resnet8", (3, 8, 8), 10, width=0.25),
        lambda norm: PlainResNet8(16, norm),
    ),
    "cnn": (Architecture("cnn", (1, 8, 8), 10), PlainCNN),
    "cnn13": (Architecture("cnn13", (3, 16, 16), 10, width=1 / 16), PlainCNN13),
    "lenet": (Architecture("lenet", (1, 28, 28), 10), PlainLeNet),
    "mlp": (Architecture("mlp", (1, 8, 8), 10, width=0.01), PlainMLP),
}


@pytest.mark.parametrize("name", ORACLES)
def test_a_training_forward_and_its_gradient_are_those_of_the_plain_module(name: str) -> None:
    architecture, oracle = ORACLES[name]
    model, x = double(architecture), images(architecture, 4)
    module = with_weights_of(oracle(no_averages), model)
    close(model(x), module(x))
    module(x).square().mean().backward()
    ours = grad(lambda it: it(x).square().mean())(model)
    for left, right in zip(ours.parameters.values(), module.parameters(), strict=True):
        torch.testing.assert_close(left, right.grad, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ORACLES)
def test_evaluation_with_recorded_statistics_is_pytorchs_evaluation_after_a_cumulative_pass(
    name: str,
) -> None:
    architecture, oracle = ORACLES[name]
    model = double(architecture)
    module = with_weights_of(oracle(cumulative_averages), model)
    sums = model.empty_sums()
    for number in range(3):
        x = images(architecture, 4, f"batch {number}")
        with torch.no_grad():
            module(x)
        sums = {entry: sums[entry] + value for entry, value in model.record(x).items()}
    x = images(architecture, 2, "test")
    close(model.with_statistics(sums).evaluate(x), module.eval()(x))


def test_a_running_net_trains_and_evaluates_as_pytorchs() -> None:
    model = double(Architecture("cnn", (1, 8, 8), 10, norm="running"))
    module = with_weights_of(PlainCNN(nn.BatchNorm2d), model)
    for number in range(4):
        x = images(model.architecture, 5, f"step {number}")
        close(model(x), module(x))
    x = images(model.architecture, 3, "test")
    close(model.evaluate(x), module.eval()(x))


def test_pooled_statistics_of_a_first_layer_are_those_of_the_whole_set() -> None:
    model = double(Architecture("cnn", (1, 8, 8), 10))
    x = images(model.architecture, 12)
    sums = [model.record(part) for part in x.split([5, 3, 4])]
    total = {name: sum((part[name] for part in sums), torch.zeros(()).double()) for name in sums[0]}
    found = model.with_statistics(total, "pooled").statistics
    whole = F.conv2d(x, model.parameters["conv1.weight"], padding=1)
    close(found["norm1.mean"], whole.mean((0, 2, 3)))
    close(found["norm1.variance"], whole.var((0, 2, 3)))


def test_parameter_counts_are_the_papers() -> None:
    # WRN-28-2: stem 432; group 1 14,432 + 3 x 18,560; group 2 57,536 + 3 x 73,984; group 3 229,760
    # + 3 x 295,424; last norm 256; output 1,290.
    assert count("wrn-28-2", (3, 32, 32)) == 1_467_610
    assert count("wrn-28-8", (3, 32, 32)) == 23_354_842
    assert count("wrn-28-8", (3, 32, 32), classes=100) == 23_354_842 + 90 * 513
    # ResNet-8: stem 1,728 + 128; stages 73,984, 230,144 and 919,040; output 2,570.
    assert count("resnet8", (3, 32, 32)) == 1_227_594
    assert count("resnet8", (3, 32, 32), width=0.25) == 78_042
    assert count("lenet", (1, 28, 28)) == 61_706
    assert count("mlp", (1, 28, 28)) == 784 * 5000 + 5000 + 5000 * 10 + 10 == 3_975_010
    # CNN13: convolutions 3,116,416; norms 4,096; output 1,290.
    assert count("cnn13", (3, 32, 32)) == 3_121_802
    assert (
        Architecture("cnn", (1, 8, 8), 10).initial(0).size()
        == 16 * 9 + 32 + 32 * 16 * 9 + 64 + 128 * 10 + 10
    )


def test_a_quarter_of_a_net_has_a_quarter_of_its_channels_rounded_up() -> None:
    lenet = Architecture("lenet", (1, 28, 28), 10, width=0.25).plan.parameters
    names = ("conv1", "conv2", "hidden1", "hidden2", "output")
    assert [lenet[f"{name}.weight"][0][0] for name in names] == [2, 4, 30, 21, 10]
    resnet = Architecture("resnet8", (3, 32, 32), 10, width=0.25).plan.parameters
    assert [resnet[f"stage{stage}.conv1.weight"][0][0] for stage in (1, 2, 3)] == [16, 32, 64]


@pytest.mark.parametrize("name", ["cnn", "lenet", "resnet8", "cnn13", "wrn-28-2"])
def test_convolutions_for_groups_give_the_same_gradients(name: str) -> None:
    architecture = tiny(name)
    model, x = double(architecture), images(architecture, 4)

    def loss(model: Model) -> Tensor:
        return model(x).square().sum()

    expected = grad(loss)(model)
    with in_groups():
        found = grad(loss)(model)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9), found, expected)


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([2, 128]),
)
def test_a_convolution_for_groups_is_a_convolution(
    out: int, into: int, kernel: int, stride: int, padding: int, wide: int
) -> None:
    x, weight, bias = (
        normal(1, (3, 2, into, 7, 10)),
        normal(2, (3, out, into, kernel, kernel)),
        normal(3, (3, out)),
    )
    lifted = vmap(lambda *each: convolution(*each, stride, padding))
    with in_groups(), patch.object(convolutions, "WIDE", wide):
        found = lifted(x, weight, bias)
    torch.testing.assert_close(found, lifted(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cnn", "mlp", "lenet", "resnet8", "cnn13", "wrn-28-2"])
@pytest.mark.parametrize("norm", NORMS)
def test_three_stacked_models_do_what_each_does_alone(name: str, norm: str) -> None:
    architecture = tiny(name, norm)
    xs = torch.stack([images(architecture, 4, f"client {number}") for number in range(3)])
    models = [double(architecture, seed) for seed in range(3)]
    models = [model.with_statistics(model.record(x)) for model, x in zip(models, xs, strict=True)]
    keys = torch.tensor([11, 12, 13])

    def loss(
        model: Model, x: Tensor, dropout: Tensor
    ) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        training = model.for_training()
        logits = training(x, dropout)
        return F.cross_entropy(logits + training(2 * x), x.new_zeros(4).long()), (
            logits,
            training.statistics,
        )

    def all_of_it(model: Model, x: Tensor, dropout: Tensor) -> object:
        return grad(loss, has_aux=True)(model, x, dropout), model.evaluate(x), model.record(x)

    together = vmap(all_of_it, randomness="error")(stacked(models), xs, keys)
    alone = [all_of_it(*client) for client in zip(models, xs, keys, strict=True)]
    expected = tree_map(lambda *values: torch.stack(values), *alone)
    tree_map(
        lambda a, b: torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12), together, expected
    )


def test_a_shared_model_and_stacked_statistics_can_be_named_by_a_tree_of_axes() -> None:
    architecture = tiny("cnn", "running")
    model, x = double(architecture), images(architecture, 4)
    statistics = {name: torch.stack([value, value + 1]) for name, value in model.statistics.items()}
    axes = Model(architecture, dict.fromkeys(model.parameters), dict.fromkeys(model.statistics, 0))
    together = vmap(lambda it: it.evaluate(x), in_dims=(axes,))(
        Model(architecture, model.parameters, statistics)
    )
    second = {name: value[1] for name, value in statistics.items()}
    close(together[0], model.evaluate(x))
    close(together[1], Model(architecture, model.parameters, second).evaluate(x))


def test_views_as_lanes_have_their_own_batch_statistics() -> None:
    model = double(tiny("cnn"))
    views = torch.stack(
        [images(model.architecture, 4, "weak"), 5 * images(model.architecture, 4, "strong")]
    )
    together = vmap(model)(views)
    close(together[0], model(views[0]))
    close(together[1], model(views[1]))


def test_two_forwards_in_one_loss_move_the_running_averages_twice_in_order() -> None:
    model = double(tiny("cnn", "running"))
    first, second = (
        images(model.architecture, 4, "first"),
        3 * images(model.architecture, 4, "second"),
    )

    def loss(it: Model) -> tuple[Tensor, dict[str, Tensor]]:
        return (it(first) + it(second)).sum(), it.statistics

    _, found = grad(loss, has_aux=True)(model)
    for x in (first, second):
        model(x)
    assert found.keys() == model.statistics.keys()
    for name, value in found.items():
        close(value, model.statistics[name])


def test_training_a_copy_leaves_the_original_alone() -> None:
    model = double(tiny("cnn", "running"))
    before = dict(model.statistics)
    for copied in (model.for_training(), model.with_parameters(model.parameters)):
        copied(images(model.architecture, 4))
        assert all(copied.statistics[name] is not value for name, value in before.items())
    assert all(model.statistics[name] is value for name, value in before.items())


def test_static_statistics_do_not_outlive_their_weights() -> None:
    model = double(tiny("cnn"))
    tested = model.with_statistics(model.record(images(model.architecture, 4)))
    assert tested.statistics
    assert (
        tested.for_training().statistics
        == tested.with_parameters(model.parameters).statistics
        == {}
    )


def test_statistics_take_the_parameters_dtype() -> None:
    model = tiny("cnn").initial(1)
    tested = model.with_statistics(model.record(images(model.architecture, 4).float()))
    assert {value.dtype for value in tested.statistics.values()} == {torch.float32}


@pytest.mark.parametrize("name", TINY)
def test_only_static_nets_with_norm_layers_need_statistics(name: str) -> None:
    assert double(tiny(name)).needs_statistics == (name not in ("mlp", "lenet"))
    assert not double(tiny(name, "group")).needs_statistics
    assert not double(tiny(name, "running")).needs_statistics


@pytest.mark.parametrize("norm", NORMS)
def test_sums_of_nothing_have_the_shapes_of_sums(norm: str) -> None:
    model = double(tiny("cnn", norm))
    empty, sums = model.empty_sums(), model.record(images(model.architecture, 4))
    assert {name: value.shape for name, value in empty.items()} == {
        name: value.shape for name, value in sums.items()
    }
    assert all(value.abs().sum() == 0 and value.dtype == torch.float64 for value in empty.values())


@pytest.mark.parametrize("name", ["mlp", "cnn13"])
def test_dropout_is_a_function_of_the_key_and_off_without_one(name: str) -> None:
    model = double(Architecture(name, TINY[name].shape, 3, width=0.1, dropout=0.5))
    x = images(model.architecture, 4)
    assert torch.equal(model(x, 5), model(x, torch.tensor(5)))
    assert not torch.equal(model(x, 5), model(x, 6))
    assert torch.equal(model(x), model(x))
    assert not torch.equal(model(x), model(x, 5))


def test_layers_of_one_net_drop_by_masks_of_their_own() -> None:
    layers = Layers(2, 1.0, 0.5, lambda name, *_: torch.zeros(()), batch, key=3)
    first, again, other = (
        layers.dropout(name, torch.ones(4, 50), 0.5) for name in ("one", "one", "two")
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_dropout_keeps_the_mean_and_drops_the_share() -> None:
    architecture = Architecture("mlp", (1, 1, 1), 2, dropout=0.25)
    model = double(architecture)
    positive = {name: torch.ones_like(value) for name, value in model.parameters.items()}
    positive["hidden.bias"], positive["output.bias"] = (
        torch.zeros(5000).double(),
        torch.zeros(2).double(),
    )
    logits = model.with_parameters(positive)(torch.ones(20, 1, 1, 1).double(), 3)
    assert logits.mean() == pytest.approx(5000, rel=0.01)
    kept = logits[:, 0] * 0.75 / 5000
    assert kept.std() == pytest.approx(math.sqrt(0.25 * 0.75 / 5000), rel=0.5)


def test_initial_parameters_depend_on_their_name_and_the_key_alone() -> None:
    small, large = (
        Architecture("cnn", (1, 8, 8), 10).initial(1),
        Architecture("cnn", (1, 28, 28), 3).initial(1),
    )
    assert torch.equal(small.parameters["conv2.weight"], large.parameters["conv2.weight"])
    torch.manual_seed(4)
    again = Architecture("cnn", (1, 8, 8), 10).initial(1)
    assert all(
        torch.equal(value, again.parameters[name]) for name, value in small.parameters.items()
    )
    other = Architecture("cnn", (1, 8, 8), 10).initial(2)
    resnet = tiny("resnet8").initial(1).parameters
    assert not torch.equal(resnet["stage1.conv1.weight"], resnet["stage1.conv2.weight"])
    assert not torch.equal(small.parameters["conv2.weight"], other.parameters["conv2.weight"])


def test_initial_weights_have_the_papers_spread() -> None:
    wide = double(Architecture("wrn-28-2", (3, 32, 32), 10)).parameters
    for name in ("stem.weight", "group2.block1.conv1.weight", "group3.block1.shortcut.weight"):
        out, _, *kernel = wide[name].shape
        assert wide[name].std() == pytest.approx(math.sqrt(2 / (out * math.prod(kernel))), rel=0.06)
    assert wide["output.bias"].abs().max() == 0
    assert 0.95 / math.sqrt(128) < wide["output.weight"].abs().max() <= 1 / math.sqrt(128)
    lenet = double(Architecture("lenet", (1, 28, 28), 10)).parameters
    for name, fan_in in (("conv2", 150), ("hidden1", 400)):
        for part in ("weight", "bias"):
            assert (
                0.8 / math.sqrt(fan_in)
                < lenet[f"{name}.{part}"].abs().max()
                <= 1 / math.sqrt(fan_in)
            )


def test_an_architecture_survives_json_and_copies() -> None:
    architecture = Architecture("wrn-28-3", (3, 32, 32), 100, width=0.5, norm="group")
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture
    assert hash(copy.deepcopy(architecture)) == hash(architecture)
    assert (
        Architecture.from_json({"name": "cnn", "shape": [1, 8, 8], "classes": 10}).norm == "static"
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "resnet"}, "did you mean 'resnet8'"),
        ({"name": "wrn-28-0"}, "unknown model 'wrn-28-0'"),
        ({"norm": "sttic"}, "did you mean 'static'"),
        ({"name": "lenet"}, "lenet needs images of at least 12 x 12 pixels, not 8 x 8"),
        (
            {"name": "cnn13", "shape": [3, 32, 8]},
            "cnn13 needs images of at least 12 x 12 pixels, not 32 x 8",
        ),
        ({"shape": [8, 8]}, "three positive integers"),
        ({"shape": [1, 8, 0]}, "three positive integers"),
        ({"classes": 1}, "at least 2 classes, not 1"),
        ({"width": 0.0}, "width is a share"),
        ({"dropout": 0.5}, "cnn has no dropout layer; use mlp or cnn13, or set dropout to 0"),
        ({"name": "mlp", "dropout": 1.0}, "at least 0 and below 1"),
        ({"name": "cnn13", "shape": [3, 12, 12], "norm": "instance"}, "a single number per group"),
        ({"nrom": "static"}, "did you mean 'norm'"),
    ],
)
def test_an_architecture_that_makes_no_sense_is_refused_in_one_sentence(
    fields: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Architecture.from_json({"name": "cnn", "shape": [1, 8, 8], "classes": 10, **fields})


@pytest.mark.parametrize(
    ("net", "made"),
    [
        (lambda layers, images: layers.linear("output", images.flatten(1), 3), "n x 3"),
        (lambda layers, images: images, "n x 1 x 8 x 8"),
        (lambda layers, images: None, "no tensor"),
    ],
)
def test_a_net_of_ones_own_that_does_not_return_a_number_a_class_is_refused(
    net: Any, made: str
) -> None:
    kind = NetKind(net, "of one's own")
    with pytest.raises(
        ConfigError, match=f"the model 'own' returns {made} for n images; expected n x 10"
    ):
        Architecture("own", (1, 8, 8), 10, kind=kind)


def test_two_layers_of_one_name_and_other_shapes_are_refused() -> None:
    def own(layers: Layers, images: Tensor) -> Tensor:
        return layers.linear("dense", layers.linear("dense", images.flatten(1), 20), layers.classes)

    with pytest.raises(
        ConfigError,
        match=r"other shapes, \(20, 64\) and \(10, 20\), are called 'dense'; rename one",
    ):
        Architecture("own", (1, 8, 8), 10, kind=NetKind(own, "of one's own"))


def test_a_net_that_cannot_take_an_empty_batch_is_planned_on_two_images() -> None:
    def own(layers: Layers, images: Tensor) -> Tensor:
        return layers.linear("output", images.reshape(len(images), -1), layers.classes)

    plan = plan_of(own, (1, 8, 8), 10, 1.0)
    assert plan.output == (plan.images, 10) == (2, 10)
    assert plan.parameters["output.weight"][0] == (10, 64)


def test_an_architecture_without_its_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="classes is missing"):
        Architecture.from_json({"name": "cnn", "shape": [1, 8, 8]})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", [28, 32])
def test_every_net_takes_the_usual_images(name: str, side: int) -> None:
    Architecture(name, (1, side, side), 10)
    Architecture(name, (3, side, side), 100)


@pytest.mark.parametrize("side", [4, 8, 28, 32])
def test_the_small_cnn_takes_digits_and_photographs(side: int) -> None:
    architecture = Architecture("cnn", (3, side, side), 7)
    assert architecture.initial(0)(torch.zeros(2, 3, side, side)).shape == (2, 7)

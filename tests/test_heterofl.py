"""HeteroFL: narrow models are parts of the wide one, and an element is the mean over those who have
it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.method import Batch, Hub, Sample
from fedglean.methods.fedavgm import FedAvgM
from fedglean.methods.heterofl import HeteroFL, narrow, scale
from fedglean.models import Architecture, Model
from fedglean.runs.experiment import Experiment
from fedglean.testing.difference import difference
from fedglean.testing.engines import UploadLog, variant
from fedglean.testing.play import play
from fedglean.testing.small_federation import small_experiment

HETERO = HeteroFL(active=1.0, epochs=1)


def drawn(name: str, shape: tuple[int, int, int] = (1, 12, 12), width: float = 1.0) -> Model:
    return Architecture(name, shape, 10, width).initial(3, torch.float64)


def pictures(count: int = 6) -> Tensor:
    return torch.sin(torch.arange(count * 144, dtype=torch.float64) ** 1.5).reshape(
        count, 1, 12, 12
    )


@pytest.mark.parametrize("name", ["cnn", "lenet", "resnet8", "mlp"])
def test_a_narrow_model_is_the_wide_one_with_its_last_channels_dead(name: str) -> None:
    wide = drawn(name)
    small = narrow(wide, 0.25)
    assert small.size() < wide.size() / 3
    alive = {leaf: torch.zeros_like(value) for leaf, value in wide.parameters.items()}
    for leaf, value in small.parameters.items():
        alive[leaf][tuple(slice(size) for size in value.shape)] = value
    torch.testing.assert_close(small(pictures()), wide.with_parameters(alive)(pictures()))


def test_the_scaler_divides_what_enters_each_norm() -> None:
    model, x = narrow(drawn("cnn"), 0.25), pictures()
    p = {
        name: value if "norm" not in name else value + 0.1
        for name, value in model.parameters.items()
    }
    for layer in ("1", "2"):
        # The epsilon of batch norm is all that tells a divided input from a whole one: so it is
        # made large.
        x = F.conv2d(1e-2 * x, p[f"conv{layer}.weight"], padding=1) / 0.25
        x = F.batch_norm(
            x, None, None, p[f"norm{layer}.weight"], p[f"norm{layer}.bias"], training=True
        )
        x = 1e2 * F.max_pool2d(F.relu(x), 2) if layer == "1" else F.max_pool2d(F.relu(x), 2)
    expected = F.linear(x.flatten(1), p["output.weight"], p["output.bias"])
    shrunk = {name: 1e-2 * value if name == "conv1.weight" else value for name, value in p.items()}
    found = scale(model.with_parameters(shrunk))(pictures())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert (model.with_parameters(shrunk)(pictures()) - expected).abs().max() > 1e-3


def test_the_scaler_divides_hidden_units_where_there_is_no_norm() -> None:
    model, x = narrow(drawn("lenet"), 0.5), pictures()
    p = model.parameters
    for name, padding in (("conv1", 2), ("conv2", 0)):
        x = F.max_pool2d(
            F.relu(F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=padding) / 0.5), 2
        )
    x = x.flatten(1)
    for name in ("hidden1", "hidden2"):
        x = F.relu(F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"]) / 0.5)
    torch.testing.assert_close(
        scale(model)(pictures()), F.linear(x, p["output.weight"], p["output.bias"])
    )


def test_unknown_classes_have_output_zero_in_the_loss() -> None:
    model, key, label = drawn("cnn"), torch.tensor(0), [1, 7, 7, 2, 1, 2]
    known = torch.tensor([float(kind in label) for kind in range(10)], dtype=torch.float64)
    batch = Batch({"labelled": Sample((pictures(),), key, torch.tensor(label))}, key, key, key, key)
    logits = model(pictures()).numpy().copy()
    logits[:, [kind for kind in range(10) if kind not in label]] = 0.0
    expected = np.mean(
        [np.log(np.exp(row).sum()) - row[kind] for row, kind in zip(logits, label, strict=True)]
    )
    assert math.isclose(float(HETERO.loss(model, batch, {"known": known})), expected, rel_tol=1e-12)


def one_round(
    method: HeteroFL, norm: str = "static"
) -> tuple[Model, Model, dict[int, dict[str, Tensor]], Experiment]:
    """The model before, the one after, the narrow models that the clients sent, and the
    federation.
    """
    case = variant(small_experiment(method, norm=norm, rounds=1), placement=UploadLog)
    assert isinstance(case.placement, UploadLog)
    before, after = case.start().model, play(case).state.model
    sent = {
        envelope.client: tree.named(part)
        for envelope in case.placement.uploads
        for name, part in envelope.upload.trees.items()
        if name.startswith("model of")
    }
    return before, after, sent, case


@pytest.mark.parametrize("widths", ["1,0.5,0.25", "0.5,0.25"])
def test_an_element_is_the_mean_over_its_owners_and_without_one_as_it_was(widths: str) -> None:
    before, after, sent, case = one_round(replace(HETERO, widths=widths))
    shares = [float(width) for width in widths.split(",")]
    assert set(sent) == {
        client for client, held in enumerate(case.federation.labelled) if len(held)
    }
    untouched = 0
    for name, old in before.parameters.items():
        expected = old.numpy().copy()
        for place in np.ndindex(*old.shape):
            values = []
            for client, part in sent.items():
                inside = all(
                    index < size for index, size in zip(place, part[name].shape, strict=True)
                )
                classes = set(case.federation.labelled[client].label.tolist())  # type: ignore[union-attr]
                if inside and (not name.startswith("output") or place[0] in classes):
                    values.append(float(part[name][place]))
            untouched += not values
            expected[place] = np.mean(values) if values else expected[place]
        np.testing.assert_allclose(after.parameters[name].numpy(), expected, rtol=1e-12)
    narrow = {client: part["conv2.weight"].shape[0] for client, part in sent.items()}
    assert narrow == {client: math.ceil(32 * shares[client % len(shares)]) for client in sent}
    assert (
        untouched > 0
        if widths == "0.5,0.25"
        else untouched < before.parameters["output.weight"].numel()
    )


def test_only_narrow_models_and_who_owns_what_of_them_travel() -> None:
    case = small_experiment(replace(HETERO, widths="0.5,0.25"), norm="layer", rounds=1)
    line, model = play(case).history[0], case.start().model
    size = [8 * narrow(model, share).size() for share in (0.5, 0.25)]
    labelled = [client for client, held in enumerate(case.federation.labelled) if len(held)]
    assert line["bytes_down"] == 4 * sum(size)
    assert line["bytes_up"] == sum(2 * size[client % 2] + 8 * 10 for client in labelled)


def test_at_full_width_and_unmasked_it_is_the_equal_average() -> None:
    settings: dict[str, Any] = {
        "active": 1.0,
        "epochs": 1,
        "rate": 0.1,
        "momentum": 0.9,
        "decay": 5e-4,
        "clip": 1.0,
    }
    hetero = HeteroFL(widths="1", mask=False, staircase=False, **settings)
    average = FedAvgM(global_momentum=0.0, weigh_by="nothing", **settings)
    models = [play(small_experiment(method, rounds=2)).state.model for method in (hetero, average)]
    assert difference(*models, 1e-12) is None


def test_the_rate_falls_twice() -> None:
    def rates(method: HeteroFL) -> Sequence[float]:
        hubs = [Hub(number, 400, None, (), 0) for number in (1, 150, 151, 250, 251, 400)]  # type: ignore[arg-type]
        return [method.rate_of(hub) for hub in hubs]

    assert rates(HETERO) == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert set(rates(replace(HETERO, staircase=False))) == {0.1}


@pytest.mark.parametrize("widths", ["", "1,0", "2", "half", "1,,0.5"])
def test_widths_that_mean_nothing_are_refused(widths: str) -> None:
    with pytest.raises(ConfigError, match="widths must be numbers above 0 and up to 1"):
        HeteroFL(widths=widths)

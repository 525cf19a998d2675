"""Normalisation layers against PyTorch's own, and the formulas of static batch norm against the
data they sum up.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedglean.errors import ConfigError, DataError
from fedglean.models import NORMS
from fedglean.models.norm import (
    batch,
    empty_sums,
    groups,
    in_evaluation,
    in_training,
    recorded,
    statistics_of,
)
from fedglean.randomness import key, normal

CHANNELS = 4
AFFINE = (1 + 0.1 * normal(key(0, "weight"), (CHANNELS,)), normal(key(0, "bias"), (CHANNELS,)))


def features(name: str, images: int, side: int = 3) -> Tensor:
    return 2 + 3 * normal(key(1, name), (images, CHANNELS, side, side))


def summed(batches: list[Tensor]) -> dict[str, Tensor]:
    total = empty_sums({"it": CHANNELS}, torch.device("cpu"))
    for x in batches:
        sums = {"images": torch.tensor(float(len(x)), dtype=torch.float64)}
        recorded(sums, "it", x, *AFFINE)
        assert list(sums) == list(total)
        total = {name: total[name] + sums[name] for name in total}
    return total


def torch_norm(**options: float | bool | None) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(CHANNELS, dtype=torch.float64, **options)  # type: ignore[arg-type]
    layer.weight.data, layer.bias.data = AFFINE
    return layer


def test_running_averages_move_as_pytorchs_do_over_several_steps() -> None:
    layer = torch_norm()
    statistics = {
        "it.mean": torch.zeros(CHANNELS).double(),
        "it.variance": torch.ones(CHANNELS).double(),
    }
    normalise = in_training("running", statistics)
    for step in range(5):
        x = features(f"step {step}", 6)
        torch.testing.assert_close(normalise("it", x, *AFFINE), layer(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(statistics["it.mean"], layer.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(statistics["it.variance"], layer.running_var, rtol=1e-12, atol=0)
    x = features("test", 2)
    torch.testing.assert_close(
        in_evaluation("running", statistics)("it", x, *AFFINE), layer.eval()(x)
    )


def test_half_precision_stays_half_by_given_statistics() -> None:
    statistics = {"it.mean": torch.zeros(CHANNELS), "it.variance": torch.ones(CHANNELS)}
    x, affine = features("x", 5).bfloat16(), [part.float() for part in AFFINE]
    assert in_evaluation("running", statistics)("it", x, *affine).dtype == torch.bfloat16


def test_a_running_forward_replaces_entries_and_leaves_the_old_tensors_alone() -> None:
    mean = torch.zeros(CHANNELS).double()
    statistics = {"it.mean": mean, "it.variance": torch.ones(CHANNELS).double()}
    in_training("running", statistics)("it", features("x", 5), *AFFINE)
    assert mean.abs().max() == 0
    assert statistics["it.mean"].abs().min() > 0


def test_cumulative_statistics_of_equal_batches_are_those_of_pytorchs_cumulative_average() -> None:
    batches = [features(f"batch {number}", 5) * (1 + number) for number in range(4)]
    layer = torch_norm(momentum=None)
    for x in batches:
        layer(x)
    statistics = statistics_of(summed(batches), {"it": CHANNELS}, "cumulative")
    torch.testing.assert_close(statistics["it.mean"], layer.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(statistics["it.variance"], layer.running_var, rtol=1e-12, atol=0)


def test_cumulative_statistics_weigh_a_batch_by_its_images() -> None:
    batches = [features("long", 9), 5 + features("short", 3)]
    statistics = statistics_of(summed(batches), {"it": CHANNELS}, "cumulative")
    moments = [(x.mean((0, 2, 3)), x.var((0, 2, 3))) for x in batches]
    torch.testing.assert_close(statistics["it.mean"], (9 * moments[0][0] + 3 * moments[1][0]) / 12)
    torch.testing.assert_close(
        statistics["it.variance"], (9 * moments[0][1] + 3 * moments[1][1]) / 12
    )


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(2, 7), min_size=1, max_size=6), side=st.integers(1, 4))
def test_pooled_statistics_are_those_of_all_images_at_once_however_they_are_cut(
    sizes: list[int], side: int
) -> None:
    batches = [number + features(f"cut {number}", size, side) for number, size in enumerate(sizes)]
    statistics = statistics_of(summed(batches), {"it": CHANNELS}, "pooled")
    whole = torch.cat(batches)
    torch.testing.assert_close(statistics["it.mean"], whole.mean((0, 2, 3)), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        statistics["it.variance"], whole.var((0, 2, 3)), rtol=1e-10, atol=1e-10
    )


def test_features_without_positions_are_recorded_as_images_of_one_pixel_are() -> None:
    x = features("flat", 5, side=1)
    flat, deep = summed([x[..., 0, 0]]), summed([x])
    assert float(flat["it.elements"]) == 5
    for name, value in deep.items():
        torch.testing.assert_close(flat[name], value)


def test_pooled_statistics_follow_the_papers_formula_over_clients() -> None:
    clients = [features("one", 4), 3 + features("two", 8), features("three", 2) * 2]
    counts = [x.numel() // CHANNELS for x in clients]
    means, variances = [x.mean((0, 2, 3)) for x in clients], [x.var((0, 2, 3)) for x in clients]
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / sum(counts)
    spread = sum(
        (n - 1) * v + n * (m - mean) ** 2 for n, m, v in zip(counts, means, variances, strict=True)
    )
    statistics = statistics_of(summed(clients), {"it": CHANNELS}, "pooled")
    torch.testing.assert_close(statistics["it.mean"], mean)
    torch.testing.assert_close(statistics["it.variance"], spread / (sum(counts) - 1))


def test_a_recorded_forward_is_a_training_forward() -> None:
    x = features("x", 5)
    assert torch.equal(recorded({}, "it", x, *AFFINE), batch("it", x, *AFFINE))


def test_sums_are_float64_whatever_the_images_are() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        sums: dict[str, Tensor] = {}
        recorded(sums, "it", features("x", 5).to(dtype), AFFINE[0].float(), AFFINE[1].float())
        assert {value.dtype for value in sums.values()} == {torch.float64}


def test_moments_of_half_precision_features_are_not_rounded_to_half_precision() -> None:
    x = features("x", 64).bfloat16()
    sums: dict[str, Tensor] = {}
    recorded(sums, "it", x, AFFINE[0].float(), AFFINE[1].float())
    torch.testing.assert_close(
        sums["it.mean"] / 64, x.double().mean((0, 2, 3)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "layer"),
    [
        ("group", nn.GroupNorm(2, CHANNELS)),
        ("instance", nn.InstanceNorm2d(CHANNELS, affine=True)),
        ("layer", nn.GroupNorm(1, CHANNELS)),
    ],
)
def test_norms_of_single_images_are_pytorchs(kind: str, layer: nn.Module) -> None:
    layer = layer.double()
    layer.weight.data, layer.bias.data = AFFINE
    x = features("x", 5)
    for normalise in (in_training(kind, {}), in_evaluation(kind, {})):
        torch.testing.assert_close(normalise("it", x, *AFFINE), layer(x), rtol=1e-12, atol=1e-12)


@given(channels=st.integers(2, 1024))
def test_group_norm_divides_the_channels_and_is_never_instance_norm(channels: int) -> None:
    count = groups("group", channels)
    assert channels % count == 0
    assert 1 <= count <= 32
    assert channels // count >= 2


def test_group_norm_has_32_groups_from_64_channels_on() -> None:
    assert [groups("group", channels) for channels in (1, 2, 16, 32, 64, 128, 7)] == [
        1,
        1,
        8,
        16,
        32,
        32,
        1,
    ]


def test_a_static_norm_without_statistics_uses_the_batch() -> None:
    x = features("x", 5)
    assert torch.equal(in_evaluation("static", {})("it", x, *AFFINE), batch("it", x, *AFFINE))


def test_statistics_of_no_image_are_refused() -> None:
    with pytest.raises(DataError, match="at least one batch"):
        statistics_of(summed([]), {"it": CHANNELS}, "cumulative")


def test_a_misspelt_formula_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pooled'"):
        statistics_of(summed([features("x", 3)]), {"it": CHANNELS}, "poold")


def test_every_norm_is_described() -> None:
    assert sorted(NORMS) == ["group", "instance", "layer", "running", "static"]

"""The two theorem studies: their problems meet the assumptions, and what they find is what can be
known otherwise.
"""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedglean.errors import ConfigError
from fedglean.inputs.views import view
from fedglean.randomness import generator
from fedglean.runs.config import make_method
from fedglean.runs.experiment import dataset_of, prepare
from fedglean.studies import StudyOptions
from fedglean_papers.reproduce import theorems
from fedglean_papers.reproduce.convergence_theorem import (
    BEND,
    IMAGES,
    METHODS,
    OUTPUT,
    SOFT,
    Problem,
    Visits,
    config_of,
    gaps,
    slope,
    split_of,
)
from fedglean_papers.reproduce.kernel_theorem import (
    World,
    estimate,
    semi_supervised_risk,
    supervised_risk,
)
from fedglean_papers.reproduce.theorems import THEOREMS, lengths, rates

WORLDS = [World(), World(0.5, 0.0), World(2.0, 1.0), World(alpha=2.0), World(q=0.5)]
TRUE = pytest.mark.parametrize(
    "world", WORLDS, ids=lambda world: f"{world.s}-{world.v}-{world.alpha}-{world.q}"
)


@TRUE
def test_masses_are_probabilities_and_the_bayes_risk_is_in_closed_form(world: World) -> None:
    for mass in (world.labelled, world.unlabelled):
        assert mass.min() >= 0 and mass.sum() == pytest.approx(1)
    if world.alpha == world.q == 1:
        # p_l is 4, 1, C, 1 over its parts with C = 2; the integral of (1 - |u|) / 2 is |u| / 2 -
        # u^2 / 4.
        def doubt(far: float) -> float:
            return far / 2 - far**2 / 4

        parts = (doubt(0.4), doubt(0.8) - doubt(0.4), doubt(1) - doubt(0.8))
        widths = (0.4, 0.4, 0.2)
        weights = (5, 3, 2)
        closed = sum(w * d for w, d in zip(weights, parts, strict=True))
        total = sum(w * d for w, d in zip(weights, widths, strict=True))
        assert (world.labelled * world.doubt).sum() == pytest.approx(closed / total, rel=1e-3)


@TRUE
def test_confident_points_are_as_frequent_as_a1_says(world: World) -> None:
    for delta in (0.02, 0.05, 0.1):
        assert world.unlabelled[world.doubt <= delta].sum() == pytest.approx(
            (2 * delta) ** world.s, rel=0.02
        )


@TRUE
def test_an_augmented_points_label_follows_m_as_a2_says(world: World) -> None:
    """E(b(x) | x') = b(x'), from the moved masses of each source side alone."""
    world, delta = replace(world, cells=1 << 12), 0.05
    masses = [np.zeros(world.cells), np.zeros(world.cells)]
    sent = np.where(world.doubt <= delta, world.unlabelled * (2 * world.doubt) ** world.v, 0)
    middle = world.cells // 2
    for source in range(1, world.cells, 16):
        if sent[source] > 0:
            one = np.zeros(world.cells)
            one[source] = sent[source]
            mirrored = np.zeros(world.cells)
            mirrored[-1 - source] = sent[source]
            moved = world.transmit(one) + world.transmit(mirrored)
            masses[0] += moved
            masses[1] += world.margin[source] * (world.transmit(one) - world.transmit(mirrored))
    reached = np.abs(world.margin) < 1 - 2 * delta
    assert np.allclose(masses[1][reached] / masses[0][reached], world.margin[reached], atol=2e-3)
    assert masses[0][middle:][: middle // 2].min() > 0


@TRUE
def test_moved_points_cover_the_test_region_as_a3_says(world: World) -> None:
    """The share of mass that is moved falls as delta^v, and it covers P_l's region at that rate."""
    first = (1 + world.margin) / 2
    coverage = []
    for delta in (0.02, 0.04, 0.08):
        stayed, moved = world.augment(first, delta)
        inner = np.abs(world.u) < 0.3
        share = moved.sum(0)[inner] / (stayed.sum() + moved.sum())
        coverage.append(float((share / world.labelled[inner]).min()))
    assert slope((0.02, 0.04, 0.08), coverage) == pytest.approx(world.v, abs=0.15)


@TRUE
def test_the_margin_and_smoothness_are_those_of_a4_and_a5(world: World) -> None:
    heights = (0.02, 0.04, 0.08)
    masses = [float(world.labelled[np.abs(world.margin) <= 2 * t].sum()) for t in heights]
    assert slope(heights, masses) == pytest.approx(world.alpha, abs=0.05)
    far = np.abs(world.margin[:, None][::512] - world.margin[None, ::512])
    near = np.abs(world.u[:, None][::512] - world.u[None, ::512]) ** world.q
    assert (far <= 2 * near + 1e-9).all()


def test_the_kernel_estimate_is_the_mean_label_within_the_bandwidth() -> None:
    world = World(cells=256)
    counts = world.draw_labelled(60, generator(3))
    where = np.repeat(np.arange(256), counts.sum(0).astype(int))
    label = np.concatenate([[0] * int(a) + [1] * int(b) for a, b in counts.T])
    found = estimate(counts, 0.05)
    for cell in range(256):
        near = label[np.abs(where - cell) <= int(0.05 * 256)]
        assert found[cell] == pytest.approx(near.mean() if len(near) else 0.0)


def test_the_risk_of_a_shifted_boundary_is_an_integral() -> None:
    """With alpha = q = 1: twice the integral of |m - 1/2| p_l over what is on the wrong side."""
    world = World()
    shift = 0.1
    density = 1 / (0.4 * 5 + 0.4 * 3 + 0.2 * 2)
    assert world.risk(world.u > shift) == pytest.approx(density * shift**2 / 2, rel=0.01)
    assert world.risk(world.u > 0) == 0


def test_large_samples_have_the_risk_that_smoothing_alone_gives() -> None:
    """The kernel moves the boundary to where 4 (h - u)^2 = (h + u)^2: a third of the bandwidth, in
    units of u.
    """
    world = World()
    labels = 10**12
    moved = 2 * world.labelled_bandwidth(labels) / 3
    density = 1 / (0.4 * 5 + 0.4 * 3 + 0.2 * 2)
    assert supervised_risk(world, labels, generator(0)) == pytest.approx(
        density * moved**2 / 2, rel=0.1
    )


def test_unlabelled_points_lower_the_risk_where_the_theorem_says_so() -> None:
    world = World(0.5, 0.0)
    labels = round((10**11) ** 0.79)
    without = np.mean([supervised_risk(world, labels, generator(seed)) for seed in range(3)])
    with_them = np.mean(
        [semi_supervised_risk(world, 10**11, labels, generator(seed)) for seed in range(3)]
    )
    assert with_them < 0.6 * without


def test_fitted_rates_are_near_the_predicted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = {"easy": World(0.5, 0.0, cells=1 << 13), "hard": World(1.0, 1.0, cells=1 << 13)}
    monkeypatch.setattr("fedglean_papers.reproduce.theorems.WORLDS", worlds)
    found = rates(4)
    for row, world in zip(found.values(), worlds.values(), strict=True):
        assert row["predicted"] == world.rate
        assert row["fitted"] == pytest.approx(world.rate, abs=0.06)
    assert found["easy"]["fitted"] > found["hard"]["fitted"]


def test_the_kernel_study_leaves_numbers_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    THEOREMS["semifl-theorem"].run(StudyOptions(tmp_path, scale=0.05, cell="labels", quiet=True))
    numbers = json.loads((tmp_path / "result-labels.json").read_bytes())["found"]["labels"]
    assert (tmp_path / "figure-labels.png").stat().st_size > 5000
    assert numbers["helps_up_to"] in numbers["n_u"]
    index = numbers["n_u"].index(numbers["helps_up_to"])
    assert (
        numbers["balanced"][index] < numbers["alone"]
        and "unlabelled points help" in capsys.readouterr().out
    )


def test_the_critical_share_of_labels_is_read_off_all_slopes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few samples make slopes that rise and fall; the crossing of one of them alone would be
    anywhere.
    """
    monkeypatch.setattr(theorems, "FITTED", [10**10, 10**12])
    monkeypatch.setattr(
        theorems,
        "_mean_risk",
        lambda world, size, labels, repeats: wanted[round(math.log(labels, size), 2)](size),
    )
    monkeypatch.setattr(theorems, "supervised_risk", lambda world, labels, draw: 1.0)
    noise = dict(zip(theorems.ZETAS, (0, 0.02, -0.03, 0.02, -0.03, 0.02, 0), strict=True))
    wanted = {zeta: partial(_power, 0.4 * (zeta - 0.7) + noise[zeta]) for zeta in theorems.ZETAS}
    assert theorems.critical(1)["found"] == pytest.approx(0.7, abs=1e-3)


def _power(exponent: float, size: int) -> float:
    return float(size) ** exponent


def test_the_gradient_by_hand_is_autograds() -> None:
    """Against the package's own losses, client by client, at a random model."""
    config = config_of("Fed-SHVR", Visits(6), 10)
    experiment = prepare(config, split_of(dataset_of(config).train_labels))
    problem, method = Problem.of(experiment), make_method(config)
    model = experiment.start().model
    weight = torch.nn.Parameter(model.parameters["weight"].clone())
    recipe, total = experiment.evaluator.setting.recipe, torch.zeros((), dtype=torch.float64)
    federation = experiment.federation
    soft = problem.soft_labels(weight.detach())
    for share, known, unknown, label in zip(
        problem.weights, federation.labelled, federation.unlabelled, soft, strict=True
    ):
        seen = view("plain", known.store[known.index], known.index, recipe, torch.float64).flatten(
            1
        )
        unseen = view(
            "plain", unknown.store[unknown.index], unknown.index, recipe, torch.float64
        ).flatten(1)
        assert torch.equal(label, method.soft_labels((unseen @ weight.T).softmax(-1).detach(), 1.0))
        logs = (unseen @ weight.T).log_softmax(-1)
        loss = torch.nn.functional.cross_entropy(seen @ weight.T, known.label)
        loss = loss - (label * logs).sum(-1).mean() + OUTPUT * (logs.exp() * logs).sum(-1).mean()
        total = total + share * loss
    total.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.allclose(problem.gradient(weight.detach(), soft), weight.grad, atol=1e-12)


def test_the_smoothness_bounds_every_pair_of_models() -> None:
    config = config_of("Fed-SHVR", Visits(6), 10)
    experiment = prepare(config, split_of(dataset_of(config).train_labels))
    problem = Problem.of(experiment)
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        a, b = (3 * torch.randn(4, 4, generator=draw, dtype=torch.float64) for _ in range(2))
        b = a + 0.1 * b
        soft = [problem.soft_labels(each) for each in (a, b)]
        moved = (problem.gradient(a, soft[0]) - problem.gradient(b, soft[1])).norm()
        labels = sum(float((x - y).square().sum()) for x, y in zip(*soft, strict=True))
        assert moved <= problem.smoothness() * math.sqrt(float((a - b).square().sum()) + labels)


def test_the_bend_of_the_divergence_is_never_larger() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(300, 4, generator=draw, dtype=torch.float64)

    def divergence(z: torch.Tensor) -> torch.Tensor:
        return (z.softmax(-1) * z.log_softmax(-1)).sum()

    bends = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(divergence)))(logits)
    assert torch.linalg.matrix_norm(bends, 2).max() < BEND


def test_the_step_size_keeps_to_its_bounds_from_the_stated_round_on() -> None:
    visits, smoothness = Visits(6), 1.6
    assert visits.steps == [1, 1, 2, 2] and visits.mean_steps == pytest.approx(
        (11 * 2 + 17 * 4) / sum(IMAGES)
    )
    enough = visits.enough_rounds(smoothness)
    assert visits.rate(enough) <= visits.largest_rate(smoothness) < visits.rate(enough - 1)
    assert visits.largest_rate(smoothness) <= 4 / 17 * SOFT / (
        visits.mean_steps * (2 * smoothness**2 + 1)
    )


def test_gaps_are_of_the_models_that_the_run_loop_made() -> None:
    """The gap falls a lot for Fed-SHVR; Fed-SVR weighs clients by their steps and stays away from
    the solution.
    """
    found = {method: gaps(method, Visits(2), 60, 2)[0] for method in METHODS}
    assert found["Fed-SHVR"][-1] < 0.02 * found["Fed-SHVR"][0]
    assert found["Fed-SVR"][30:].mean() > 5 * found["Fed-SHVR"][30:].mean()
    assert found["Fed-SH"][50:].mean() > 1.1 * found["Fed-SHVR"][50:].mean()


def test_a_study_that_was_stopped_goes_on_with_the_points_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, played = StudyOptions(tmp_path, scale=0.04, cell="long", quiet=True), []

    def stopped(method: str, visits: Visits, rounds: int, seeds: int) -> Any:
        played.append((method, rounds, seeds))
        if len(played) == 6:
            raise KeyboardInterrupt
        return gaps(method, visits, rounds, seeds)

    monkeypatch.setattr(theorems, "gaps", stopped)
    with pytest.raises(KeyboardInterrupt):
        THEOREMS["fed-shvr-theorem"].run(asked)
    THEOREMS["fed-shvr-theorem"].run(asked)
    assert played[5] == played[6] and len(played) == 13 and len(set(played)) == 12
    written = json.loads((tmp_path / "result-long.json").read_bytes())
    assert written["seeds"] == 4
    row = written["found"]["long"]["methods"]["Fed-SH"]
    assert row["min"][1] == float(gaps("Fed-SH", Visits(2), 8, 4)[0].min())


def test_every_run_of_a_slope_has_a_length_of_its_own() -> None:
    assert lengths("long", 0.04) == [4, 8, 16, 32] and lengths("short", 1) == [
        1000,
        2000,
        4000,
        8000,
    ]
    with pytest.raises(ConfigError, match=r"use at least --scale 0\.004"):
        lengths("short", 0.0039)

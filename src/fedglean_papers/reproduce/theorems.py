"""Two theorems, each measured on a problem that meets its assumptions."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedglean.errors import ConfigError
from fedglean.randomness import fold_int, generator
from fedglean.report.plots import COLOURS
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.convergence_theorem import METHODS, Visits, gaps, slope
from fedglean_papers.reproduce.kernel_theorem import World, semi_supervised_risk, supervised_risk
from fedglean_papers.reproduce.panels import GREY, full_title, keep, new_canvas
from fedglean_papers.reproduce.trainings import choose, note

#: The two exponents varied, then margin and smoothness.
WORLDS = {
    "s=0.5 v=0": World(0.5, 0.0),
    "s=1 v=0": World(1.0, 0.0),
    "s=0.5 v=1": World(0.5, 1.0),
    "s=1 v=1": World(1.0, 1.0),
    "s=2 v=1": World(2.0, 1.0),
    "s=1 v=1 alpha=2": World(1.0, 1.0, alpha=2.0),
    "s=1 v=1 q=0.5": World(1.0, 1.0, q=0.5),
}
PLAIN, EASY = "s=1 v=1", "s=0.5 v=0"
SIZES = [10**power for power in range(4, 14)]
#: The rate is one of large samples; before, noise still falls faster than bias.
FITTED = SIZES[5:]
LABELS = 20000
ZETAS = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85)
REPEATS = 40

Numbers = dict[str, Any]


def _semifl(asked: StudyOptions) -> None:
    parts = {
        "labels": (labels_alone, _draw_labels, _tell_labels),
        "rates": (rates, _draw_rates, _tell_rates),
        "critical": (critical, _draw_critical, _tell_critical),
    }
    repeats = max(3, round(REPEATS * asked.scale))
    title = "SemiFL, Theorem 1: a kernel classifier with and without unlabelled points"
    if asked.scale != 1:
        title += f"\n[{repeats} samples a point instead of {REPEATS}]"
    found: dict[str, Numbers] = {}
    for cell in choose(asked.cell, tuple(parts)):
        note(f"{cell}: {repeats} samples per point", asked)
        measure, _, _ = parts[cell]
        found[cell] = measure(repeats)
    _keep(asked, title, found, {cell: draw for cell, (_, draw, _) in parts.items()})
    for cell, numbers in found.items():
        _, _, tell = parts[cell]
        tell(numbers)


def labels_alone(repeats: int) -> Numbers:
    """A fixed number of labels: what unlabelled points do, and where they stop helping."""
    world = WORLDS[EASY]
    draw = generator(fold_int(0, "labels alone"))
    alone = float(np.mean([supervised_risk(world, LABELS, draw) for _ in range(10 * repeats)]))
    sizes = [round(10 ** (power / 2)) for power in range(6, 23)]
    balanced = [_mean_risk(world, size, LABELS, repeats) for size in sizes]
    as_picked = [_mean_risk(world, size, LABELS, repeats, balanced=False) for size in sizes]
    better = [size for size, risk in zip(sizes, balanced, strict=True) if risk < alone]
    return {
        "labels": LABELS,
        "alone": alone,
        "n_u": sizes,
        "helps_from": min(better, default=0),
        "helps_up_to": max(better, default=0),
        "balanced": balanced,
        "as_picked": as_picked,
    }


def rates(repeats: int) -> Numbers:
    """Risk against n_u in every world.

    There are n_l = n_u^zeta labels, enough for (A7) and few enough for eq. (14).
    """
    table = {}
    for name, world in WORLDS.items():
        zeta = (world.enough + 2 * world.critical) / 3
        risks = {size: _mean_risk(world, size, round(size**zeta), repeats) for size in SIZES}
        table[name] = {
            "zeta": zeta,
            "n_u": SIZES,
            "risk": list(risks.values()),
            "fitted": -slope(FITTED, [risks[size] for size in FITTED]),
            "predicted": world.rate,
        }
    return table


def critical(repeats: int) -> Numbers:
    """How fast the ratio of the two risks grows with n_u, by the exponent zeta of n_l = n_u^zeta.

    By the theorem the slopes lie on a line: zeta times the exponent of n_l, less that of n_u. It
    is 0 where unlabelled points stop helping.
    """
    world, slopes = WORLDS[PLAIN], []
    for zeta in ZETAS:
        ratios = []
        for size in FITTED:
            labels = round(size**zeta)
            draw = generator(fold_int(0, "critical", labels))
            alone = np.mean([supervised_risk(world, labels, draw) for _ in range(repeats)])
            ratios.append(_mean_risk(world, size, labels, repeats) / float(alone))
        slopes.append(slope(FITTED, ratios))
    rise, start = np.polyfit(ZETAS, slopes, 1)
    return {
        "zeta": list(ZETAS),
        "slope": slopes,
        "found": float(-start / rise),
        "predicted": world.critical,
        "enough": world.enough,
    }


def _mean_risk(
    world: World, unlabelled: int, labels: int, repeats: int, balanced: bool = True
) -> float:
    draw = generator(fold_int(0, "risk", unlabelled, labels))
    risks = []
    for _ in range(repeats):
        risks.append(semi_supervised_risk(world, unlabelled, labels, draw, balanced))
    return float(np.mean(risks))


def _draw_labels(axes: Axes, numbers: Numbers) -> None:
    alone = f"{numbers['labels']} labels alone"
    axes.axhline(numbers["alone"], color=GREY, linestyle="--", label=alone)
    ways = (("balanced", "sides balanced", COLOURS[0]), ("as_picked", "as picked", COLOURS[1]))
    for way, word, colour in ways:
        text = f"with them, {word}"
        axes.plot(numbers["n_u"], numbers[way], "o-", ms=3, color=colour, label=text)
    _use_logs(axes, "unlabelled points", "excess risk", "fixed number of labels")


def _draw_rates(axes: Axes, numbers: Numbers) -> None:
    for number, (name, row) in enumerate(numbers.items()):
        colour = COLOURS[number % len(COLOURS)]
        text = f"{name}: {row['fitted']:.3f} ({row['predicted']:.3f})"
        axes.plot(row["n_u"], row["risk"], "o", ms=3, color=colour, label=text)
        anchor = row["risk"][-1]
        law = [anchor * (size / row["n_u"][-1]) ** -row["predicted"] for size in FITTED]
        axes.plot(FITTED, law, color=colour, linewidth=1)
    axes.set_ylim(1e-11, 0.1)  # room for the legend
    _use_logs(axes, "unlabelled points", "excess risk", "rate: fitted (predicted, the line)")


def _draw_critical(axes: Axes, numbers: Numbers) -> None:
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.plot(numbers["zeta"], numbers["slope"], "o-", ms=4, color=COLOURS[0])
    for name, colour, style in (("predicted", COLOURS[1], "-"), ("found", COLOURS[0], ":")):
        value = numbers[name]
        axes.axvline(value, color=colour, linestyle=style, label=f"{name} {value:.3f}")
    axes.set_xlabel("zeta, where labels = n_u^zeta")
    axes.set_ylabel("slope of log (risk with / risk without)")
    _label(axes, "above 0, unlabelled points do not help")


def _tell_labels(numbers: Numbers) -> None:
    low, high = numbers["helps_from"], numbers["helps_up_to"]
    print(f"with {LABELS} labels, unlabelled points help from n_u = {low:.0e} to {high:.0e}")


def _tell_rates(numbers: Numbers) -> None:
    for name, row in numbers.items():
        fit, law = row["fitted"], row["predicted"]
        off = 100 * (fit / law - 1)
        print(f"{name}: risk falls as n_u^-{fit:.3f}, predicted {law:.3f} ({off:+.0f} %)")


def _tell_critical(numbers: Numbers) -> None:
    found, predicted = numbers["found"], numbers["predicted"]
    print(f"unlabelled points stop helping at zeta {found:.3f}, predicted {predicted:.3f}")


#: Batches that make one or two steps of a visit, within the theorem's bounds, and five or eight,
#: far outside.
VISITS = {"short": Visits(6, "faint-digits"), "long": Visits(2)}
ROUNDS = {"short": (1000, 2000, 4000, 8000), "long": (100, 200, 400, 800)}
LEAST = 4
SEEDS = 4


def _fed_shvr(asked: StudyOptions) -> None:
    asked = replace(asked, seeds=max(asked.seeds, SEEDS))
    title = full_title("Fed-SHVR, Theorem 1: the smallest gap within T rounds", asked)
    rounds = {cell: lengths(cell, asked.scale) for cell in choose(asked.cell, tuple(VISITS))}
    found = {cell: convergence(cell, rounds[cell], asked) for cell in rounds}
    _keep(asked, title, found, dict.fromkeys(found, _draw_gaps))
    for cell, numbers in found.items():
        steps, enough = numbers["steps"], numbers["enough"]
        print(f"{cell} visits, {steps} steps: the step size keeps to its bounds from T = {enough}")
        for method, row in numbers["methods"].items():
            least, late = row["slope"], row["late"]
            print(
                f"  {method}: min g_t goes as T^{least:.2f}, the later half's mean as T^{late:.2f}"
            )
    print("the theorem: Fed-SHVR's min g_t falls at least as fast as T^-0.5")


def lengths(cell: str, scale: float) -> list[int]:
    """How many rounds its runs have.

    Each is a point of the slope: none is moved up to where another one lies.
    """
    shortest = ROUNDS[cell][0]
    if shortest * scale < LEAST:
        raise ConfigError(
            f"--scale {scale:g} leaves '{cell}' fewer than {LEAST} rounds a run; use at least "
            f"--scale {LEAST / shortest:g}"
        )
    return [round(rounds * scale) for rounds in ROUNDS[cell]]


def convergence(cell: str, rounds: Sequence[int], asked: StudyOptions) -> Numbers:
    """Smallest gap and mean gap of the later half of the rounds, by method and T."""
    visits = VISITS[cell]
    methods: dict[str, Numbers] = {}
    smoothness = 0.0
    for method in METHODS:
        points = [_measure(cell, method, T, asked) for T in rounds]
        least, late = [point["min"] for point in points], [point["late_mean"] for point in points]
        methods[method] = {
            "min": least,
            "slope": slope(rounds, least),
            "late_mean": late,
            "late": slope(rounds, late),
        }
        smoothness = points[-1]["smoothness"]
    return {
        "cell": cell,
        "T": list(rounds),
        "smoothness": smoothness,
        "enough": visits.enough_rounds(smoothness),
        "steps": visits.steps,
        "methods": methods,
    }


def _measure(cell: str, method: str, rounds: int, asked: StudyOptions) -> dict[str, float]:
    """A point of the picture, kept for the command that goes on: it takes up to minutes."""
    path = asked.out / "points" / f"{cell}-{method}-{rounds}-seeds{asked.seeds}.json"
    if not path.exists():
        note(f"{cell} visits, {method}, T = {rounds}", asked)
        mean, problem = gaps(method, VISITS[cell], rounds, asked.seeds)
        late = float(mean[len(mean) // 2 :].mean())
        point = {"min": float(mean.min()), "late_mean": late, "smoothness": problem.smoothness()}
        make_folder(path.parent)
        write_whole(path, json.dumps(point).encode())
    known: dict[str, float] = json.loads(path.read_bytes())
    return known


def _draw_gaps(axes: Axes, numbers: Numbers) -> None:
    rounds: Sequence[int] = numbers["T"]
    for colour, (method, row) in zip(COLOURS, numbers["methods"].items(), strict=False):
        text = f"{method}: slope {row['slope']:.2f}"
        axes.plot(rounds, row["min"], "o-", ms=4, color=colour, label=text)
        axes.plot(rounds, row["late_mean"], ":", color=colour, linewidth=1)
    top = numbers["methods"]["Fed-SHVR"]["min"][0] * 1.5
    law = [top * (T / rounds[0]) ** -0.5 for T in rounds]
    axes.plot(rounds, law, "--", color=GREY, label="slope -0.5")
    enough, steps = numbers["enough"], numbers["steps"]
    if enough <= rounds[-1]:
        axes.axvline(enough, color="0.7", linewidth=0.8, label="bounds hold from here on")
    title = f"{min(steps)} to {max(steps)} steps a visit"
    _use_logs(axes, "rounds T", "min over t of g_t  (dotted: mean of the later half)", title)
    axes.set_xticks(rounds, [str(T) for T in rounds])
    axes.minorticks_off()


def _keep(
    asked: StudyOptions,
    title: str,
    found: Mapping[str, Numbers],
    draws: Mapping[str, Callable[[Axes, Numbers], None]],
) -> None:
    """Draw a panel for each part, and write what was found."""
    canvas = new_canvas(max(7.0, 1 + 4.8 * len(found)), 4.6, title)
    for place, (cell, numbers) in enumerate(found.items(), start=1):
        draws[cell](canvas.add_subplot(1, len(found), place), numbers)
    keep(asked, title, canvas, {"found": dict(found)})
    print(title)


def _use_logs(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    _label(axes, title)


def _label(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(fontsize=8, framealpha=0.6)
    axes.grid(alpha=0.25)


THEOREMS: dict[str, Study] = {
    "semifl-theorem": Study(
        "SemiFL, Theorem 1: a kernel classifier with and without unlabelled points",
        ("labels", "rates", "critical"),
        _semifl,
        ("--scale",),
    ),
    "fed-shvr-theorem": Study(
        "Fed-SHVR, Theorem 1: the smallest optimality gap against the number of rounds",
        tuple(VISITS),
        _fed_shvr,
        ("--seeds", "--scale"),
    ),
}

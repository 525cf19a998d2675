"""Two theorems, each measured on a problem that meets its assumptions: what is predicted beside
what is found.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from fedglean.errors import ConfigError
from fedglean.randomness import fold_int, generator
from fedglean.report.plots import COLOURS
from fedglean.sealed import make_folder, write_whole
from fedglean.studies import Study, StudyOptions
from fedglean_papers.reproduce.convergence_theorem import METHODS, Visits, gaps, slope
from fedglean_papers.reproduce.kernel_theorem import World, semi_supervised_risk, supervised_risk
from fedglean_papers.reproduce.panels import keep, shown_title
from fedglean_papers.reproduce.trainings import note, one_of

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
    repeats, made = (
        max(3, round(REPEATS * asked.scale)),
        {"labels": labels_alone, "rates": rates, "critical": critical},
    )
    title = "SemiFL, Theorem 1: a kernel classifier with and without unlabelled points"
    title += "" if asked.scale == 1 else f"\n[{repeats} samples a point instead of {REPEATS}]"
    found: dict[str, Numbers] = {}
    for cell in one_of(asked.cell, tuple(made)):
        note(f"{cell}: {repeats} samples per point", asked)
        found[cell] = made[cell](repeats)
    canvas, places = _canvas(len(found), title)
    for axes, (cell, numbers) in zip(places, found.items(), strict=True):
        {"labels": _draw_labels, "rates": _draw_rates, "critical": _draw_critical}[cell](
            axes, numbers
        )
    _finish(asked, title, canvas, found)
    if "labels" in found:
        low, high = (found["labels"][name] for name in ("helps_from", "helps_up_to"))
        print(f"with {LABELS} labels, unlabelled points help from n_u = {low:.0e} to {high:.0e}")
    for name, row in found.get("rates", {}).items():
        fit, law = row["fitted"], row["predicted"]
        print(
            f"{name}: risk falls as n_u^-{fit:.3f}, predicted {law:.3f} "
            f"({100 * (fit / law - 1):+.0f} %)"
        )
    if "critical" in found:
        numbers = found["critical"]
        print(
            f"unlabelled points stop helping at zeta {numbers['found']:.3f}, predicted "
            f"{numbers['predicted']:.3f}"
        )


def rates(repeats: int) -> Numbers:
    """Risk against n_u in every world, with n_l = n_u^zeta labels, enough for (A7) and few enough
    for eq. (14).
    """
    table = {}
    for name, world in WORLDS.items():
        zeta = (world.enough + 2 * world.critical) / 3
        risks = {size: _mean_risk(world, size, round(size**zeta), repeats) for size in SIZES}
        fit = -slope(FITTED, [risks[size] for size in FITTED])
        table[name] = {"zeta": zeta, "n_u": SIZES, "risk": list(risks.values())}
        table[name] |= {"fitted": fit, "predicted": world.rate}
    return table


def labels_alone(repeats: int) -> Numbers:
    """A fixed number of labels: what more and more unlabelled points do, and where they stop
    helping.
    """
    world = WORLDS[EASY]
    draw = generator(fold_int(0, "labels alone"))
    alone = float(np.mean([supervised_risk(world, LABELS, draw) for _ in range(10 * repeats)]))
    sizes = [round(10 ** (power / 2)) for power in range(6, 23)]
    risks = {
        way: [_mean_risk(world, n, LABELS, repeats, way) for n in sizes] for way in (True, False)
    }
    better = [n for n, risk in zip(sizes, risks[True], strict=True) if risk < alone]
    common = {
        "labels": LABELS,
        "alone": alone,
        "n_u": sizes,
        "helps_from": min(better, default=0),
        "helps_up_to": max(better, default=0),
    }
    return {**common, "balanced": risks[True], "as_picked": risks[False]}


def critical(repeats: int) -> Numbers:
    """How fast the ratio of the two risks grows with n_u, by the exponent zeta of n_l = n_u^zeta;
    where it is 0.

    By the theorem the slopes lie on a line: zeta times the exponent of n_l, less that of n_u.
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
    found = float(-start / rise)
    return {
        "zeta": list(ZETAS),
        "slope": slopes,
        "found": found,
        "predicted": world.critical,
        "enough": world.enough,
    }


def _mean_risk(
    world: World, unlabelled: int, labels: int, repeats: int, balanced: bool = True
) -> float:
    draw = generator(fold_int(0, "risk", unlabelled, labels))
    return float(
        np.mean(
            [
                semi_supervised_risk(world, unlabelled, labels, draw, balanced)
                for _ in range(repeats)
            ]
        )
    )


def _draw_labels(axes: Axes, numbers: Numbers) -> None:
    axes.axhline(
        numbers["alone"], color="#555555", linestyle="--", label=f"{numbers['labels']} labels alone"
    )
    axes.plot(
        numbers["n_u"],
        numbers["balanced"],
        "o-",
        ms=3,
        color=COLOURS[0],
        label="with them, sides balanced",
    )
    axes.plot(
        numbers["n_u"],
        numbers["as_picked"],
        "o-",
        ms=3,
        color=COLOURS[1],
        label="with them, as picked",
    )
    _loglog(axes, "unlabelled points", "excess risk", "fixed number of labels")


def _draw_rates(axes: Axes, numbers: Numbers) -> None:
    for number, (name, row) in enumerate(numbers.items()):
        colour = COLOURS[number % len(COLOURS)]
        text = f"{name}: {row['fitted']:.3f} ({row['predicted']:.3f})"
        axes.plot(row["n_u"], row["risk"], "o", ms=3, color=colour, label=text)
        anchor = row["risk"][-1]
        law = [anchor * (size / row["n_u"][-1]) ** -row["predicted"] for size in FITTED]
        axes.plot(FITTED, law, color=colour, linewidth=1)
    axes.set_ylim(1e-11, 0.1)  # room for the legend
    _loglog(axes, "unlabelled points", "excess risk", "rate: fitted (predicted, the line)")


def _draw_critical(axes: Axes, numbers: Numbers) -> None:
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.plot(numbers["zeta"], numbers["slope"], "o-", ms=4, color=COLOURS[0])
    axes.axvline(
        numbers["predicted"], color=COLOURS[1], label=f"predicted {numbers['predicted']:.3f}"
    )
    axes.axvline(
        numbers["found"], color=COLOURS[0], linestyle=":", label=f"found {numbers['found']:.3f}"
    )
    axes.set(
        xlabel="zeta, where labels = n_u^zeta", ylabel="slope of log (risk with / risk without)"
    )
    axes.set_title("above 0, unlabelled points do not help", loc="left", fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.25)


#: Batches that make one or two steps of a visit, within the theorem's bounds, and five or eight,
#: far outside.
VISITS = {"short": Visits(6, "faint-digits"), "long": Visits(2)}
ROUNDS = {"short": (1000, 2000, 4000, 8000), "long": (100, 200, 400, 800)}
LEAST = 4
SEEDS = 4


def _fed_shvr(asked: StudyOptions) -> None:
    asked = replace(asked, seeds=max(asked.seeds, SEEDS))
    title = shown_title("Fed-SHVR, Theorem 1: the smallest gap within T rounds", asked)
    rounds = {cell: _shortened(cell, asked.scale) for cell in one_of(asked.cell, tuple(VISITS))}
    found = {cell: convergence(cell, lengths, asked) for cell, lengths in rounds.items()}
    canvas, places = _canvas(len(found), title)
    for axes, numbers in zip(places, found.values(), strict=True):
        _draw_gaps(axes, numbers)
    _finish(asked, title, canvas, found)
    for cell, numbers in found.items():
        print(
            f"{cell} visits, {numbers['steps']} steps: the step size keeps to its bounds from T = "
            f"{numbers['enough']}"
        )
        for method, row in numbers["methods"].items():
            print(
                f"  {method}: min g_t goes as T^{row['slope']:.2f}, the later half's mean as "
                f"T^{row['late']:.2f}"
            )
    print("the theorem: Fed-SHVR's min g_t falls at least as fast as T^-0.5")


def _shortened(cell: str, scale: float) -> list[int]:
    """The lengths of its runs. Each is a point of the slope: none is moved up to where another one
    lies.
    """
    shortest, *_ = lengths = [T * scale for T in ROUNDS[cell]]
    if shortest < LEAST:
        least = LEAST / ROUNDS[cell][0]
        raise ConfigError(
            f"--scale {scale:g} leaves '{cell}' fewer than {LEAST} rounds a run; use at least "
            f"--scale {least:g}"
        )
    return [round(T) for T in lengths]


def convergence(cell: str, rounds: Sequence[int], asked: StudyOptions) -> Numbers:
    """Smallest gap and mean gap of the later half of the rounds, by method and T."""
    visits = VISITS[cell]
    methods: dict[str, Numbers] = {}
    smoothness = 0.0
    for method in METHODS:
        found = [_measured(cell, method, T, asked) for T in rounds]
        least, late = [each["min"] for each in found], [each["late_mean"] for each in found]
        smoothness = found[-1]["smoothness"]
        methods[method] = {
            "min": least,
            "slope": slope(rounds, least),
            "late_mean": late,
            "late": slope(rounds, late),
        }
    bounds = {
        "smoothness": smoothness,
        "enough": visits.enough_rounds(smoothness),
        "steps": visits.steps,
    }
    return {"cell": cell, "T": list(rounds), **bounds, "methods": methods}


def _measured(cell: str, method: str, rounds: int, asked: StudyOptions) -> dict[str, float]:
    """A point of the picture. It takes up to minutes, so it is kept for the command that goes
    on.
    """
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
    for number, (method, row) in enumerate(numbers["methods"].items()):
        axes.plot(
            rounds,
            row["min"],
            "o-",
            ms=4,
            color=COLOURS[number],
            label=f"{method}: slope {row['slope']:.2f}",
        )
        axes.plot(rounds, row["late_mean"], ":", color=COLOURS[number], linewidth=1)
    top = numbers["methods"]["Fed-SHVR"]["min"][0] * 1.5
    axes.plot(
        rounds,
        [top * (T / rounds[0]) ** -0.5 for T in rounds],
        "--",
        color="#555555",
        label="slope -0.5",
    )
    if numbers["enough"] <= rounds[-1]:
        axes.axvline(
            numbers["enough"], color="0.7", linewidth=0.8, label="bounds hold from here on"
        )
    steps = f"{min(numbers['steps'])} to {max(numbers['steps'])} steps a visit"
    _loglog(axes, "rounds T", "min over t of g_t  (dotted: mean of the later half)", steps)
    axes.set_xticks(rounds, [str(T) for T in rounds])
    axes.minorticks_off()


def _loglog(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(fontsize=8, framealpha=0.6)
    axes.grid(alpha=0.25)


def _canvas(panels: int, title: str) -> tuple[Canvas, list[Axes]]:
    canvas = Canvas(figsize=(max(7.0, 1 + 4.8 * panels), 4.6), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(title, x=0.01, ha="left", fontsize=11)
    return canvas, list(canvas.subplots(1, panels, squeeze=False)[0])


def _finish(asked: StudyOptions, title: str, canvas: Canvas, found: Mapping[str, Numbers]) -> None:
    make_folder(asked.out)
    canvas.savefig(asked.file("figure.png"), dpi=110)
    keep(asked, title, (), {"found": dict(found)})
    print(title)


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

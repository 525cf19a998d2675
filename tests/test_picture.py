"""The picture of the curves, and the words and tables of the terminal."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from fedglean.report.plots import curves_figure, learning_curves, spread_out
from fedglean.report.terminal import (
    Terminal,
    demo_table,
    duration,
    mean_line,
    names_table,
    results_table,
    size,
)
from fedglean.runs.config import configure
from fedglean.runs.run import Run, Runs


def run_of(final: bool = False, **accuracies: list[float]) -> Run:
    """A run whose accuracies by predictor are given outright."""
    rounds = len(next(iter(accuracies.values())))
    history: list[dict[str, Any]] = []
    for place in range(rounds):
        line = {"round": place + 1, "accuracy": {n: a[place] for n, a in accuracies.items()}}
        history.append(line | {"seconds": 75 / rounds, "bytes_down": 0, "bytes_up": 0})
    history[0] |= {"bytes_down": 1_500_000, "bytes_up": 2_000}
    if final:
        history[-1] |= {"round": rounds - 1, "final": True}
    return Run(configure("semifl", rounds=rounds), history)


def seeds_of(*runs: Run) -> Runs:
    return Runs(runs[0].config, runs)


def several(model: list[float], *others: list[float]) -> Runs:
    return seeds_of(*(run_of(model=each) for each in (model, *others)))


def texts(results: dict[str, Runs]) -> list[str]:
    return [text.get_text() for text in curves_figure(results).axes[0].texts]


def printed(*things: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(*things)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_single_round_is_no_fraction_of_one_on_the_axis() -> None:
    ticks = curves_figure({"a": several([0.1])}).axes[0].get_xticks()
    assert all(tick == int(tick) for tick in ticks)


def test_the_picture_is_a_png_of_a_readable_size(tmp_path: Path) -> None:
    path = learning_curves({"a": several([0.1, 0.5, 0.4])}, tmp_path / "curves.png", "title")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (1125, 675)


def test_the_number_is_the_last_accuracy_and_the_dot_the_best() -> None:
    axes = curves_figure({"a": several([0.1, 0.5, 0.4])}).axes[0]
    line, dot = axes.lines
    assert list(line.get_ydata()) == pytest.approx([10, 50, 40])
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([2], pytest.approx([50]))
    assert axes.texts[0].get_text() == "a  40.0 %"


def test_several_seeds_are_drawn_as_their_mean_with_a_band_from_worst_to_best() -> None:
    axes = curves_figure({"a": several([0.1, 0.5], [0.3, 0.6])}).axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([20, 55])
    corners = axes.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in np.round(corners, 6)} >= {
        (1, 10),
        (1, 30),
        (2, 50),
        (2, 60),
    }


def test_a_lone_run_shows_all_its_predictors_and_a_comparison_only_the_first() -> None:
    hassle = seeds_of(run_of(EM=[0.3], SM=[0.2], UM=[0.1]))
    assert {text.split("  ")[0] for text in texts({"hassle": hassle})[:3]} == {
        "hassle EM",
        "hassle SM",
        "hassle UM",
    }
    both = {"hassle": hassle, "fedavg": several([0.5])}
    assert "fedavg  50.0 %" in texts(both)
    assert len(curves_figure(both).axes[0].lines) == 4


def test_what_comes_after_the_last_round_is_a_point_of_its_own() -> None:
    axes = curves_figure({"a": seeds_of(run_of(final=True, model=[0.1, 0.5, 0.4]))}).axes[0]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3]


def test_rounds_without_a_test_are_left_out() -> None:
    runs = several([0.1, 0.5, 0.4])
    del runs.history[1]["accuracy"]
    assert list(curves_figure({"a": runs}).axes[0].lines[0].get_xdata()) == [1, 3]


@given(st.lists(st.floats(0, 1), max_size=8).map(sorted), st.floats(0.01, 0.3))
def test_labels_keep_their_order_and_distance_and_move_only_if_they_must(
    places: list[float], gap: float
) -> None:
    moved = spread_out(places, gap)
    assert len(moved) == len(places)
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places))
    if all(b - a >= gap for a, b in itertools.pairwise(places)):
        assert moved == pytest.approx(places)


def test_a_result_tells_last_and_best_apart_with_time_and_bytes() -> None:
    runs = seeds_of(run_of(EM=[0.1, 0.5, 0.4], SM=[0.2, 0.1, 0.3]))
    table = printed(results_table(runs))
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:5]]
        for line in table.splitlines()
        if "│" in line
    }
    assert rows["EM"] == ["40.0 %", "50.0 %", "2"]
    assert rows["SM"] == ["30.0 %", "30.0 %", "3"]
    assert "1 min 15 s, 1.5 MB down, 2.0 kB up" in table


def test_a_comparison_of_seeds_shows_the_mean_and_the_range() -> None:
    table = printed(demo_table({"SemiFL": several([0.5], [0.6])}, "title"))
    assert "55.0 % (50.0-60.0)" in table


def test_a_measure_that_one_seed_lacks_is_the_mean_of_the_others() -> None:
    several = {"confident_share": 0.5, "confident_accuracy": 0.8}, {"confident_share": 0.0}
    told = mean_line([{"round": 1, "pseudo": pseudo} for pseudo in several])
    assert told["pseudo"] == {"confident_share": 0.25, "confident_accuracy": 0.8}


def test_names_are_printed_as_they_are_written() -> None:
    assert "[bold]name  text" in printed(names_table("", [("[bold]name", "text")]))


def line(round: int, **more: Any) -> dict[str, Any]:
    return {"round": round, "accuracy": {"model": 0.5}, "pseudo": {"confident_share": 0.25}, **more}


def begun(console: Console, **options: Any) -> Terminal:
    terminal, config = Terminal(console=console), configure("semifl", **options)
    terminal.begin(Runs(config, [Run(config, [])]))
    return terminal


def test_where_nobody_watches_a_run_says_five_lines_and_what_came_after() -> None:
    console = Console(file=io.StringIO(), width=200)
    terminal = begun(console, rounds=50)
    for number in range(1, 51):
        terminal.round({0: line(number)})
    terminal.round({0: line(50, final=True)})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 6 and lines[-1].startswith("semifl: after the last round, accuracy 50.0 %")
    assert lines[0].startswith("semifl: round 10/50, accuracy 50.0 %, confident 25.0 %, 0 s left")
    assert "left" not in lines[-1]


def test_where_nobody_watches_a_slow_run_says_something_every_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, clock = Console(file=io.StringIO(), width=200), [0.0]
    monkeypatch.setattr("fedglean.report.terminal.time.monotonic", lambda: clock[0])
    terminal = begun(console, rounds=800)
    for number in range(1, 10):
        clock[0] += 25
        terminal.round({0: line(number)})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [each.split(",")[0] for each in lines] == [
        f"semifl: round {number}/800" for number in (3, 6, 9)
    ]
    assert lines[0].endswith("5 h 32 min left, 1 min 15 s so far")


def test_a_terminal_gets_one_live_line() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    terminal = begun(console, rounds=2)
    terminal.round({0: line(1)})
    terminal.round({0: {"round": 2}})
    terminal.end(several([0.5, 0.5]))
    assert "2/2" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy 50.0 %" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_that_was_finished_before_leaves_no_line_behind() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    begun(console, rounds=2).end(several([0.5, 0.5]))
    erase = "\x1b[2K"
    shown, left = console.file.getvalue().rsplit(erase, 1)  # type: ignore[attr-defined]
    assert "semifl" in shown and "semifl" not in left


def test_time_left_follows_the_usual_round_and_not_the_ones_that_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, clock = Console(file=io.StringIO(), width=200), [0.0]
    monkeypatch.setattr("fedglean.report.terminal.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    terminal = begun(console, rounds=25, compile=True)
    for number, clock[0] in enumerate((90.0, 180.0, 182.0, 184.0, 186.0), 1):
        terminal.round({0: line(number)})
    first, *_, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first == "semifl: compiling, which takes minutes"
    assert "round 5/25" in last and "40 s left" in last


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (75, "1 min 15 s"), (7260, "2 h 01 min")],
)
def test_durations_read_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (3.2e9, "3.2 GB"), (1e16, "10000.0 TB")],
)
def test_sizes_read_as_people_say_them(count: int, words: str) -> None:
    assert size(count) == words

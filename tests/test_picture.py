"""The picture of the curves, and the words and tables of the terminal."""

import io
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from fedglean.report.picture import curves, drawing, spaced
from fedglean.report.terminal import (
    comparison,
    duration,
    mean_line,
    names_table,
    progress,
    result_table,
    size,
)
from fedglean.runs.config import configure
from fedglean.runs.result import Score


@dataclass(frozen=True)
class Run:
    """A result whose curves are given outright."""

    curve: dict[str, list[float]]
    final: bool = False
    history: list[dict[str, Any]] = field(init=False)
    seconds: float = 75.0
    bytes_sent: tuple[int, int] = (1_500_000, 2_000)

    def __post_init__(self) -> None:
        length = len(self.names and self.curve[self.names[0]])
        lines = [
            {"round": r + 1, "accuracy": {n: c[r] for n, c in self.curve.items()}}
            for r in range(length)
        ]
        if self.final:
            lines[-1] |= {"round": length - 1, "final": True}
        object.__setattr__(self, "history", lines)

    @property
    def names(self) -> list[str]:
        return list(self.curve)

    def score(self, name: str) -> tuple[Score, Score]:
        scores = [Score(name, line["round"], line["accuracy"][name]) for line in self.history]
        return scores[-1], max(scores, key=lambda score: score.accuracy)


def texts(runs: dict[str, list[Run]]) -> list[str]:
    return [text.get_text() for text in drawing(runs).axes[0].texts]


def printed(*things: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(*things)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_single_round_is_no_fraction_of_one_on_the_axis() -> None:
    ticks = drawing({"a": [Run({"model": [0.1]})]}).axes[0].get_xticks()
    assert all(tick == int(tick) for tick in ticks)


def test_the_picture_is_a_png_of_a_readable_size(tmp_path: Path) -> None:
    path = curves({"a": [Run({"model": [0.1, 0.5, 0.4]})]}, tmp_path / "curves.png", "title")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (1125, 675)


def test_the_number_is_the_last_accuracy_and_the_dot_the_best() -> None:
    axes = drawing({"a": [Run({"model": [0.1, 0.5, 0.4]})]}).axes[0]
    line, dot = axes.lines
    assert list(line.get_ydata()) == pytest.approx([10, 50, 40])
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([2], pytest.approx([50]))
    assert axes.texts[0].get_text() == "a  40.0 %"


def test_several_seeds_are_drawn_as_their_mean_with_a_band_from_worst_to_best() -> None:
    axes = drawing({"a": [Run({"model": [0.1, 0.5]}), Run({"model": [0.3, 0.6]})]}).axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([20, 55])
    corners = axes.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in np.round(corners, 6)} >= {
        (1, 10),
        (1, 30),
        (2, 50),
        (2, 60),
    }


def test_a_lone_run_shows_all_its_predictors_and_a_comparison_only_the_first() -> None:
    hassle = Run({"EM": [0.3], "SM": [0.2], "UM": [0.1]})
    assert {text.split("  ")[0] for text in texts({"hassle": [hassle]})[:3]} == {
        "hassle EM",
        "hassle SM",
        "hassle UM",
    }
    assert "fedavg  50.0 %" in texts({"hassle": [hassle], "fedavg": [Run({"model": [0.5]})]})
    assert len(drawing({"hassle": [hassle], "fedavg": [Run({"model": [0.5]})]}).axes[0].lines) == 4


def test_what_comes_after_the_last_round_is_a_point_of_its_own() -> None:
    axes = drawing({"a": [Run({"model": [0.1, 0.5, 0.4]}, final=True)]}).axes[0]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3]


def test_rounds_without_a_test_are_left_out() -> None:
    run = Run({"model": [0.1, 0.5, 0.4]})
    del run.history[1]["accuracy"]
    assert list(drawing({"a": [run]}).axes[0].lines[0].get_xdata()) == [1, 3]


@given(st.lists(st.floats(0, 1), max_size=8).map(sorted), st.floats(0.01, 0.3))
def test_labels_keep_their_order_and_distance_and_move_only_if_they_must(
    places: list[float], gap: float
) -> None:
    moved = spaced(places, gap)
    assert len(moved) == len(places)
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(places))
    if all(b - a >= gap for a, b in itertools.pairwise(places)):
        assert moved == pytest.approx(places)


def test_a_result_tells_last_and_best_apart_with_time_and_bytes() -> None:
    table = printed(result_table(Run({"EM": [0.1, 0.5, 0.4], "SM": [0.2, 0.1, 0.3]}), "title"))
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:5]]
        for line in table.splitlines()
        if "│" in line
    }
    assert rows["EM"] == ["40.0 %", "50.0 %", "2"]
    assert rows["SM"] == ["30.0 %", "30.0 %", "3"]
    assert "1 min 15 s, 1.5 MB down, 2.0 kB up" in table


def test_a_comparison_of_seeds_shows_the_mean_and_the_range() -> None:
    table = printed(comparison({"SemiFL": [Run({"model": [0.5]}), Run({"model": [0.6]})]}, "title"))
    assert "55.0 % (50.0-60.0)" in table


def test_a_measure_that_one_seed_lacks_is_the_mean_of_the_others() -> None:
    several = {"confident_share": 0.5, "confident_accuracy": 0.8}, {"confident_share": 0.0}
    told = mean_line([{"round": 1, "pseudo": pseudo} for pseudo in several])
    assert told["pseudo"] == {"confident_share": 0.25, "confident_accuracy": 0.8}


def test_names_are_printed_as_they_are_written() -> None:
    assert "[bold]name  text" in printed(names_table("", [("[bold]name", "text")]))


def line(round: int, **more: Any) -> dict[str, Any]:
    return {"round": round, "accuracy": {"model": 0.5}, "pseudo": {"confident_share": 0.25}, **more}


def test_where_nobody_watches_a_run_says_five_lines_and_what_came_after() -> None:
    console = Console(file=io.StringIO(), width=200)
    with progress(console, "semifl", configure("semifl", rounds=50)) as on_round:
        for number in range(1, 51):
            on_round(line(number))
        on_round(line(50, final=True))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 6 and lines[-1].startswith("semifl: after the last round, accuracy 50.0 %")
    assert lines[0].startswith("semifl: round 10/50, accuracy 50.0 %, confident 25.0 %, 0 s left")
    assert "left" not in lines[-1]


def test_where_nobody_watches_a_slow_run_says_something_every_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, clock = Console(file=io.StringIO(), width=200), [0.0]
    monkeypatch.setattr("fedglean.report.terminal.time.monotonic", lambda: clock[0])
    with progress(console, "semifl", configure("semifl", rounds=800)) as on_round:
        for number in range(1, 10):
            clock[0] += 25
            on_round(line(number))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [each.split(",")[0] for each in lines] == [
        f"semifl: round {number}/800" for number in (3, 6, 9)
    ]
    assert lines[0].endswith("5 h 32 min left, 1 min 15 s so far")


def test_a_terminal_gets_one_live_line_and_a_quiet_run_none() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with progress(console, "semifl", configure("semifl", rounds=2)) as on_round:
        on_round(line(1))
        on_round({"round": 2})
    assert "2/2" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy 50.0 %" in console.file.getvalue()  # type: ignore[attr-defined]
    silent = Console(file=io.StringIO())
    with progress(silent, "semifl", configure("semifl", rounds=1), quiet=True) as on_round:
        on_round(line(1))
    assert silent.file.getvalue() == ""  # type: ignore[attr-defined]


def test_a_run_that_was_finished_before_leaves_no_line_behind() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with progress(console, "semifl", configure("semifl", rounds=2)):
        pass
    erase = "\x1b[2K"
    shown, left = console.file.getvalue().rsplit(erase, 1)  # type: ignore[attr-defined]
    assert "semifl" in shown and "semifl" not in left


def test_time_left_follows_the_usual_round_and_not_the_ones_that_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, clock = Console(file=io.StringIO(), width=200), [0.0]
    monkeypatch.setattr("fedglean.report.terminal.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with progress(console, "semifl", configure("semifl", rounds=25, compile=True)) as on_round:
        for number, clock[0] in enumerate((90.0, 180.0, 182.0, 184.0, 186.0), 1):
            on_round(line(number))
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

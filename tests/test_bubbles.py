import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from fedglean.data.labels import make_split
from fedglean.data.partition import Split
from fedglean.report.bubbles import LABELLED, UNLABELLED, bubble_chart, split_table

LABELS = torch.arange(2000) % 10
NAMES = tuple(f"class {number}" for number in range(10))


def text(table: Table) -> str:
    console = Console(width=140, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def ink(path: Path, colour: str) -> int:
    wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    with Image.open(path) as picture:
        return int((np.asarray(picture.convert("RGB")) == wanted).all(-1).sum())


def a_split(labelled: list[int], unlabelled: list[int]) -> Split:
    first, second = (
        torch.tensor(labelled, dtype=torch.int64),
        torch.tensor(unlabelled, dtype=torch.int64),
    )
    return Split(torch.empty(0, dtype=torch.int64), (first,), (second,))


@pytest.mark.parametrize("clients", [1, 20, 100, 300])
def test_a_chart_is_drawn_for_few_and_many_clients(tmp_path: Path, clients: int) -> None:
    split = make_split(LABELS, 10, clients, "dirichlet:0.5", "hub:200", 0)
    bubble_chart(split, LABELS, NAMES, tmp_path / "chart.png")
    width, height = size(tmp_path / "chart.png")
    assert 200 < width < 2500 and 200 < height < 6000


def test_long_names_stand_aslant_beside_each_other_also_where_they_are_few(tmp_path: Path) -> None:
    split = make_split(LABELS, 10, 3, "iid", "hub:200", 0)
    bubble_chart(split, LABELS, NAMES, tmp_path / "numbers.png")
    named = replace(split, names=("Berlin, Mitte", "London, St. Mary's", "Paris, Salpêtrière"))
    bubble_chart(named, LABELS, NAMES, tmp_path / "names.png")
    (width, height), (same, taller) = size(tmp_path / "numbers.png"), size(tmp_path / "names.png")
    assert taller > height + 60 and abs(same - width) < 20


def test_the_ink_of_a_colour_grows_with_the_number_of_images(tmp_path: Path) -> None:
    labels = torch.zeros(400, dtype=torch.int64)
    areas = []
    for count in (50, 100, 200):
        bubble_chart(
            a_split(list(range(count)), list(range(200, 400))),
            labels,
            ("only",),
            tmp_path / "chart.png",
        )
        areas.append(
            (ink(tmp_path / "chart.png", LABELLED), ink(tmp_path / "chart.png", UNLABELLED))
        )
    # The legend's patches are in both; halves of equal counts have about equal ink.
    (few, pale), (some, _), (equal, _) = areas
    assert few < some < equal
    assert abs(equal - pale) < 0.1 * pale


def test_a_client_without_labels_has_no_labelled_ink_but_the_legends(tmp_path: Path) -> None:
    labels = torch.zeros(100, dtype=torch.int64)
    bubble_chart(a_split([], []), labels, ("only",), tmp_path / "empty.png")
    bubble_chart(a_split([], list(range(100))), labels, ("only",), tmp_path / "chart.png")
    assert ink(tmp_path / "chart.png", LABELLED) == ink(tmp_path / "empty.png", LABELLED)
    assert ink(tmp_path / "chart.png", UNLABELLED) > ink(tmp_path / "empty.png", UNLABELLED)


def test_drawing_does_not_touch_pyplot_or_the_backend(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from fedglean.report.bubbles import bubble_chart\n"
        "from fedglean.data.partition import Split\n"
        "part = (torch.tensor([0]),)\n"
        "split = Split(part[0][:0], part, (part[0][:0],))\n"
        "bubble_chart(split, torch.zeros(1).long(), ('a',), sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "chart.png")], check=True)


def test_the_table_has_one_row_a_client_and_a_sum() -> None:
    lines = text(split_table(make_split(LABELS, 10, 5, "iid", "each:10", 0), LABELS, NAMES))
    assert "│ 4 " in lines and "hub" not in lines
    total = next(line for line in lines.splitlines() if "all" in line)
    assert " 50 " in total and " 1950 " in total


def test_a_long_table_is_cut_and_says_how_many_more() -> None:
    split = make_split(LABELS, 10, 100, "iid", "hub:200", 0)
    table = split_table(split, LABELS, NAMES)
    assert table.row_count <= 32
    assert "and 71 more clients" in text(table) and "hub" in text(table)
    hidden = next(line for line in text(table).splitlines() if "more clients" in line)
    assert f" {71 * 18} " in hidden


def test_images_without_a_known_label_are_called_unknown(tmp_path: Path) -> None:
    labels = torch.tensor([0, 1, -1, -1, -1])
    split = Split(torch.tensor([0]), (torch.tensor([1]),), (torch.tensor([2, 3, 4]),), ("Oslo",))
    lines = text(split_table(split, labels, ("cat", "dog")))
    assert "unknown (3)" in lines and "Oslo" in lines
    bubble_chart(split, labels, ("cat", "dog"), tmp_path / "chart.png")
    known = torch.tensor([0, 1, 0, 0, 0])
    bubble_chart(split, known, ("cat", "dog"), tmp_path / "known.png")
    assert size(tmp_path / "chart.png")[1] > size(tmp_path / "known.png")[1]


def test_names_with_brackets_and_dollars_are_shown_as_they_are(tmp_path: Path) -> None:
    labels, split = torch.zeros(3, dtype=torch.int64), a_split([0, 1, 2], [])
    named = Split(split.hub, split.labelled, split.unlabelled, ("[bold]",))
    lines = text(split_table(named, labels, ("[red]",)))
    assert "[red] (3)" in lines and "[bold]" in lines
    bubble_chart(named, labels, (r"$\nonsense{$",), tmp_path / "chart.png")

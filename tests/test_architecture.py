"""docs/architecture.md says where things are: files and names exist, and a round goes that way."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fedglean.runs.config import configure
from fedglean.runs.experiment import prepare, settled_for
from fedglean.runs.rounds import LiveRun, commit, play_rounds
from fedglean.tables import TABLES
from test_imports import ROOMS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fedglean"
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")
#: A module of more lines is named on the page.
SHORT = 40
#: Rooms that only lead on to others.
WITHOUT_A_ROW = {"version", "__init__", "__main__"}

Place = tuple[str, str]


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def defined(path: Path) -> set[str]:
    """Functions, classes, `Class.method`s and names that a module gives a value to."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [each for each in node.body if hasattr(each, "name")]
            names |= {f"{node.name}.{each.name}" for each in inner}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def places(title: str, file: int, names: int) -> list[Place]:
    """(file, name) for every name in a column of a section's table."""
    return [
        (CODE.findall(row[file])[0], name)
        for row in rows(title)
        for name in CODE.findall(row[names])
    ]


WALK = places("One round of SemiFL", 0, 1)
CHANGES = places("To change something, open this file", 1, 2)
DOORS = rows("The doors")


def test_there_are_as_many_rows_as_one_looks_for() -> None:
    assert len(rows("To change something, open this file")) >= 25
    assert len(WALK) > 40 and len(DOORS) > 10


@pytest.mark.parametrize(("file", "name"), sorted({*WALK, *CHANGES}))
def test_a_file_that_is_named_defines_what_is_sought_there(file: str, name: str) -> None:
    assert name in defined(SOURCE / file)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door[0])
def test_a_door_is_in_its_file_and_its_table_exists(door: list[str]) -> None:
    assert (SOURCE / CODE.findall(door[2])[0]).exists()
    assert set(CODE.findall(door[3])) <= set(TABLES)


def test_every_table_of_names_is_a_door() -> None:
    assert set(TABLES) == {name for door in DOORS for name in CODE.findall(door[3])}


def room_files() -> Iterator[Path]:
    for room, _, files in rows("The rooms"):
        folder = CODE.findall(room)[0]
        base = SOURCE / folder if folder.endswith("/") else SOURCE
        for pattern in CODE.findall(files):
            found = list(base.glob(pattern))
            assert found, f"{room} has no {pattern}"
            yield from found


def test_rooms_stand_in_the_order_in_which_they_may_know_each_other() -> None:
    listed = [CODE.findall(row[0])[0].removesuffix("/") for row in rows("The rooms")]
    assert listed == [room for room in ROOMS if room not in WITHOUT_A_ROW]


def test_every_module_of_some_length_is_named() -> None:
    named = set(room_files()) | {SOURCE / file for file, _ in [*WALK, *CHANGES]}
    long = {
        path
        for path in SOURCE.rglob("*.py")
        if len(path.read_text("utf-8").splitlines()) > SHORT and path.name != "__init__.py"
    }
    assert not {path.relative_to(SOURCE).as_posix() for path in long - named}


def test_a_round_goes_the_way_that_the_page_tells(tmp_path: Path) -> None:
    """By the first calls of what the page names."""
    called: list[Place] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            file = Path(code.co_filename).relative_to(SOURCE).as_posix()
            called.append((file, code.co_qualname))

    options = {"labels": "hub:20", "clients": 4, "active": 1.0, "threshold": 0.0, "epochs": 1}
    config = configure("semifl", rounds=2, executor="stack", **options)
    with settled_for(config):
        live = LiveRun.new(prepare(config), tmp_path / "run")
        with live.experiment.placement:
            sys.setprofile(note)
            try:
                play_rounds([live], 1)
                commit([live], 1)
            finally:
                sys.setprofile(None)
        live.folder.release()
    first = list(dict.fromkeys(place for place in called if place in set(WALK)))
    assert first == WALK


def test_the_walk_is_as_long_as_the_page_says() -> None:
    sentence = re.search(r"(\d+) functions in (\d+) modules", section("One round of SemiFL"))
    assert sentence is not None
    assert (int(sentence[1]), int(sentence[2])) == (len(set(WALK)), len({file for file, _ in WALK}))


def words() -> list[str]:
    """The first cells of the rows of docs/words.md."""
    lines = (ROOT / "docs/words.md").read_text("utf-8").splitlines()
    return [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]


def class_names() -> set[str]:
    """Public classes, but for the methods: they have a page of their own."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "methods" and path.name != "__init__.py":
            continue
        body = ast.parse(path.read_text("utf-8")).body
        found |= {node.name for node in body if isinstance(node, ast.ClassDef)}
    return {name for name in found if not name.startswith("_")}


def test_every_public_class_is_a_word_and_every_word_that_looks_like_one_is_a_class() -> None:
    named = {name for word in words() for name in CODE.findall(word) if name[0].isupper()}
    assert named == class_names()


def test_words_are_sorted_and_stand_once() -> None:
    keys = [re.sub(r"[^a-z0-9_]", "", word.split(",")[0].lower()) for word in words()]
    assert keys == sorted(set(keys))

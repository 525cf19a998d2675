"""What comes from outside is read as a dataclass says, or refused in a sentence with its key."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglean.errors import ConfigError, DataError
from fedglean.schema import DEEPEST, read, setting, values, write


@dataclass(frozen=True)
class Branch:
    number: int = setting(MISSING, "which one", low=0)
    name: str | None = None


@dataclass(frozen=True)
class Hub:
    images: Path
    branches: tuple[Branch, ...]
    ends: tuple[float, ...] = setting(MISSING, "shares", low=0, high=1)
    keys: Mapping[int, Path] = field(default_factory=dict)
    shape: tuple[int, int] = (1, 1)
    deadline: float = setting(60.0, "seconds", low=1, high=3600)
    mode: str = setting("open", "who may come", choices=("open", "closed"))
    limit: int | float | None = None
    notes: dict[str, Any] | None = None

    made: int = field(init=False, default=7)


WHOLE: dict[str, Any] = {"images": "here", "branches": [{"number": 1}], "ends": [0, 0.5]}


def test_everything_comes_in_the_type_that_its_field_says() -> None:
    hub = read(Hub, WHOLE | {"keys": {"3": "key"}, "shape": [2, 3], "notes": {"a": [1, None]}})
    assert hub.images == Path("here")
    assert hub.branches == (Branch(1),)
    assert hub.keys == {3: Path("key")}
    assert hub.shape == (2, 3)
    assert hub.ends == (0.0, 0.5)
    assert [type(end) for end in hub.ends] == [float, float]
    assert hub.notes == {"a": [1, None]}
    assert (hub.deadline, hub.mode, hub.limit) == (60.0, "open", None)


def test_what_is_written_is_read_as_an_equal_value() -> None:
    hub = read(Hub, WHOLE | {"keys": {"3": "key"}, "limit": 2, "notes": {"deep": {"er": [1.5]}}})
    assert read(Hub, json.loads(json.dumps(write(hub)))) == hub


@given(
    number=st.integers(min_value=0),
    name=st.none() | st.text(),
    deadline=st.floats(1, 3600),
    keys=st.dictionaries(st.integers(0, 99), st.sampled_from([Path("a"), Path("b/c")])),
)
def test_any_value_survives_being_written(
    number: int, name: str | None, deadline: float, keys: dict[int, Path]
) -> None:
    hub = Hub(Path("x"), (Branch(number, name),), (), keys, deadline=deadline)
    assert read(Hub, json.loads(json.dumps(write(hub)))) == hub


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"branchs": 1}, ("branchs", "branches")),
        ({"made": 7}, ("made",)),
        ({"images": 3}, ("images", "path", "3")),
        ({"branches": {}}, ("branches", "list", "table")),
        ({"branches": [3]}, ("branches[0]", "table", "3")),
        ({"branches": [{}]}, ("branches[0].number", "missing")),
        ({"branches": [{"number": 0}, {"number": -1}]}, ("branches[1].number", "at least 0", "-1")),
        ({"branches": [{"number": True}]}, ("branches[0].number", "whole number", "true")),
        ({"branches": [{"number": 1.0}]}, ("branches[0].number", "whole number", "1.0")),
        ({"keys": {"three": "key"}}, ("keys.three", "whole number")),
        ({"keys": {"3": 4}}, ("keys.3", "path")),
        ({"shape": [1]}, ("shape", "2 values", "1")),
        ({"deadline": 0}, ("deadline", "from 1 to 3600", "0")),
        ({"deadline": 10**400}, ("deadline", "finite")),
        ({"deadline": float("inf")}, ("deadline", "finite")),
        ({"ends": [0, 2]}, ("ends[1]", "from 0 to 1", "2")),
        ({"mode": "opened"}, ("mode", "opened", "'open'")),
        ({"limit": "many"}, ("limit", "a whole number or a number", "many")),
        ({"notes": {"a": float("nan")}}, ("notes", "finite")),
    ],
)
def test_what_is_wrong_is_named_with_its_key(wrong: dict[str, Any], says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(Hub, WHOLE | wrong)
    for part in says:
        assert part in str(caught.value)


def test_the_sentence_says_under_which_key_it_all_was_found() -> None:
    with pytest.raises(ConfigError, match=r"^hub\.images is missing"):
        read(Hub, {}, "hub")
    with pytest.raises(ConfigError, match=r"^hub must be a table, not nothing"):
        read(Hub, None, "hub")


def test_the_caller_chooses_what_kind_of_error_it_is() -> None:
    with pytest.raises(DataError, match="images"):
        read(Hub, WHOLE | {"images": 3}, error=DataError)


def test_a_refusal_of_the_dataclass_itself_is_the_callers_error_too() -> None:
    @dataclass(frozen=True)
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ConfigError(f"{self.number} is odd")

    with pytest.raises(DataError, match="3 is odd"):
        read(Even, {"number": 3}, error=DataError)


def test_a_text_stands_for_none_only_where_the_caller_says_so_and_the_field_allows_it() -> None:
    assert read(Branch, {"number": 1, "name": "none"}).name == "none"
    assert read(Branch, {"number": 1, "name": "none"}, none="none").name is None
    with pytest.raises(ConfigError, match="whole number"):
        read(Branch, {"number": "none"}, none="none")


def test_fields_can_be_had_without_the_dataclass() -> None:
    assert values(Branch, {"number": 4}) == {"number": 4, "name": None}


def test_nothing_is_nested_without_bound() -> None:
    deep: Any = 1
    for _ in range(DEEPEST):
        deep = [deep]
    with pytest.raises(ConfigError, match=r"notes\.a is nested too deeply"):
        read(Hub, WHOLE | {"notes": {"a": deep}})


def test_a_sentence_stays_one_line_whatever_was_sent() -> None:
    with pytest.raises(ConfigError) as caught:
        read(Hub, WHOLE | {"deadline": "\x1b[31m" + "\n" * 100_000})
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()

"""docs/methods.md says of every method what the code says: its name, its defaults, what it sends
and keeps.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fedglean.engine.clients import Clients
from fedglean.engine.placement import Here
from fedglean.exchange.exchange import BlockResult, Exchange
from fedglean.exchange.gate import Envelope
from fedglean.exchange.states import ClientStates
from fedglean.names import Names
from fedglean.runs.config import FLAT, Config, configure
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.schema import fields_of
from fedglean.testing.engines import variant

METHODS = Names.of().tables["METHODS"]
PAGE = (Path(__file__).parents[1] / "docs/methods.md").read_text("utf-8")
IDEAS, TRAVEL = "| method | idea | labels |", "| method | down | up | kept |"
SPAN, STATED = re.compile(r"`([^`]+)`"), re.compile(r"`(\w+)=([^`]+)`")


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of all tables with this heading."""
    for table in PAGE.split(heading)[1:]:
        for line in table.split("\n\n")[0].splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def entries() -> dict[str, str]:
    """The text on each method's settings, limits and differences."""
    parts = re.split(r"^\* \*\*`([\w-]+)`\*\*$", PAGE, flags=re.MULTILINE)[1:]
    return {
        name: re.split(r"^\S", text, flags=re.MULTILINE)[0]
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def value(text: str) -> Any:
    """A setting as it is written: true, 0.5, 5e-4, 1/60, or a word."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"\d+/\d+", text):
        return float(Fraction(text))
    return float(text) if re.fullmatch(r"[\d.]+(e-?\d+)?", text) else text


def parts_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page states of the class, and of the entry for digits."""
    before, _, rest = entries()[name].partition("*On digits:*")
    digits, mark, after = rest.partition("\n  *")
    stated = [
        {key: value(text) for key, text in STATED.findall(part)}
        for part in (before + mark + after, digits)
    ]
    return stated[0], stated[1]


def configured(config: Config, option: str) -> Any:
    """The value of a flat option: `labels`, `clients`, `model`, `rounds`."""
    found: Any = config
    for step in FLAT[option].split("."):
        found = getattr(found, step)
    return found


def test_every_method_is_on_the_page_and_no_other() -> None:
    for found in (
        [row[0] for row in rows(IDEAS)],
        [row[0] for row in rows(TRAVEL)],
        [f"`{name}`" for name in entries()],
    ):
        assert sorted(found) == sorted(f"`{name}`" for name in METHODS)


def test_a_setting_is_read_as_it_is_written() -> None:
    written = ("1/4", "5e-4", "10", "none", "true", "1,0.5")
    assert [value(text) for text in written] == [0.25, 5e-4, 10, "none", True, "1,0.5"]


@pytest.mark.parametrize("name", METHODS)
def test_defaults_on_the_page_are_those_of_the_code(name: str) -> None:
    of_class, _ = parts_of(name)
    defaults = {name: each.default for name, (each, _) in fields_of(METHODS[name].method).items()}
    assert of_class == {key: defaults[key] for key in of_class}
    assert of_class or "those of" in entries()[name]


@pytest.mark.parametrize("name", METHODS)
def test_the_page_states_all_that_an_entry_changes_for_digits(name: str) -> None:
    _, on_digits = parts_of(name)
    settings, config = METHODS[name].defaults.get("settings", {}), configure(name)
    assert {key: on_digits.get(key) for key in settings} == dict(settings)
    others = {key: stated for key, stated in on_digits.items() if key not in settings}
    assert {"labels", "rounds"} <= set(others)
    assert others == {key: configured(config, key) for key in others}


class Noting(Here):
    """`here` that notes the names which travel in training exchanges."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.down: set[str] = set()
        self.up: set[str] = set()

    def serve(self, exchange: Exchange, blocks: Any, states: ClientStates) -> Iterator[BlockResult]:
        if exchange.ask.purpose != "train":
            return super().serve(exchange, blocks, states)
        self.down.update(exchange.ask.message, *exchange.ask.each.values())
        noting = Here(replace(self.clients, deliver=self.noted))
        return noting.serve(exchange, blocks, states)

    def noted(self, envelope: Envelope) -> list[Envelope]:
        self.up.update(envelope.upload.trees)
        return [envelope]


#: As little work as shows everything that is sent: pseudo-labels are trusted from the beginning.
SHORT: dict[str, Any] = {
    "steps": 1,
    "epochs": 1,
    "hub_epochs": 1,
    "warmup_epochs": 1,
    "residual_steps": 1,
    "tuning_epochs": 1,
}
SHORT |= {"pretraining": 0, "threshold": 0.0}


@pytest.mark.parametrize("name", METHODS)
def test_what_the_page_says_is_sent_and_kept_is_sent_and_kept(name: str) -> None:
    known = list(fields_of(METHODS[name].method))
    short = {key: few for key, few in SHORT.items() if key in known}
    config = configure(name, rounds=2, executor="loop", evaluate_every=9, **short)
    experiment = variant(prepare(config), placement=Noting)
    progress = Progress(0, experiment.start(), ClientStates(), [])
    for number in (1, 2):
        play_round(experiment, progress, number)
    place = experiment.placement
    assert isinstance(place, Noting)
    (down, up, kept), *others = [row[1:] for row in rows(TRAVEL) if row[0] == f"`{name}`"]
    assert not others
    travelled = [
        {re.sub(r"width [\d.]+", "width r", each) for each in way} for way in (place.down, place.up)
    ]
    assert [set(SPAN.findall(down)), set(SPAN.findall(up)) - {"statistics"}] == travelled
    assert kept.startswith("nothing") == (not progress.kept.states)

"""The executor `auto`: the faster one is chosen, once."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglean.engine import auto
from fedglean.engine.batches import Setting
from fedglean.engine.loop import Loop
from fedglean.engine.stack import Stack
from fedglean.engine.task import Party
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe
from fedglean.models import Architecture

SETTING = Setting(Recipe((0.5,), (0.25,), flip=False, pad=1))
MODEL = Architecture("cnn", (1, 8, 8), 10).initial(1)
STORE = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
POOLS = [Images(STORE, torch.arange(begin, begin + 10)) for begin in (0, 10, 20)]


def slowed(kind: type[Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    run = kind.run

    def slow(self: Any, parties: Sequence[Party]) -> list[Any]:
        if type(self) is kind:
            time.sleep(0.5)
        return run(self, parties)

    monkeypatch.setattr(kind, "run", slow)


@pytest.mark.parametrize(("slow", "winner"), [(Loop, "stack"), (Stack, "loop")])
def test_the_faster_executor_is_chosen(
    slow: type[Loop], winner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed(slow, monkeypatch)
    assert auto.faster(MODEL, POOLS, SETTING, tmp_path / "found.json") == winner


def test_what_was_found_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = auto.faster(MODEL, POOLS, SETTING, tmp_path / "deep" / "found.json")

    def never(*_: Any) -> str:
        raise AssertionError("measured again")

    monkeypatch.setattr(auto, "_measure", never)
    assert auto.faster(MODEL, POOLS, SETTING, tmp_path / "deep" / "found.json") == found
    with pytest.raises(AssertionError, match="measured again"):
        auto.faster(
            Architecture("mlp", (1, 8, 8), 10).initial(1),
            POOLS,
            SETTING,
            tmp_path / "deep" / "found.json",
        )


@pytest.mark.parametrize("content", ["", "[]", '{"a": "neither"}', "\x00"])
def test_a_damaged_memory_is_measured_anew(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found.json").write_text(content)
    monkeypatch.setattr(auto, "_measure", lambda *_: "stack")
    assert auto.faster(MODEL, POOLS, SETTING, tmp_path / "found.json") == "stack"


def test_a_client_alone_needs_no_stack(tmp_path: Path) -> None:
    assert auto.faster(MODEL, POOLS[:1], SETTING, tmp_path / "found.json") == "loop"
    assert not (tmp_path / "found.json").exists()

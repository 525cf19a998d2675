"""A step that was written down does what the lifted one does, to the bit."""

from typing import Any

import pytest
import torch

from fedglean import tree
from fedglean.config import configure
from fedglean.engines import trace
from fedglean.run import run

METHODS: dict[str, dict[str, Any]] = {
    "semifl": {"threshold": 0.0, "epochs": 1},
    "hassle": {"epochs": 1, "norm": "running"},
    "fed-shvr": {"epochs": 1},
    "scaffold": {"epochs": 1},
    "fedprox": {"epochs": 1, "proximity_weight": 1.0},
    "sage": {"epochs": 1, "norm": "group"},
}


@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize("name", METHODS)
def test_written_down_or_not_every_bit_is_the_same(name: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = trace._written_down

    def noted(function: Any, leaves: Any) -> Any:
        written.append(len(leaves))
        return write(function, leaves)

    monkeypatch.setattr(trace, "_written_down", noted)
    options = {"model": "cnn", "rounds": 1, "device": "cpu", "executor": executor, **METHODS[name]}
    states = []
    for often in (1, 10**9):
        monkeypatch.setattr(trace, "OFTEN", often)
        result = run(configure(name, data="digits", **options))
        states.append(torch.cat([tree.row(getattr(each, "models", each)) for each in result.predictors.values()]))
    assert written
    assert torch.equal(*states)

"""A step that was written down, or is compiled, does what the lifted one does, to the bit."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config
from torch._dynamo.exc import TorchDynamoException
from torch.fx import GraphModule

from fedglean import tree
from fedglean.engine import trace
from fedglean.engine.graph import fused
from fedglean.names import Names
from fedglean.runs import experiment
from fedglean.runs.config import configure
from single_runs import run

METHODS = Names.of().tables["METHODS"]
SOME: dict[str, dict[str, Any]] = {
    "semifl": {"threshold": 0.0, "epochs": 1},
    "hassle": {"epochs": 1, "norm": "running"},
    "fed-shvr": {"epochs": 1},
    "scaffold": {"epochs": 1},
    "fedprox": {"epochs": 1, "proximity_weight": 1.0},
    "sage": {"epochs": 1, "norm": "group"},
}


def written_after(record_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = experiment._setting
    monkeypatch.setattr(
        experiment, "_setting", lambda *given: replace(setting(*given), record_after=record_after)
    )


@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize("name", SOME)
def test_written_down_or_not_every_bit_is_the_same(
    name: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = trace._record

    def noted(function: Any, leaves: Any) -> Any:
        written.append(len(leaves))
        return write(function, leaves)

    monkeypatch.setattr(trace, "_record", noted)
    options = {"model": "cnn", "rounds": 1, "device": "cpu", "executor": executor, **SOME[name]}
    states = []
    for record_after in (1, 10**9):
        written_after(record_after, monkeypatch)
        states.append(trained(name, options))
    assert written
    assert torch.equal(*states)


@pytest.mark.parametrize("name", METHODS)
def test_a_compiler_takes_every_methods_step_whole_and_as_it_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `torch.compile` makes of a method's Python, run as it is."""
    options: dict[str, Any] = {
        "model": "cnn",
        "rounds": 2,
        "device": "cpu",
        "executor": "stack",
        "dtype": "float64",
    }
    options |= {"epochs": 1} if "epochs" in {field.name for field in fields(METHODS[name])} else {}
    plain, compiler, compiled = trained(name, options), torch.compile, []

    def seen(function: Any, *, fullgraph: bool, dynamic: bool, options: Any) -> Any:
        compiled.append(function)
        return compiler(function, backend="eager", fullgraph=fullgraph, dynamic=dynamic)

    def compiling(step: trace.RecordedStep, lifted: Any, *example: Any) -> None:
        begin(step, fused(lifted, half=False), *example)

    begin = trace.RecordedStep.__init__
    monkeypatch.setattr(torch, "compile", seen)
    monkeypatch.setattr(trace.RecordedStep, "__init__", compiling)
    written_after(10**9, monkeypatch)
    torch._dynamo.reset()
    assert torch.equal(plain, trained(name, options))
    assert compiled


def test_functions_that_are_compiled_do_not_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_plainly(monkeypatch)
    for number in range(70):  # of one function, the compiler makes no more than 64

        def add(x: Tensor, number: int = number) -> Tensor:
            return x + number

        assert fused(add, half=False)(torch.zeros(())) == number


def test_how_often_is_compiled_is_limited_for_a_step_and_then_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limits() -> tuple[int, bool]:
        return config.recompile_limit, config.fail_on_recompile_limit_hit

    def note(module: GraphModule, inputs: object) -> GraphModule:
        inside.append(limits())
        return module

    inside: list[tuple[int, bool]] = []
    before = limits()
    compile_plainly(monkeypatch, note)
    step = fused(lambda x: x + 1, half=False)
    assert limits() == before and not inside
    for size in (1, 2, 3):
        step(torch.zeros(size))
    assert inside == [(64, True)] * 3 and limits() == before

    def stubborn(x: Tensor) -> Tensor:
        raise ValueError

    with pytest.raises(TorchDynamoException):
        fused(stubborn, half=False)(torch.zeros(1))
    assert limits() == before


def compile_plainly(monkeypatch: pytest.MonkeyPatch, backend: Any = "eager") -> None:
    """What is compiled runs as it is."""
    compiler = torch.compile

    def plain(function: Any, *, fullgraph: bool, dynamic: bool, options: Any) -> Any:
        return compiler(function, backend=backend, fullgraph=fullgraph, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", plain)


def trained(name: str, options: dict[str, Any]) -> Tensor:
    predictors = run(configure(name, data="digits", **options)).predictors.values()
    return torch.cat([tree.row(getattr(each, "models", each)) for each in predictors])

"""The door `optimiser`: AdamW against torch's own, and one for every method."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglean.engine.stack import Stack
from fedglean.errors import ConfigError
from fedglean.exchange.states import ClientStates
from fedglean.method import Method
from fedglean.names import Names
from fedglean.optimiser import SGD, AdamW
from fedglean.runs.config import configure, fingerprint, make_method
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.schema import fields_of
from fedglean.testing.difference import difference
from fedglean.testing.engines import variant
from fedglean.testing.play import play
from fedglean.testing.small_federation import small_experiment

METHODS = Names.of().tables["METHODS"]
TRAINS_AT_ONCE: dict[str, Any] = {"active": 1.0, "epochs": 1, "threshold": 0.2, "warmup_rounds": 0}


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_steps_as_torchs_own(decay: float) -> None:
    start = {"a": torch.tensor([1.0, -2.0]).double(), "b": torch.tensor([[0.5]]).double()}
    live = {name: value.clone().requires_grad_() for name, value in start.items()}
    torchs = torch.optim.AdamW(live.values(), lr=0.05, weight_decay=decay)
    ours = AdamW(0.05, decay=decay)
    weights: dict[str, Tensor] = start
    memory: Any = ours.init(start)
    for step in range(6):
        gradient = {name: value.sin() * (step + 1) for name, value in weights.items()}
        for name, value in live.items():
            value.grad = gradient[name].clone()
        torchs.step()
        weights, memory = ours.update(
            weights, memory, gradient, torch.tensor(0.05, dtype=torch.float64)
        )
        for name, value in live.items():
            torch.testing.assert_close(weights[name], value.detach(), rtol=1e-12, atol=1e-12)


def with_adamw(name: str) -> Method:
    """The method with settings under which clients train from the first round on."""
    kind = METHODS[name].method
    settings = dict(METHODS[name].defaults.get("settings", {}))
    settings |= {key: value for key, value in TRAINS_AT_ONCE.items() if key in fields_of(kind)}
    if name == "hassle-release":
        settings["threshold"] = 0.0  # it has none
    return replace(kind(**settings), optimiser=AdamW)


FEDERATED = [
    name
    for name, entry in METHODS.items()
    if not entry.method.needs_sgd and entry.defaults.get("split", {}).get("clients") != 1
]


@pytest.mark.parametrize("name", FEDERATED)
def test_a_method_trains_with_another_optimiser_alike_on_both_executors(name: str) -> None:
    experiment = small_experiment(with_adamw(name), rounds=2)
    one_by_one = play(variant(experiment))
    assert difference(one_by_one.tree, play(variant(experiment, Stack)).tree, 1e-10) is None
    plain = small_experiment(replace(with_adamw(name), optimiser=SGD), rounds=2)
    assert difference(one_by_one.tree, play(variant(plain)).tree) is not None


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].method.needs_sgd])
def test_a_method_that_holds_for_sgd_alone_refuses_another(name: str) -> None:
    with pytest.raises(ConfigError, match="adamw"):
        make_method(configure(name, optimiser="adamw"))


def test_a_run_without_a_chosen_optimiser_is_called_as_ever() -> None:
    assert "optimiser" not in str(configure("semifl").settings)
    assert fingerprint(configure("semifl")) != fingerprint(configure("semifl", optimiser="adamw"))
    with pytest.raises(ConfigError, match="adamw"):
        configure("semifl", optimiser="adam-w")


@dataclass(frozen=True)
class SignSGD(SGD):
    """A stranger: only the sign of the gradient counts."""

    def update(
        self, weights: Any, memory: Any, gradient: Any, rate: Tensor, correction: Any = None
    ) -> Any:
        signs = {name: value.sign() for name, value in gradient.items()}
        return super().update(weights, memory, signs, rate, correction)


def test_an_optimiser_of_ones_own_is_named_like_a_method(tmp_path: Any) -> None:
    own = tmp_path / "own.py"
    own.write_text("from test_optimisers import SignSGD\nOPTIMISERS = {'sign': SignSGD}\n")
    config = configure(
        "fedavg", use=str(own), optimiser="sign", clients=4, rounds=1, labels="each:10", epochs=1
    )
    experiment = prepare(config)
    assert experiment.method.optimiser is SignSGD
    progress = Progress(0, experiment.start(), ClientStates(), [])
    line = play_round(experiment, progress, 1)
    assert line is not None and line["answered"] > 0

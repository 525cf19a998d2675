"""What a method may ask for beside training: numbers of the hub, keys in `start`, thresholds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedglean import tree
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Images, Predictions
from fedglean.method import Hub, Method, Report
from fedglean.models import Model
from fedglean.randomness import uniform
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.tree import Record


@dataclass(frozen=True)
class Spending(Method):
    """Begins with a head of its own, and says what a round has cost."""

    def start(self, make: Any) -> Record:
        return Record(model=make("model"), head=uniform(make.key, (3,)))

    async def round(self, hub: Hub, state: Record) -> Record:
        await Report(epsilon=0.5 * hub.round)
        return state


def experiment(seed: int) -> Experiment:
    config = configure("hub-only", rounds=2, seed=seed, executor="loop", device="cpu", norm="group")
    return replace(prepare(config), method=Spending())


def test_the_hub_reports_numbers_of_its_own() -> None:
    case = experiment(0)
    progress = Progress(0, case.start(), ClientStates(), [])
    lines = [play_round(case, progress, number) for number in (1, 2)]
    assert [line["report"] for line in lines if line] == [{"epsilon": 0.5}, {"epsilon": 1.0}]


def test_a_method_draws_more_than_models_in_its_start_by_a_key_of_the_seed() -> None:
    heads = [experiment(seed).start().head for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def guess(threshold: Any) -> list[bool]:
    images = Images(torch.zeros(3, 1, 1, 1, dtype=torch.uint8), torch.arange(3))
    rows = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.2, 0.8]])
    trusted: list[bool] = Predictions(images, rows, threshold).trusted.tolist()
    return trusted


def test_a_threshold_is_for_all_for_each_class_or_for_each_image() -> None:
    assert guess(None) == [True, True, True]
    assert guess(0.65) == [True, False, True]
    assert guess(torch.tensor([0.9, 0.5])) == [False, True, True]
    assert guess(torch.tensor([[0.5], [0.9], [0.8]])) == [True, False, True]


def test_a_start_is_a_tree() -> None:
    start: Callable[..., Any] = experiment(0).start
    assert isinstance(start().model, Model) and "head" in tree.named(start())

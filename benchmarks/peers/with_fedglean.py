"""fedglean itself: `fedavg` through the round loop, gate on, tests off, nothing written; the
executor is an argument.

The two networks are no models of the package: they are written in its words here, in a table of
this file, which the configuration uses.
"""

from typing import Any

from task import Task, arguments
from torch import Tensor
from torch.nn import functional as F
from worker import Turns

from fedglean.exchange.states import ClientStates
from fedglean.models.layers import Layers
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare, settled_for
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round

ROUNDS = 10**6


def logistic(layers: Layers, images: Tensor) -> Tensor:
    """S1."""
    return layers.linear("output", images.flatten(1), layers.classes)


def pfl_cnn(layers: Layers, images: Tensor) -> Tensor:
    """S2."""
    x = F.relu(layers.conv("conv1", images, 32, padding=0, bias=True))
    x = F.max_pool2d(F.relu(layers.conv("conv2", x, 64, padding=0, bias=True)), 2)
    return layers.linear(
        "output", F.relu(layers.linear("hidden", x.flatten(1), 128)), layers.classes
    )


MODELS = {"S1": logistic, "S2": pfl_cnn}

OPTIONS: dict[str, dict[str, Any]] = {
    "stack": {"executor": "stack"},
    "loop": {"executor": "loop"},
    "workers": {"executor": "loop", "placement": "workers", "workers": 2, "block": 5},
}


def experiment(task: Task, data: str, executor: str) -> Experiment:
    """The task as a user would configure it."""
    return prepare(
        configure(
            "fedavg",
            data="npz",
            data_root=data,
            model=task.name,
            use=__file__,
            rounds=ROUNDS,
            evaluate_every=ROUNDS,
            **OPTIONS[executor],
            device="cpu",
            active=task.active / task.clients,
            epochs=1,
            batch=task.batch,
            rate=task.rate,
            view="plain",
        )
    )


def main() -> None:
    task, folder, (executor,) = arguments()
    ready = experiment(task, str(folder / "own.npz"), executor)
    progress = Progress(0, ready.start(), ClientStates(), [])
    turns = Turns(task, "fedglean", "torch")
    with settled_for(ready.config), ready.placement:
        while True:
            line = play_round(ready, progress, progress.done + 1)
            assert line is not None and line["answered"] == task.active and not line["refused"]
            if turns.enough():
                break
    turns.end(ready.evaluator.test(ready.method.predictors(progress.state))["accuracy"]["model"])


if __name__ == "__main__":
    main()

"""fluke 0.8: CentralizedFL (its FedAvg) without evaluation; an observer of the rounds gives the
turn away.
"""

import torch
import without_torchvision_operators  # noqa: F401
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.server import EarlyStopping
from fluke.utils import FederationObserver
from network import accuracy, network, tensors
from task import CLASSES, Task, arguments, read
from torch import Tensor
from worker import Turns


class Held:
    """What fluke asks of a data splitter."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def assign(
        self, clients: int, batch: int
    ) -> tuple[tuple[list[FastDataLoader], list[None]], None]:
        pairs = zip(self.images, self.labels, strict=True)
        loaders = [
            FastDataLoader(*pair, num_labels=CLASSES, batch_size=batch, shuffle=True)
            for pair in pairs
        ]
        return (loaders, [None] * clients), None


class Pause(FederationObserver):
    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def end_round(self, round: int) -> None:
        if self.turns.enough():
            raise EarlyStopping(round)


def settings(task: Task) -> DDict:
    return DDict(
        client={
            "batch_size": task.batch,
            "local_epochs": 1,
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": task.rate},
            "scheduler": {"name": "StepLR", "gamma": 1.0, "step_size": 1},
        },
        server={"weighted": True},
        model=network(task),
    )


def main() -> None:
    task, folder, _ = arguments()
    torch.set_num_threads(1)
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(locals=False, server=False, pre_fit=False, post_fit=False)
    arrays = read(folder)
    algorithm = FedAVG(task.clients, Held(*tensors(arrays)), settings(task))
    turns = Turns(task, "fluke-fl", "torch")
    algorithm.set_callbacks([Pause(turns)])
    algorithm.run(10**6, task.active / task.clients)
    turns.end(accuracy(algorithm.server.model, arrays))


if __name__ == "__main__":
    main()

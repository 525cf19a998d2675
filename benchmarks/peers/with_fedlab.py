"""FedLab 1.3: its synchronous handler and serial trainer in its standalone pipeline."""

import copy
import random

import torch
import without_torchvision_operators  # noqa: F401
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from network import accuracy, network, tensors
from task import Task, arguments, read
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from worker import Turns


class Held:
    """What FedLab asks of a federated data set."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.sets = [TensorDataset(*pair) for pair in zip(images, labels, strict=True)]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        return DataLoader(self.sets[client], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    """FedLab evaluates after every round: there the turn is given away."""

    def __init__(
        self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, turns: Turns
    ) -> None:
        super().__init__(handler, trainer)
        self.turns = turns

    def evaluate(self) -> None:
        if self.turns.enough():
            self.handler.global_round = self.handler.round


def pipeline(task: Task, images: Tensor, labels: Tensor) -> Pipeline:
    model = network(task)
    trainer = SGDSerialClientTrainer(copy.deepcopy(model), task.clients)
    trainer.setup_dataset(Held(images, labels))
    trainer.setup_optim(epochs=1, batch_size=task.batch, lr=task.rate)
    handler = SyncServerHandler(model, global_round=10**6, sample_ratio=task.active / task.clients)
    return Pipeline(handler, trainer, Turns(task, "fedlab", "torch"))


def main() -> None:
    task, folder, _ = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    arrays = read(folder)
    play = pipeline(task, *tensors(arrays))
    play.main()
    play.turns.end(accuracy(play.handler.model, arrays))


if __name__ == "__main__":
    main()

"""pfl-research 0.6: its simulated backend and FederatedAveraging; a callback after each round gives
the turn away.
"""

from typing import Any

import numpy as np
import torch
from network import accuracy, network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import Arrays, Task, arguments, read
from torch import Tensor, nn
from torch.nn import functional as F
from worker import Turns


class Classifier(nn.Module):
    """pfl asks the module itself for its loss and metrics."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.net = network(task)

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        self.eval() if eval else self.train()
        return F.cross_entropy(self(images), labels)

    def metrics(self, images: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(images, labels, eval)) * len(labels), len(labels))}


class Pause(TrainingProcessCallback):
    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        return self.turns.enough(), Metrics()


def dataset(arrays: Arrays, task: Task) -> FederatedDataset:
    """A user's data are tensors from the start, so that no copy is made in a round."""
    users = list(range(task.clients))
    held = {
        u: [torch.from_numpy(arrays.train[u]), torch.from_numpy(arrays.train_labels[u])]
        for u in users
    }
    return FederatedDataset.from_slices(held, get_user_sampler("random", users))


def main() -> None:
    task, folder, _ = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    arrays = read(folder)
    classifier = Classifier(task)
    central = torch.optim.SGD(classifier.parameters(), lr=1.0)
    model = PyTorchModel(classifier, torch.optim.SGD, central)
    held = dataset(arrays, task)
    turns = Turns(task, "pfl", "torch")
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**6,
            train_cohort_size=task.active,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=held, val_data=held),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=task.rate, local_num_epochs=1, local_batch_size=task.batch
        ),
        model_eval_params=None,
        callbacks=[Pause(turns)],
    )
    turns.end(accuracy(classifier, arrays))


if __name__ == "__main__":
    main()

"""The networks as plain PyTorch modules, for all but fedglean, whose own words for them are in
`with_fedglean`.
"""

import torch
from task import CLASSES, Arrays, Task
from torch import Tensor, nn


def network(task: Task) -> nn.Sequential:
    """S1: logistic regression. S2: pfl's CIFAR-10 net of 1.63 M parameters, without its dropout."""
    if task.name == "S1":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def tensors(arrays: Arrays) -> tuple[Tensor, Tensor]:
    """All clients' images and labels."""
    return torch.from_numpy(arrays.train), torch.from_numpy(arrays.train_labels)


def accuracy(model: nn.Module, arrays: Arrays) -> float:
    """The share of the test set that is classified rightly."""
    model.eval()
    with torch.no_grad():
        guess = torch.cat(
            [model(part) for part in torch.split(torch.from_numpy(arrays.test), 500)]
        ).argmax(1)
    return float((guess.numpy() == arrays.test_labels).mean())

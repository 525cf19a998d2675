"""FedAvg as one writes it by hand in PyTorch: one model, loaded anew for each client, and a running
sum.
"""

import copy

import torch
from network import accuracy, network, tensors
from task import Task, arguments, read
from torch import Tensor, nn
from torch.nn import functional as F
from worker import Turns


def train(model: nn.Module, images: Tensor, labels: Tensor, task: Task) -> None:
    """One epoch of SGD at one client."""
    optimiser = torch.optim.SGD(model.parameters(), lr=task.rate)
    for batch in torch.split(torch.randperm(task.samples), task.batch):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(images[batch]), labels[batch]))
        optimiser.step()


def play_round(
    hub: nn.Module, local: nn.Module, images: Tensor, labels: Tensor, task: Task
) -> None:
    """Sample, train, average."""
    total = [torch.zeros_like(weight) for weight in hub.parameters()]
    for client in torch.randperm(task.clients)[: task.active].tolist():
        local.load_state_dict(hub.state_dict())
        train(local, images[client], labels[client], task)
        for sums, weight in zip(total, local.parameters(), strict=True):
            sums += weight.detach()
    with torch.no_grad():
        for weight, sums in zip(hub.parameters(), total, strict=True):
            weight.copy_(sums / task.active)


def main() -> None:
    task, folder, more = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(int(more[0]) if more else 0)
    arrays = read(folder)
    images, labels = tensors(arrays)
    hub = network(task)
    local = copy.deepcopy(hub)
    turns = Turns(task, "torch")
    while True:
        play_round(hub, local, images, labels, task)
        if turns.enough():
            break
    turns.end(accuracy(hub, arrays))


if __name__ == "__main__":
    main()

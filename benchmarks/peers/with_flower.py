"""Flower 1.41's simulation: its FedAvg strategy, Ray actors of one core each; CPU is that of all
its processes.
"""

import os
from contextlib import suppress
from pathlib import Path

import torch
from flower_client import app as client_app
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from network import accuracy, network
from task import Task, arguments, read
from worker import Turns


class Enough(Exception):
    """A strategy cannot be told to stop before its last round."""


def server_of(task: Task, folder: Path) -> ServerApp:
    """Flower tests the model at the hub after every round: there the turn is given away."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = network(task)
        turns = Turns(task, "flwr", "ray", "torch")

        def pause(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            if number and turns.enough():
                model.load_state_dict(arrays.to_torch_state_dict())
                turns.end(accuracy(model, read(folder)))
                raise Enough
            return None

        share = task.active / task.clients
        strategy = FedAvg(
            fraction_train=share, fraction_evaluate=0.0, min_available_nodes=task.clients
        )
        with suppress(Enough):
            strategy.start(
                grid, ArrayRecord(model.state_dict()), num_rounds=10**6, evaluate_fn=pause
            )

    return server


def main() -> None:
    task, folder, _ = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    here = str(Path(__file__).parent)
    os.environ |= {"PEERS_TASK": task.name, "PEERS_DATA": str(folder), "PYTHONPATH": here}
    run_simulation(
        server_of(task, folder),
        client_app,
        num_supernodes=task.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()

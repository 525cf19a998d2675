"""Flower's client. In a module of its own: an app defined in the main script is pickled with its
cache every time.
"""

import os
from functools import cache
from pathlib import Path

import torch
from by_hand import train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from network import network, tensors
from task import TASKS, read
from torch import Tensor, nn

app = ClientApp()


@cache
def local() -> tuple[nn.Module, Tensor, Tensor]:
    """The model and all data, once an actor."""
    torch.set_num_threads(1)
    return network(TASKS[os.environ["PEERS_TASK"]]), *tensors(read(Path(os.environ["PEERS_DATA"])))


@app.train()
def fit(message: Message, context: Context) -> Message:
    model, images, labels = local()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    train(model, images[client], labels[client], TASKS[os.environ["PEERS_TASK"]])
    sent = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(labels[client])}),
    }
    return Message(content=RecordDict(sent), reply_to=message)

"""The apps that Flower starts: `client_app` for every message, `server_app` once a run."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedglean import schema
from fedglean.data.party_folders import branch_images
from fedglean.federation.branch import Branch
from fedglean.federation.flower.carrier import FlowerCarrier, parts_of, reply_to
from fedglean.federation.flower.watch import take_work
from fedglean.runs.deploy_options import BranchOptions


def client_app_of(branch_in: Callable[[Context], Branch]) -> ClientApp:
    """The app of the branch that a node's configuration names."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return reply_to(message, branch_in(context).declare(parts_of(message)["question"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        parts = parts_of(message)
        return reply_to(message, branch_in(context).answer(parts["order"], parts["common"]))

    return app


_AT_WORK: list[BinaryIO] = []


def _branch_of(context: Context) -> Branch:
    """From `--node-config`."""
    own = schema.read(BranchOptions, dict(context.node_config), "node-config")
    _AT_WORK.append(take_work(own.state / "flower"))  # as long as this process lives
    use = None if own.use is None else str(own.use)
    images = branch_images(own.images)
    name = own.name or f"branch {own.number}"
    return Branch(own.number, name, images, own.state, own.device, use)


client_app = client_app_of(_branch_of)
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from fedglean.federation.hub import serve

    serve(FlowerCarrier(grid), Path(str(context.run_config["hub"])))

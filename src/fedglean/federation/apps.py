"""The two apps that Flower starts: `client_app` at a branch for every message, `server_app` at the
hub once a run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedglean.federation.branch import Branch
from fedglean.federation.folders import branch_images
from fedglean.federation.post import parts_of, reply_to
from fedglean.federation.watch import take_work


def client_app_of(branch: Branch | Callable[[Context], Branch]) -> ClientApp:
    """The app of a branch, or of the branch that a node's configuration names."""
    app = ClientApp()

    def found(context: Context) -> Branch:
        return branch if isinstance(branch, Branch) else branch(context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return reply_to(message, found(context).declare(parts_of(message)["question"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        parts = parts_of(message)
        return reply_to(message, found(context).answer(parts["order"], parts["common"]))

    return app


_AT_WORK: list[BinaryIO] = []


def _configured(context: Context) -> Branch:
    """From `--node-config`: the branch's number, its images, where it keeps its state, and on what
    it computes.
    """
    own = context.node_config
    images, state = Path(str(own["images"])), Path(str(own["state"]))
    _AT_WORK.append(take_work(state / "flower"))  # as long as this process lives
    device, use = str(own.get("device", "cpu")), str(own.get("use", "")) or None
    return Branch(int(own["number"]), str(own["name"]), branch_images(images), state, device, use)


client_app = client_app_of(_configured)
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from fedglean.federation.hub import serve

    serve(grid, Path(str(context.run_config["hub"])))

"""A `Grid` in one process: nodes are called, not sent to. For tests, and to rehearse a federation
without a network.
"""

import time
from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedglean.federation.apps import client_app_of
from fedglean.federation.branch import Branch


class LocalGrid(Grid):
    """One node a branch; `gone` nodes are not listed and do not answer. `starts` counts how often
    one was started.
    """

    def __init__(self, branches: Iterable[Branch]) -> None:
        # Message() takes its sender from here; Flower's runtime sets it in a process of its own.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.apps: dict[int, ClientApp] = {
            100 + place: client_app_of(each) for place, each in enumerate(branches)
        }
        self.gone: set[int] = set()
        self.starts: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}
        self.replies: dict[str, Message] = {}
        self.own = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        self.own = run

    @property
    def run(self) -> Run:
        return self.own

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.apps if node not in self.gone]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(
                node_id=node,
                last_activated_at=str(self.starts.get(node)),
                public_key=self.keys.get(node, b""),
            )
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name = f"{message.metadata.group_id}-{message.metadata.dst_node_id}-{time.monotonic_ns()}"
        message.metadata.__dict__["_message_id"] = name
        node = message.metadata.dst_node_id
        if node not in self.gone:
            self.replies[name] = self.answer(node, message)
        return name

    def answer(self, node: int, message: Message) -> Message:
        """What the node sends back; an error where its app raises, as Flower has it."""
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        try:
            return self.apps[node](message, context)
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

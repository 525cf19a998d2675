"""A small federation on a grid in this process, with a branch for each client of a simulation."""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity

from fedglean.exchange.states import ClientStates
from fedglean.federation.branch import Branch
from fedglean.federation.flower.apps import client_app_of
from fedglean.federation.flower.carrier import FlowerCarrier
from fedglean.federation.mailbox import Mailbox
from fedglean.federation.nodes import Nodes
from fedglean.federation.placement import Branches
from fedglean.federation.plan import RunPlan
from fedglean.runs.config import Config, configure
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.experiment import Experiment
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import LiveRun, play
from fedglean.testing.difference import difference

COMMON: dict[str, Any] = {
    "clients": 5,
    "block": 2,
    "rounds": 2,
    "epochs": 1,
    "device": "cpu",
    "executor": "loop",
    "dtype": "float64",
}
METHODS: dict[str, dict[str, Any]] = {
    "semifl": {
        "labels": "hub:100",
        "client_batch": 50,
        "hub_batch": 50,
        "threshold": 0.2,
        "active": 1.0,
    },
    "hassle": {"labels": "fraction:0.1", "residual_steps": 1, "active": 1.0, "batch": 100},
    "fed-shvr": {"labels": "fraction:0.1", "model": "cnn", "unlabelled_batch": 100},
}
#: What a hub waits for in tests.
QUICK = {"deadline": 0.2, "grace": 0.1, "gathering": 0.3}
ROUNDING = 1e-10
RUN = "0123456789abcdef"


class LocalGrid(Grid):
    """One node a branch; `gone` ones do not answer, `starts` counts how often one was started."""

    def __init__(self, branches: Iterable[Branch]) -> None:
        # Message() takes its sender from here; Flower's runtime sets it in a process of its own.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.apps: dict[int, ClientApp] = {
            100 + place: app_of(each) for place, each in enumerate(branches)
        }
        self.gone: set[int] = set()
        self.starts: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}
        self.replies: dict[str, Message] = {}
        self.own = FlowerRun.create_empty(1)

    def set_run(self, run: FlowerRun) -> None:
        self.own = run

    @property
    def run(self) -> FlowerRun:
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


def app_of(branch: Branch) -> ClientApp:
    return client_app_of(lambda context: branch)


def small(method: str, **options: Any) -> Config:
    return configure(method, **COMMON | METHODS[method] | options)


def branches(experiment: Experiment, folder: Path) -> list[Branch]:
    """A branch for each client of a simulation, with its images and no others."""
    federation = experiment.federation

    def branch(number: int) -> Branch:
        held = federation.labelled[number], federation.unlabelled[number]
        return Branch(number, f"branch {number}", lambda classes, form: held, folder / str(number))

    return [branch(number) for number in range(len(federation.declared))]


def mailbox_of(grid: Grid, experiment: Experiment, **options: Any) -> Mailbox:
    """The hub's, of an experiment in which each client is a branch."""
    dataset = experiment.dataset
    tell, keys = options.pop("tell", lambda sentence: None), options.pop("keys", None)
    own = {"branches": len(experiment.federation.declared), **QUICK, **options}
    hub = HubOptions(images=Path(), out=Path(), **own)
    carrier, shape = FlowerCarrier(grid, 0.01), dataset.train_images.shape[1:]
    return Mailbox(Nodes(carrier, hub.branches, dataset.classes, shape, keys, tell), hub)


def on_flower(
    experiment: Experiment, grid: LocalGrid, options: dict[str, float] = QUICK, **changes: Any
) -> Experiment:
    mailbox = mailbox_of(grid, experiment, **options)
    found, federation = mailbox.enrol(), experiment.federation
    assert [found[number].declared for number in sorted(found)] == list(federation.declared)
    gate = experiment.config.gate
    gate = replace(gate, quorum=changes.pop("quorum", gate.quorum))
    plan = RunPlan.of(experiment.config, experiment.dataset)
    own = {"method": experiment.method, "plan": plan, "run": RUN}
    placement = Branches(mailbox, federation, gate, **own, **changes)
    exchanger = replace(experiment.exchanger, placement=placement, quorum=gate.quorum, observe=None)
    return replace(experiment, exchanger=exchanger)


def played(
    experiment: Experiment, progress: Progress | None = None, rounds: int | None = None
) -> Progress:
    if rounds is not None:
        experiment = replace(experiment, config=replace(experiment.config, rounds=rounds))
    progress = progress or Progress(0, experiment.start(), ClientStates(), [])
    play([LiveRun(experiment, progress)], lambda lines: None)
    return progress


def same(ours: Progress, theirs: Progress, tolerance: float = ROUNDING) -> bool:
    found = difference(ours.state, theirs.state, tolerance)
    assert found is None, found
    return True


def refusals(progress: Progress) -> list[tuple[int, str]]:
    return [
        (each["client"], each["reason"]) for line in progress.history for each in line["refused"]
    ]

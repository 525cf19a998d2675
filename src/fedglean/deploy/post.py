"""The hub's side of Flower: which node is which branch, orders out, answers in.

Node ids are Flower's and mean nothing here. A branch's number is its identity: a node is asked for it once. A branch
that has not answered is asked nothing more until it has, so that later rounds do not wait for it again; its late
answer is a sign of life and nothing else.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedglean.deploy.wire import Answer, Declaration, Malformed, Question, read, written
from fedglean.errors import ConfigError, RoundError
from fedglean.method import Declared

RECORD = "fedglean"
#: Seconds that a round waits for a new node to say who it is, and after which one that did not is asked again.
RESTS = 30.0


@dataclass(frozen=True)
class Patience:
    """In seconds: for an answer, for the others once a quorum has answered, for a quorum to be there, between looks."""

    deadline: float = 3600.0
    grace: float = 600.0
    gathering: float = 600.0
    poll: float = 0.5


@dataclass(frozen=True)
class Failed:
    """Flower's word that no answer will come."""

    reason: str


@dataclass
class Post:
    """Finds the branches and exchanges letters with them."""

    grid: Grid
    classes: Sequence[str]
    patience: Patience = Patience()
    tell: Callable[[str], None] = lambda sentence: None
    #: What was declared, where the run knows it already, and by which node.
    declared: dict[int, Declared] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    claims: dict[int, Declaration] = field(default_factory=dict)
    asked: dict[str, tuple[int, float]] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)
    failed: dict[int, float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def enrol(self, count: int, shape: Sequence[int]) -> list[Declaration]:
        """Wait for all branches to say what they have; the first round needs to know."""
        end = time.monotonic() + self.patience.gathering
        while True:
            self._look_around()
            found = self._numbers(count, shape)
            if len(found) == count:
                self.declared = {n: Declared(each.labelled, each.unlabelled) for n, each in found.items()}
                self._assign(set(self.claims))
                return [found[number] for number in range(count)]
            missing = ", ".join(str(number) for number in range(count) if number not in found)
            if time.monotonic() > end:
                raise RoundError(
                    f"branches {missing} did not come within {self.patience.gathering:g} s; start them, then this again"
                )
            self._tell_once(f"waiting for branches {missing}, for {self.patience.gathering:g} s at most")
            time.sleep(self.patience.poll)

    def _numbers(self, count: int, shape: Sequence[int]) -> dict[int, Declaration]:
        found: dict[int, Declaration] = {}
        for claim in self.claims.values():
            if claim.number in found:
                raise ConfigError(f"two nodes say that they are branch {claim.number}; give each a number of its own")
            if not 0 <= claim.number < count:
                self._tell_once(f"a node says that it is branch {claim.number}; there are 0 to {count - 1}; refused")
            elif list(claim.shape) != list(shape):
                self._tell_once(f"branch {claim.number} has images of {claim.shape}, the hub of {list(shape)}; refused")
            else:
                found[claim.number] = claim
        return found

    def exchange(
        self, orders: Mapping[int, bytes], common: bytes, quorum: float, group: str
    ) -> dict[int, list[bytes | Failed]]:
        """The answers to orders by branch; none from a branch that is not there or not in time."""
        need = ceil(round(quorum * len(orders), 9))  # 0.07 * 100 is a hair above 7
        reachable = self._gather(list(orders), need)
        shared = _array(common)
        letters = {
            client: ArrayRecord({"order": _array(orders[client]), "common": shared}) for client in sorted(reachable)
        }
        sent = self._send({reachable[client]: letter for client, letter in letters.items()}, MessageType.TRAIN, group)
        clients = {node: client for client, node in reachable.items()}
        return self._collect({name: clients[node] for name, node in sent.items()}, need)

    def _collect(self, sent: Mapping[str, int], need: int) -> dict[int, list[bytes | Failed]]:
        """Until all have answered, or a quorum has and the grace is over, or the deadline is."""
        came: dict[int, list[bytes | Failed]] = {client: [] for client in sent.values()}
        pending, began, enough = set(sent), time.monotonic(), None
        while True:
            for name, body in self._pull(pending):
                if name in sent:
                    came[sent[name]].append(body)
                    pending.discard(name)
            now = time.monotonic()
            if enough is None and sum(any(isinstance(b, bytes) for b in own) for own in came.values()) >= need:
                enough = now
            in_time = now - began < self.patience.deadline
            if not pending or not in_time or (enough is not None and now - enough >= self.patience.grace):
                self.owed |= {name: sent[name] for name in pending}
                return came
            time.sleep(self.patience.poll)

    def _gather(self, clients: Sequence[int], need: int) -> dict[int, int]:
        """The nodes of those branches that can be asked; waits until they are a quorum."""
        began = time.monotonic()
        while True:
            here = self._look_around()
            busy = set(self.owed.values())
            free = {c: self.nodes[c] for c in clients if self.nodes.get(c) in here and c not in busy}
            waited = time.monotonic() - began
            introducing = any(node not in self.failed for node, _ in self.asked.values())
            if len(free) == len(clients) or (len(free) >= need and not introducing):
                return free
            if waited > self.patience.gathering:
                raise RoundError(
                    f"only {len(free)} of the {need} branches that are needed can be reached, and "
                    f"{self.patience.gathering:g} s of waiting are over; start this again once they are there"
                )
            self._tell_once(f"{len(free)} of {len(clients)} branches can be reached, {need} are needed; waiting")
            time.sleep(self.patience.poll)

    def _look_around(self) -> set[int]:
        """The nodes that are there; new ones are asked who they are, and whatever has come in is taken note of."""
        here = set(self.grid.get_node_ids())
        self.claims = {node: claim for node, claim in self.claims.items() if node in here}
        now = time.monotonic()
        for name in [name for name, (_, since) in self.asked.items() if now - since >= RESTS]:
            self.failed[self.asked.pop(name)[0]] = now
        resting = {node for node, since in self.failed.items() if now - since < RESTS}
        strangers = here - set(self.claims) - {node for node, _ in self.asked.values()} - resting
        question = ArrayRecord({"question": _array(written(Question(list(self.classes))))})
        names = self._send(dict.fromkeys(sorted(strangers), question), MessageType.QUERY, "who")
        self.asked |= {name: (node, now) for name, node in names.items()}
        for name, body in self._pull([*self.asked, *self.owed]):
            self.owed.pop(name, None)
            if name in self.asked:
                self._hear(self.asked.pop(name)[0], body)
        self._assign(here)
        return here

    def _hear(self, node: int, body: bytes | Failed) -> None:
        try:
            if isinstance(body, Failed):
                raise Malformed(body.reason)
            self.claims[node] = _declaration(body)
            self.failed.pop(node, None)
        except Malformed as error:
            self.failed[node] = time.monotonic()
            self._tell_once(f"node {node} did not say which branch it is: {error}")

    def _assign(self, here: set[int]) -> None:
        """A number belongs to the node that had it, for as long as it is there."""
        for node, claim in self.claims.items():
            number, holder = claim.number, self.nodes.get(claim.number)
            if number not in self.declared or holder == node:
                continue
            known, says = self.declared[number], Declared(claim.labelled, claim.unlabelled)
            if holder in here:
                self._tell_once(f"a second node says that it is branch {number}; refused")
            elif known != says:
                self._tell_once(f"branch {number} comes with {says}, but this run knows it with {known}; refused")
            else:
                self.nodes[number] = node

    def _send(self, letters: Mapping[int, ArrayRecord], kind: str, group: str) -> dict[str, int]:
        """The names of what was sent, by node."""
        ttl = 2 * self.patience.deadline
        messages = [
            Message(RecordDict({RECORD: letter}), node, kind, ttl=ttl, group_id=group)
            for node, letter in letters.items()
        ]
        names = list(self.grid.push_messages(messages)) if messages else []
        return {name: node for name, node in zip(names, letters, strict=False) if name}

    def _pull(self, names: Iterable[str]) -> list[tuple[str, bytes | Failed]]:
        wanted = list(names)
        replies = self.grid.pull_messages(wanted) if wanted else []
        return [(reply.metadata.reply_to_message_id, _body(reply)) for reply in replies]

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.add(sentence)
            self.tell(sentence)


def _array(content: bytes) -> Array:
    return Array("uint8", (len(content),), "fedglean", content)


def parts_of(message: Message) -> dict[str, bytes]:
    """The letters in a message, by name."""
    return {name: bytes(part.data) for name, part in message.content.array_records[RECORD].items()}


def reply_to(message: Message, content: bytes) -> Message:
    return Message(RecordDict({RECORD: ArrayRecord({"reply": _array(content)})}), reply_to=message)


def _body(reply: Message) -> bytes | Failed:
    if reply.has_error():
        return Failed(f"{reply.error.reason} (Flower's error {reply.error.code})"[:300])
    try:
        return parts_of(reply)["reply"]
    except Exception:
        return Failed("its reply holds no letter")


def _declaration(body: bytes) -> Declaration:
    try:
        return read(Declaration, body)[0]
    except Malformed:
        raise Malformed(read(Answer, body)[0].error) from None

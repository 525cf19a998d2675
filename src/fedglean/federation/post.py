"""The hub's side of Flower: which node is which branch, orders out, answers in.

Node ids are Flower's and mean nothing here. A branch's number is its identity: a node is asked for
it whenever it has been started, and where nodes have keys, a number belongs to one key. A branch
that has not answered is asked nothing more until it has, so that later rounds do not wait for it
again; its late answer is a sign of life and nothing else.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedglean.errors import ConfigError, RoundError, plain
from fedglean.exchange.gate import needed
from fedglean.federation.wire import Answer, Declaration, Malformed, Question, read, written
from fedglean.method import Declared

RECORD = "fedglean"
#: Seconds that a round waits for a new node to say who it is.
INTRODUCTION = 30.0
#: Seconds after which a node that did not say is asked again; it may be busy with an order of a hub
#: that was killed.
AGAIN = 300.0
#: Images that a branch may declare: the hub counts them one by one.
MOST = 10_000_000


@dataclass(frozen=True)
class Patience:
    """In seconds: for an answer; for the others once a quorum has answered; for branches to be
    there, all of them when the hub starts and a quorum later; between looks.
    """

    deadline: float = 3600.0
    grace: float = 600.0
    gathering: float = 600.0
    poll: float = 0.5


@dataclass(frozen=True)
class Failed:
    """Flower's word that no answer will come."""

    reason: str


class Node(NamedTuple):
    """What Flower says of a node: what it lost when it was started again, a later `started`
    tells.
    """

    started: str
    key: bytes


class Sent(NamedTuple):
    """A letter under way: to whom, which start of that node is to answer it, and since when."""

    node: int
    started: str
    at: float


@dataclass
class Post:
    """Finds the branches and exchanges letters with them.

    `count` branches are numbered from 0 and have images of that `shape`. `keys` are their public
    keys, None where nodes have none. `declared` is what they have, of those who have come;
    `welcome` hears of one who comes later.
    """

    grid: Grid
    classes: Sequence[str]
    count: int
    shape: Sequence[int]
    patience: Patience = Patience()
    tell: Callable[[str], None] = lambda sentence: None
    keys: Mapping[int, bytes] | None = None
    welcome: Callable[[Declaration], None] = lambda declaration: None
    declared: dict[int, Declared] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    claims: dict[int, Declaration] = field(default_factory=dict)
    here: dict[int, Node] = field(default_factory=dict)
    asked: dict[str, Sent] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)
    failed: dict[int, float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    gathered: bool = False

    def enrol(self, quorum: float = 1.0) -> dict[int, Declaration]:
        """What the branches have. Waits for all of them while it gathers; then a quorum will do."""
        end, need = time.monotonic() + self.patience.gathering, max(1, needed(quorum, self.count))
        while True:
            self._look_around()
            found, over = self._numbers(), time.monotonic() > end
            if len(found) == self.count or (over and len(found) >= need):
                break
            absent = [str(number) for number in range(self.count) if number not in found]
            missing = f"branch{'es' if len(absent) > 1 else ''} {', '.join(absent)}"
            if over:
                raise RoundError(
                    f"{missing} did not join within {self.patience.gathering:g} s, but the quorum "
                    f"is {need} of "
                    f"{self.count}; start what is missing, then the hub again"
                )
            self._tell_once(
                f"{len(found)} of {self.count} branches have joined, the quorum is {need}; "
                f"waiting up to {self.patience.gathering:g} s for {missing}"
            )
            time.sleep(self.patience.poll)
        self.declared = {number: declared_of(each) for number, each in found.items()}
        self._assign()
        self.gathered = True
        return found

    def _numbers(self) -> dict[int, Declaration]:
        found: dict[int, Declaration] = {}
        for claim in self.claims.values():
            if claim.number in found:
                raise ConfigError(
                    f"two nodes claim to be branch {claim.number}; give each its own number"
                )
            found[claim.number] = claim
        return found

    def exchange(
        self, orders: Mapping[int, bytes], common: bytes, quorum: float, group: str
    ) -> dict[int, list[bytes | Failed]]:
        """The answers to orders by branch; none from a branch that is not there or not in time.

        Waits until all have answered, or a quorum has and the grace is over, or the deadline is.
        """
        need = needed(quorum, len(orders))
        reachable, shared = self._gather(list(orders), need), _array(common)
        clients = {node: client for client, node in reachable.items()}

        def send(nodes: Iterable[int]) -> dict[str, Sent]:
            letters = {
                n: ArrayRecord({"order": _array(orders[clients[n]]), "common": shared})
                for n in sorted(nodes)
            }
            return self._send(letters, MessageType.TRAIN, group)

        came: dict[int, list[bytes | Failed]] = {client: [] for client in reachable}
        pending, began, enough = send(clients), time.monotonic(), None
        while True:
            answered = [(name, body) for name, body in self._pull(pending) if name in pending]
            for name, body in answered:
                came[clients[pending[name].node]].append(body)
            for name, _ in answered:
                pending.pop(name, None)
            now = time.monotonic()
            if (
                enough is None
                and sum(any(isinstance(b, bytes) for b in own) for own in came.values()) >= need
            ):
                enough = now
            in_time = now - began < self.patience.deadline
            if (
                not pending
                or not in_time
                or (enough is not None and now - enough >= self.patience.grace)
            ):
                self.owed |= {name: clients[each.node] for name, each in pending.items()}
                return came
            forgotten = self._forgotten(pending)
            pending = {name: each for name, each in pending.items() if name not in forgotten}
            pending |= send(each.node for each in forgotten.values())
            time.sleep(self.patience.poll)

    def _forgotten(self, sent: Mapping[str, Sent]) -> dict[str, Sent]:
        """Letters to nodes that are here, but were started again since."""
        self._look_around()
        return {
            name: each
            for name, each in sent.items()
            if each.node in self.here and self.here[each.node].started != each.started
        }

    def _gather(self, clients: Sequence[int], need: int) -> dict[int, int]:
        """The nodes of those branches that can be asked; waits until they are a quorum.

        A hub that was started again waits for the others too, while it gathers: nodes need time to
        come back.
        """
        began, known = (
            time.monotonic(),
            set(self.declared),
        )  # who comes meanwhile is asked the next time
        while True:
            self._look_around()
            may = known - set(self.owed.values())
            free = {
                c: self.nodes[c] for c in clients if self.nodes.get(c) in self.here and c in may
            }
            now = time.monotonic()
            introducing = any(now - sent.at < INTRODUCTION for sent in self.asked.values())
            settled = not introducing and (self.gathered or now - began >= self.patience.gathering)
            if len(free) == len(clients) or (len(free) >= need and settled):
                self.gathered = True
                return free
            if now - began > self.patience.gathering and len(free) < need:
                raise RoundError(
                    f"only {len(free)} of {len(clients)} branches could be reached within "
                    f"{self.patience.gathering:g} s, but the quorum is {need}; start the hub again "
                    "once they are there"
                )
            self._tell_once(
                f"{len(free)} of {len(clients)} branches can be reached, the quorum is {need}; "
                "waiting"
            )
            time.sleep(self.patience.poll)

    def _look(self) -> None:
        """Who is here. A node that was started again has forgotten everything, and may be another
        branch now.
        """
        nodes = {
            each.node_id: Node(each.last_activated_at, each.public_key)
            for each in self.grid.get_nodes()
        }
        fresh = {number for number, node in nodes.items() if self.here.get(number) != node}
        self.here = nodes
        self.claims = {
            node: claim
            for node, claim in self.claims.items()
            if node in nodes and node not in fresh
        }
        self.failed = {node: since for node, since in self.failed.items() if node not in fresh}
        self.asked = {
            name: sent
            for name, sent in self.asked.items()
            if sent.node in nodes and sent.node not in fresh
        }
        self.owed = {
            name: client
            for name, client in self.owed.items()
            if self.nodes.get(client) not in fresh
        }

    def _look_around(self) -> None:
        """See who is here; ask new nodes who they are, and take note of whatever has come in."""
        self._look()
        now = time.monotonic()
        self.asked = {name: sent for name, sent in self.asked.items() if now - sent.at < AGAIN}
        resting = {node for node, since in self.failed.items() if now - since < AGAIN}
        strangers = (
            self.here.keys() - self.claims - {sent.node for sent in self.asked.values()} - resting
        )
        question = ArrayRecord({"question": _array(written(Question(list(self.classes))))})
        self.asked |= self._send(
            dict.fromkeys(sorted(strangers), question), MessageType.QUERY, "who"
        )
        for name, body in self._pull([*self.asked, *self.owed]):
            self.owed.pop(name, None)
            if name in self.asked:
                self._hear(self.asked.pop(name).node, body)
        self._assign()

    def _hear(self, node: int, body: bytes | Failed) -> None:
        try:
            if isinstance(body, Failed):
                raise Malformed(f"node {node} did not say which branch it is: {body.reason}")
            claim = _declaration(body, node)
            claim = replace(claim, name=plain(claim.name))
            self._check(claim, self.here[node])
            self.claims[node] = claim
            self.failed.pop(node, None)
        except Malformed as error:
            self.failed[node] = time.monotonic()
            self._tell_once(str(error)[:300])

    def _check(self, claim: Declaration, node: Node) -> None:
        """Whether a node may be the branch that it says it is."""
        number = claim.number
        if not 0 <= number < self.count:
            raise Malformed(
                f"refused a node that claims to be branch {number}: there are only 0 to "
                f"{self.count - 1}"
            )
        if self.keys is not None and self.keys.get(number) != node.key:
            own = [str(other) for other, key in self.keys.items() if key == node.key]
            whose = f"the key of branch {own[0]}" if own else "a key that was not admitted"
            raise Malformed(f"refused a node that claims to be branch {number}: it has {whose}")
        if list(claim.shape) != list(self.shape):
            raise Malformed(
                f"refused branch {number}: its images are {claim.shape}, the hub's "
                f"{list(self.shape)}"
            )
        if not _possible(claim):
            raise Malformed(
                f"refused branch {number}: it declares impossible images, or more than {MOST} of "
                "them"
            )

    def _assign(self) -> None:
        """A number belongs to the node that had it, for as long as it is there."""
        for node, claim in self.claims.items():
            number, holder = claim.number, self.nodes.get(claim.number)
            if holder == node or not self.declared:
                continue
            known = self.declared.get(number)
            if holder in self.here:
                self._tell_once(f"refused a second node that claims to be branch {number}")
            elif known is not None and known != declared_of(claim):
                self._tell_once(
                    f"refused branch {number}: it now has {declared_of(claim)}, but this run began "
                    f"with {known}"
                )
            else:
                self.nodes[number] = node
                if known is None:
                    self.declared[number] = declared_of(claim)
                    self.welcome(claim)

    def _send(self, letters: Mapping[int, ArrayRecord], kind: str, group: str) -> dict[str, Sent]:
        """What was sent, by its name."""
        ttl = 2 * self.patience.deadline
        messages = [
            Message(RecordDict({RECORD: letter}), node, kind, ttl=ttl, group_id=group)
            for node, letter in letters.items()
        ]
        names, now = list(self.grid.push_messages(messages)) if messages else [], time.monotonic()
        return {
            name: Sent(node, self.here[node].started, now)
            for name, node in zip(names, letters, strict=False)
            if name
        }

    def _pull(self, names: Iterable[str]) -> list[tuple[str, bytes | Failed]]:
        """One by one: a reply that Flower cannot put together would take along the others of its
        call.
        """
        return [pulled for name in list(names) for pulled in self._pull_one(name)]

    def _pull_one(self, name: str) -> list[tuple[str, bytes | Failed]]:
        try:
            return [
                (each.metadata.reply_to_message_id, _body(each))
                for each in self.grid.pull_messages([name])
            ]
        except Exception as error:  # whatever Flower trips over
            return [(name, Failed(f"its reply cannot be put together ({type(error).__name__})"))]

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.add(sentence)
            self.tell(sentence)


def declared_of(declaration: Declaration) -> Declared:
    return Declared(declaration.labelled, declaration.unlabelled)


def _possible(claim: Declaration) -> bool:
    """Whether there can be such images: the hub computes with these numbers."""
    channels, height, width = claim.shape
    count = claim.labelled + claim.unlabelled
    if min(claim.labelled, claim.unlabelled) < 0 or count > MOST:
        return False
    if not len(claim.sums) == len(claim.squares) == channels:
        return False
    pixels = count * height * width
    return all(
        0 <= total <= 255 * pixels and total**2 <= pixels * squares and squares <= 255 * total
        for total, squares in zip(claim.sums, claim.squares, strict=True)
    )


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


def _declaration(body: bytes, node: int) -> Declaration:
    try:
        return read(Declaration, body)[0]
    except Malformed:
        try:
            answer = read(Answer, body)[0]
        except Malformed as error:
            raise Malformed(f"node {node} did not say which branch it is: {error}") from None
        raise Malformed(
            f"a node that calls itself branch {answer.client} cannot take part: {answer.error}"
        ) from None

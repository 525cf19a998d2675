"""Which node is which branch.

Node numbers are the carrier's and mean nothing here. A branch's number is its identity: a node is
asked for it whenever it has been started, and where nodes have keys, a number belongs to one key.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedglean.data.photos import AS_THEY_ARE, ImageForm
from fedglean.errors import ConfigError, plain
from fedglean.federation.carrier import Carrier, Node, Undelivered
from fedglean.federation.letters import Answer, Declaration, Malformed, Question, read, write
from fedglean.method import Declared

#: Seconds that a round waits for a new node to say who it is.
INTRODUCTION = 30.0
#: Seconds after which a node that did not say is asked again; it may be busy with an order of a hub
#: that was killed.
AGAIN = 300.0
#: Images that a branch may declare: the hub counts them one by one.
MOST = 10_000_000


@dataclass
class Presence:
    """A node since its last start: the question it was asked, when, and what it answered."""

    node: Node
    question: str = ""
    since: float = -AGAIN
    claim: Declaration | None = None


class Nodes:
    """The nodes that are here, and which of `count` branches with images of a shape they are.

    `declared` is what the branches have, of those who have come; `on_join` hears of one who comes
    later. `keys` are their public keys by number, None where nodes have none; `form` is what
    branches bring their images to.
    """

    def __init__(
        self,
        carrier: Carrier,
        count: int,
        classes: Sequence[str],
        shape: Sequence[int],
        keys: Mapping[int, bytes] | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
        form: ImageForm = AS_THEY_ARE,
    ) -> None:
        self.carrier, self.count, self.shape, self.keys = carrier, count, list(shape), keys
        self.tell = tell
        self.question = write(Question(list(classes), form))
        self.here: dict[int, Presence] = {}
        self.of_branch: dict[int, int] = {}
        self.declared: dict[int, Declared] = {}
        self.on_join: Callable[[Declaration], None] = lambda declaration: None
        self.told: set[str] = set()

    def look(self) -> None:
        """See who is here, ask new nodes who they are, and take note of what they answered."""
        found = self.carrier.nodes()
        for number, node in found.items():
            if number not in self.here or self.here[number].node != node:
                self.here[number] = Presence(node)
        self.here = {number: self.here[number] for number in found}
        self._ask()
        for number, presence in self.here.items():
            if presence.question:
                for body in self.carrier.answers(presence.question):
                    self._hear(number, presence, body)
        self.assign()

    def start_of(self, number: int) -> str | None:
        """When a node was started last; None of one that is not here."""
        return self.here[number].node.started if number in self.here else None

    def is_introducing(self) -> bool:
        """Whether a new node may still say who it is."""
        latest = time.monotonic() - INTRODUCTION
        return any(each.question and each.since > latest for each in self.here.values())

    def claims(self) -> dict[int, Declaration]:
        """What the nodes say of themselves, by the branches' numbers."""
        found: dict[int, Declaration] = {}
        for presence in self.here.values():
            claim = presence.claim
            if claim is None:
                continue
            if claim.number in found:
                raise ConfigError(
                    f"two nodes claim to be branch {claim.number}; give each its own number"
                )
            found[claim.number] = claim
        return found

    def assign(self) -> None:
        """A number belongs to the node that had it, for as long as it is there."""
        for number, presence in self.here.items():
            if presence.claim is not None and self.declared:
                self._assign(number, presence.claim)

    def tell_once(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.add(sentence)
            self.tell(sentence)

    def _ask(self) -> None:
        now = time.monotonic()
        questions = {}
        for number, each in sorted(self.here.items()):
            if each.claim is None and now - each.since >= AGAIN:
                questions[number] = self.question
        for name, number in self.carrier.ask(questions, AGAIN).items():
            self.here[number].question, self.here[number].since = name, time.monotonic()

    def _hear(self, number: int, presence: Presence, body: bytes | Undelivered) -> None:
        presence.question = ""
        try:
            claim = _declaration(body, number)
            self._check(claim, presence.node)
            presence.claim = claim
        except Malformed as error:
            presence.since = time.monotonic()
            self.tell_once(str(error)[:300])

    def _check(self, claim: Declaration, node: Node) -> None:
        """Whether a node may be the branch that it says it is."""
        number = claim.number
        if not 0 <= number < self.count:
            raise Malformed(
                f"refused a node that claims to be branch {number}: there are only 0 to "
                f"{self.count - 1}"
            )
        if self.keys is not None and self.keys.get(number) != node.key:
            whose = "a key that was not admitted"
            for other, key in self.keys.items():
                if key == node.key:
                    whose = f"the key of branch {other}"
            raise Malformed(f"refused a node that claims to be branch {number}: it has {whose}")
        if claim.shape != self.shape:
            raise Malformed(
                f"refused branch {number}: its images are {claim.shape}, the hub's {self.shape}; "
                "start the hub with --image-size to bring all to one size"
            )
        if not _is_possible(claim):
            raise Malformed(
                f"refused branch {number}: it declares impossible images, or more than {MOST} of "
                "them"
            )

    def _assign(self, node: int, claim: Declaration) -> None:
        number = claim.number
        holder, before = self.of_branch.get(number), self.declared.get(number)
        if holder == node:
            return
        if holder in self.here:
            self.tell_once(f"refused a second node that claims to be branch {number}")
        elif before is not None and before != claim.declared:
            self.tell_once(
                f"refused branch {number}: it now has {claim.declared}, but this run began with "
                f"{before}"
            )
        else:
            self.of_branch[number] = node
            if before is None:
                self.declared[number] = claim.declared
                self.on_join(claim)


def _declaration(body: bytes | Undelivered, node: int) -> Declaration:
    silent = f"node {node} did not say which branch it is"
    if isinstance(body, Undelivered):
        raise Malformed(f"{silent}: {body.reason}")
    try:
        claim = read(Declaration, body)[0]
        return replace(claim, name=plain(claim.name))
    except Malformed:
        try:
            answer = read(Answer, body)[0]
        except Malformed as error:
            raise Malformed(f"{silent}: {error}") from None
    raise Malformed(
        f"a node that calls itself branch {answer.client} cannot take part: {answer.error}"
    )


def _is_possible(claim: Declaration) -> bool:
    """Whether there can be such images: the hub computes with these numbers."""
    channels, height, width = claim.shape
    count = claim.labelled + claim.unlabelled
    if min(claim.labelled, claim.unlabelled) < 0 or count > MOST:
        return False
    if not len(claim.sums) == len(claim.squares) == channels:
        return False
    pixels = count * height * width
    for total, squares in zip(claim.sums, claim.squares, strict=True):
        is_mean_possible = 0 <= total <= 255 * pixels
        is_spread_possible = total**2 <= pixels * squares and squares <= 255 * total
        if not is_mean_possible or not is_spread_possible:
            return False
    return True

"""Orders out, answers in.

A branch that has not answered is asked nothing more until it has, so that later rounds do not wait
for it again; its late answer is a sign of life and nothing else.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedglean.errors import RoundError
from fedglean.exchange.gate import needed
from fedglean.federation.carrier import Undelivered
from fedglean.federation.letters import Declaration
from fedglean.federation.nodes import Nodes
from fedglean.runs.deploy_options import HubOptions

Answers = dict[int, list[bytes | Undelivered]]


class Sent(NamedTuple):
    """A letter on its way: to which branch, by which node and which start of that node."""

    branch: int
    node: int
    started: str | None


class Mailbox:
    """Waits for branches and exchanges letters with them."""

    def __init__(self, nodes: Nodes, options: HubOptions) -> None:
        self.nodes, self.carrier, self.options = nodes, nodes.carrier, options
        self.owed: dict[str, Sent] = {}
        self.has_gathered = False

    def enrol(self, quorum: float = 1.0) -> dict[int, Declaration]:
        """What the branches have. Waits for all of them while it gathers; then a quorum will do."""
        count, seconds = self.options.branches, self.options.gathering
        need = max(1, needed(quorum, count))
        end = time.monotonic() + seconds
        while True:
            self._look()
            found, is_over = self.nodes.claims(), time.monotonic() > end
            if len(found) == count or (is_over and len(found) >= need):
                break
            absent = [str(number) for number in range(count) if number not in found]
            missing = f"branch{'es' if len(absent) > 1 else ''} {', '.join(absent)}"
            if is_over:
                raise RoundError(
                    f"{missing} did not join within {seconds:g} s, but the quorum is {need} of "
                    f"{count}; start what is missing, then the hub again"
                )
            self.nodes.tell_once(
                f"{len(found)} of {count} branches have joined, the quorum is {need}; "
                f"waiting up to {seconds:g} s for {missing}"
            )
            time.sleep(self.carrier.pause)
        self.nodes.declared = {number: each.declared for number, each in found.items()}
        self.nodes.assign()
        self.has_gathered = True
        return found

    def exchange(
        self, orders: Mapping[int, bytes], common: bytes, quorum: float, group: str
    ) -> Answers:
        """The answers to orders by branch; none from a branch that is not there or not in time.

        Waits until all have answered, or a quorum has and the grace is over, or the deadline is.
        """
        need = needed(quorum, len(orders))
        reached = self._gather(list(orders), need)
        nodes = {reached[branch]: branch for branch in sorted(reached)}

        def send(asked: Iterable[int]) -> dict[str, Sent]:
            letters, sent = {node: orders[nodes[node]] for node in asked}, {}
            names = self.carrier.order(letters, common, group, 2 * self.options.deadline)
            for name, node in names.items():
                sent[name] = Sent(nodes[node], node, self.nodes.start_of(node))
            return sent

        received: Answers = {branch: [] for branch in reached}
        pending = send(sorted(nodes))
        began, enough = time.monotonic(), None
        while True:
            self._receive(pending, received)
            now = time.monotonic()
            if enough is None and _count_answered(received) >= need:
                enough = now
            is_late = now - began >= self.options.deadline
            if enough is not None and now - enough >= self.options.grace:
                is_late = True
            if is_late or not pending:
                self.owed |= pending
                return received
            self._look()
            lost = [name for name, sent in pending.items() if self._has_lost(sent)]
            if lost:
                pending |= send(sorted(pending.pop(name).node for name in lost))
            time.sleep(self.carrier.pause)

    def _receive(self, pending: dict[str, Sent], received: Answers) -> None:
        """Take in what has come; a letter that was answered is no longer pending."""
        for name, sent in list(pending.items()):
            answers = list(self.carrier.answers(name))
            if answers:
                received[sent.branch] += answers
                del pending[name]

    def _has_lost(self, sent: Sent) -> bool:
        """Whether the node is here, but was started again since."""
        return self.nodes.start_of(sent.node) not in (None, sent.started)

    def _gather(self, branches: Sequence[int], need: int) -> dict[int, int]:
        """The nodes of those branches that can be asked; waits until they are a quorum.

        A hub that was started again waits for the others too, while it gathers: nodes need time to
        come back. Who joins meanwhile is asked the next time.
        """
        began, known = time.monotonic(), set(self.nodes.declared)
        seconds = self.options.gathering
        while True:
            self._look()
            free = self._free([each for each in branches if each in known])
            is_over = time.monotonic() - began >= seconds
            is_settled = not self.nodes.is_introducing() and (self.has_gathered or is_over)
            if len(free) == len(branches) or (len(free) >= need and is_settled):
                self.has_gathered = True
                return free
            if is_over and len(free) < need:
                raise RoundError(
                    f"only {len(free)} of {len(branches)} branches could be reached within "
                    f"{seconds:g} s, but the quorum is {need}; start the hub again once they are "
                    "there"
                )
            self.nodes.tell_once(
                f"{len(free)} of {len(branches)} branches can be reached, the quorum is {need}; "
                "waiting"
            )
            time.sleep(self.carrier.pause)

    def _free(self, branches: Iterable[int]) -> dict[int, int]:
        """The nodes of those that are here and owe nothing."""
        owing = {sent.branch for sent in self.owed.values()}
        found = {}
        for branch in branches:
            node = self.nodes.of_branch.get(branch)
            if node is not None and node in self.nodes.here and branch not in owing:
                found[branch] = node
        return found

    def _look(self) -> None:
        """See who is here, and who has answered at last; who was started anew owes nothing."""
        self.nodes.look()
        for name, sent in list(self.owed.items()):
            if self._has_lost(sent) or list(self.carrier.answers(name)):
                del self.owed[name]


def _count_answered(received: Answers) -> int:
    """Branches that have sent a letter, whatever is in it."""
    count = 0
    for answers in received.values():
        if any(isinstance(answer, bytes) for answer in answers):
            count += 1
    return count

"""A branch's side: it declares what it has, and runs the client's part of a method on it.

A branch remembers nothing between two letters but what it keeps on its own disk. Flower starts a
process for each.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedglean import tree
from fedglean.engine.device import chosen_device, settle
from fedglean.engine.loop import Loop, Party
from fedglean.errors import FedgleanError, plain
from fedglean.federation.states import States, version_of
from fedglean.federation.wire import (
    LARGEST,
    Answer,
    Broadcast,
    Declaration,
    Malformed,
    Order,
    Plan,
    Question,
    Unable,
    function_of,
    read,
    trees_of,
    written,
)
from fedglean.inputs.images import Images, Predictions
from fedglean.method import Me, Method, Upload
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree

log = logging.getLogger(__name__)

#: (labelled, unlabelled) images, once the classes are known.
Holdings = Callable[[Sequence[str]], tuple[Images, Images]]


@dataclass(frozen=True)
class Branch:
    """One client of the federation; its number is its identity. `use` is a file with methods or
    models of its own.
    """

    number: int
    name: str
    images: Holdings
    folder: Path
    device: str = "cpu"
    use: str | None = None

    def declare(self, question: bytes) -> bytes:
        """What the hub must know before the first round. Of pixels, two sums a channel."""
        return self._told(0, 0, lambda: self._declaration(read(Question, question)[0]))

    def answer(self, order: bytes, common: bytes) -> bytes:
        """The client's part of one exchange."""
        try:
            parsed, own = read(Order, order, LARGEST)
        except Malformed as error:
            return written(Answer(0, 0, self.number, error=f"the order cannot be read: {error}"))
        return self._told(parsed.round, parsed.ask, lambda: self._answer(parsed, own, common))

    def method_of(self, plan: Plan) -> Method:
        return plan.make_method(self.use)

    def _told(self, round: int, ask: int, work: Callable[[], bytes]) -> bytes:
        """What goes wrong is told to the hub, but not in words that may name this branch's files:
        those are logged.
        """
        try:
            return work()
        except (Unable, Malformed) as error:
            reason = str(error)
            log.warning(
                "round %d: branch %d could not answer: %s", round, self.number, plain(reason)
            )
        except Exception as error:
            reason = f"{type(error).__name__} at the branch; its own log says more"
            unforeseen = not isinstance(error, FedgleanError)
            words = plain(str(error))
            log.error(
                "round %d: branch %d could not answer: %s",
                round,
                self.number,
                words,
                exc_info=unforeseen,
            )
        return written(Answer(round, ask, self.number, error=reason))

    def _declaration(self, question: Question) -> bytes:
        labelled, unlabelled = self.images(question.classes)
        pixels = torch.cat(
            [part.pixels(torch.arange(len(part))) for part in (labelled, unlabelled)]
        ).long()
        sums, squares = (part.sum(dim=(0, 2, 3)).tolist() for part in (pixels, pixels * pixels))
        shape = list(pixels.shape[1:])
        return written(
            Declaration(
                self.number, self.name, len(labelled), len(unlabelled), shape, sums, squares
            )
        )

    def _answer(self, order: Order, own: Tree, common: bytes) -> bytes:
        if order.client != self.number:
            raise Unable(
                f"this is branch {self.number}, but the order is for branch {order.client}"
            )
        states, plan = States(self.folder, order.run, self.number), order.plan
        method = self.method_of(plan)
        labelled, unlabelled = self.images(plan.classes)
        if (len(labelled), len(unlabelled)) != (order.labelled, order.unlabelled):
            raise Unable(
                f"it has {len(labelled)} labelled and {len(unlabelled)} unlabelled images, but "
                f"declared {order.labelled} and {order.unlabelled}; put them back, or start a new "
                "run"
            )
        device = chosen_device(self.device)
        settle(device, plan.threads, plan.deterministic)
        message = tree.to_device(Record({**read(Broadcast, common, LARGEST)[1], **own}), device)
        state = tree.to_device(states.load(order.version), device)
        me = Me(
            self.number, *_moved(labelled, unlabelled, device), state, fold_int(order.key, "me")
        )
        guesses: list[Predictions] = []
        talk = function_of(order.function, method)(me, message)
        party = Party(f"round {order.round}, client {self.number}", talk, order.key, guesses.append)
        upload: Upload | None = Loop(plan.setting()).run([party])[0]
        version = (
            version_of(order.round, order.ask)
            if upload is not None and upload.keep is not None
            else ""
        )
        if upload is not None and version:
            states.put(version, upload.keep)
        states.settle(version, order.version, order.settled)
        seen, trusted = (
            sum(len(guess.images) for guess in guesses),
            sum(int(each.trusted.sum()) for each in guesses),
        )
        answer = Answer(
            order.round, order.ask, self.number, version, seen, trusted, upload is not None
        )
        if upload is None:
            return written(answer)
        return written(replace(answer, report=dict(upload.report)), trees_of(upload))


def _moved(labelled: Images, unlabelled: Images, device: torch.device) -> tuple[Images, Images]:
    """To where this branch computes; what shared a store still does."""
    store = labelled.store.to(device)
    other = store if unlabelled.store is labelled.store else unlabelled.store.to(device)
    label = None if labelled.label is None else labelled.label.to(device)
    return Images(store, labelled.index.to(device), label), Images(
        other, unlabelled.index.to(device)
    )

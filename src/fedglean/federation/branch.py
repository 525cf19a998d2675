"""A branch's side: it declares what it has, and runs the client's part of a method on it.

A branch remembers nothing between two letters but what it keeps on its own disk.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from fedglean import tree
from fedglean.data.party_folders import Holdings, pixel_sums
from fedglean.engine.device import chosen_device, settled
from fedglean.engine.loop import Loop
from fedglean.engine.task import Party
from fedglean.errors import FedgleanError, plain
from fedglean.federation.letters import (
    LARGEST,
    Answer,
    Broadcast,
    Declaration,
    Malformed,
    Order,
    Question,
    read,
    write,
    write_answer,
)
from fedglean.federation.plan import RunPlan, Unable, function_of
from fedglean.federation.states import States, version_of
from fedglean.inputs.images import Images, Predictions
from fedglean.method import Me, Method, Upload
from fedglean.models.nets import NetKind
from fedglean.names import Names
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Branch:
    """One client of the federation; its number is its identity.

    `use` is a file with methods or models of its own.
    """

    number: int
    name: str
    images: Holdings
    folder: Path
    device: str = "cpu"
    use: str | None = None

    def declare(self, question: bytes) -> bytes:
        """What the hub must know before the first round. Of pixels, two sums a channel."""
        return self._reply(0, 0, lambda: self._declaration(read(Question, question)[0]))

    def answer(self, order: bytes, common: bytes) -> bytes:
        """The client's part of one exchange."""
        try:
            parsed, own = read(Order, order, LARGEST, self._net)
        except Malformed as error:
            return write(Answer(0, 0, self.number, error=f"the order cannot be read: {error}"))
        return self._reply(parsed.round, parsed.ask, lambda: self._answer(parsed, own, common))

    def method_of(self, plan: RunPlan) -> Method:
        return plan.make_method(self._names)

    @cached_property
    def _names(self) -> Names:
        return Names.of(self.use)

    def _net(self, name: str) -> NetKind:
        return self._names.net(name)

    def _reply(self, round: int, ask: int, work: Callable[[], bytes]) -> bytes:
        """Tell the hub what goes wrong, but in no words that may name this branch's files."""
        where = f"round {round}: branch {self.number} could not answer"
        try:
            return work()
        except (Unable, Malformed) as error:
            reason = str(error)
            log.warning("%s: %s", where, plain(reason))
        except Exception as error:
            reason = f"{type(error).__name__} at the branch; its own log says more"
            is_bug = not isinstance(error, FedgleanError)
            log.error("%s: %s", where, plain(str(error)), exc_info=is_bug)
        return write(Answer(round, ask, self.number, error=reason))

    def _declaration(self, question: Question) -> bytes:
        labelled, unlabelled = self.images(question.classes, question.form)
        parts = [each.pixels(torch.arange(len(each))) for each in (labelled, unlabelled)]
        pixels = torch.cat(parts)
        sums, squares = pixel_sums(pixels)
        return write(
            Declaration(
                number=self.number,
                name=self.name,
                labelled=len(labelled),
                unlabelled=len(unlabelled),
                shape=list(pixels.shape[1:]),
                sums=sums,
                squares=squares,
            )
        )

    def _answer(self, order: Order, own: Tree, common: bytes) -> bytes:
        labelled, unlabelled = self._images_for(order)
        method = self.method_of(order.plan)
        states = States(self.folder, order.run, self.number)
        device = chosen_device(self.device)
        labelled, unlabelled = _to_device(labelled, unlabelled, device)
        _, sent = read(Broadcast, common, LARGEST, self._net)
        message = tree.to_device(Record({**sent, **own}), device)
        state = tree.to_device(states.load(order.version, self._net), device)
        me = Me(self.number, labelled, unlabelled, state, fold_int(order.key, "me"))
        guesses: list[Predictions] = []
        party = Party(
            f"round {order.round}, client {self.number}",
            function_of(order.function, method)(me, message),
            order.key,
            guesses.append,
        )
        executor = Loop(order.plan.setting(self._names))
        with settled(device, order.plan.engine.threads, order.plan.engine.deterministic):
            upload: Upload | None = executor.run([party])[0]
        version = ""
        if upload is not None and upload.keep is not None:
            version = version_of(order.round, order.ask)
            states.put(version, upload.keep)
        states.settle(version, order.version, order.settled)
        answer = Answer(
            round=order.round,
            ask=order.ask,
            client=self.number,
            version=version,
            seen=sum(len(each.images) for each in guesses),
            trusted=sum(int(each.trusted.sum()) for each in guesses),
            uploads=upload is not None,
            report=None if upload is None else dict(upload.report),
        )
        return write_answer(answer, upload)

    def _images_for(self, order: Order) -> tuple[Images, Images]:
        if order.client != self.number:
            raise Unable(
                f"this is branch {self.number}, but the order is for branch {order.client}"
            )
        labelled, unlabelled = self.images(order.plan.classes, order.plan.form)
        if (len(labelled), len(unlabelled)) != (order.labelled, order.unlabelled):
            raise Unable(
                f"it has {len(labelled)} labelled and {len(unlabelled)} unlabelled images, but "
                f"declared {order.labelled} and {order.unlabelled}; put them back, or start a new "
                "run"
            )
        return labelled, unlabelled


def _to_device(labelled: Images, unlabelled: Images, device: torch.device) -> tuple[Images, Images]:
    """To where this branch computes; what shared a store still does."""
    store = labelled.store.to(device)
    other = store if unlabelled.store is labelled.store else unlabelled.store.to(device)
    label = None if labelled.label is None else labelled.label.to(device)
    mine = Images(store, labelled.index.to(device), label)
    return mine, Images(other, unlabelled.index.to(device))

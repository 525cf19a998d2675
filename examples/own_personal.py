"""A model for each client, of which only a part is common: `fedglean run personal --use
own_personal.py` (FedRep, Collins et al. 2021; FedBN, Li et al. 2021).
"""

from dataclasses import dataclass

from fedglean import Ask, Method, Predict, Report, Statistics, Stream, Train, Upload, setting
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.settings import WithSGD, needs_labels_at_clients
from fedglean.randomness import fold_int, order
from fedglean.tree import Record


@dataclass(frozen=True)
class Personal(WithSGD, Method):
    """Each client keeps its last layer, or its norms; the rest is averaged."""

    defaults = {"split": {"partition": "dirichlet:0.3", "labels": "all", "clients": 10}}
    check = needs_labels_at_clients("Personal", instead="hub-only")
    momentum = 0.9

    own: str = setting("head", "what a client keeps for itself", choices=("head", "norms"))
    epochs: int = setting(3, "local epochs", low=1)
    rate: float = settings.rate(0.05)
    held_out: float = settings.share(0.3, "share of its labels that a client tests with")

    async def round(self, hub, state):
        model = state.model.for_training()
        # The whole model goes out, for its form; the common part is what comes back.
        message = {"model": model, "common": self.parts(model)[0]}
        reply = await Ask(self.client, hub.everyone, message, collect="all")
        accuracies = [upload.report["own_accuracy"] for upload in reply.uploads.values()]
        if accuracies:
            await Report(worst_client=min(accuracies))
        model = model.with_parameters({**model.parameters, **reply.mean("common")})
        return Record(model=await with_statistics(model, hub))

    async def client(self, me, message):
        place = order(fold_int(me.number, "held out"), len(me.labelled))
        is_held_out = place < self.held_out * len(me.labelled)
        train, test = me.labelled.subset(~is_held_out), me.labelled.subset(is_held_out)
        if len(train) < 2 or not test:
            return None
        model, kept = message.model, me.state or {}
        model = model.with_parameters({**model.parameters, **kept})
        streams = {"labelled": Stream(train)}
        trained = await Train(model, streams, supervised, self.sgd, epochs=self.epochs)
        common, own = self.parts(trained.model)
        accuracy = await own_accuracy(trained.model, train, test)
        report = {"own_accuracy": accuracy}
        return Upload(common=common, weight=len(train), keep=own, report=report)

    def parts(self, model):
        """The parameters that all have in common, and those of each client alone."""
        head = model.architecture.head
        common, own = {}, {}
        for name, value in model.parameters.items():
            is_own = name in head if self.own == "head" else "norm" in name
            part = own if is_own else common
            part[name] = value
        return common, own


async def own_accuracy(model, train, test):
    if model.needs_statistics:
        model = model.with_statistics(await Statistics(model, train))
    guess = await Predict(model, test)
    return float((guess.hard.label == test.label).double().mean())


METHODS = {"personal": Personal}

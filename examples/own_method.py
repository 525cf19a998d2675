from dataclasses import dataclass

from fedglean import Ask, Method, Predict, Stream, Train, Upload, setting
from fedglean.methods.common import supervised, with_statistics
from fedglean.optimiser import SGD
from fedglean.tree import Record


@dataclass(frozen=True)
class PseudoAvg(Method):
    """Labels at the hub; FedAvg on the clients' images that the hub's model is sure of."""

    active: float = setting(0.25, "share of the clients that take part in a round", low=0, high=1)
    threshold: float = setting(
        0.9, "a guess with at least this confidence counts as a label", low=0, high=1
    )
    epochs: int = setting(5, "local epochs, at the hub and at clients", low=1)

    async def round(self, hub, state):
        tuned = await self.training(state.model, hub.labelled, view="weak")
        sent = await with_statistics({"model": tuned.model}, hub, "everyone")
        reply = await Ask(self.client, to=hub.sample(self.active), message=sent)
        return Record(model=reply.mean("model"), tested=sent["model"])

    async def client(self, me, message):
        guess = await Predict(message.model, me.unlabelled, threshold=self.threshold)
        if not guess.confident:
            return None
        trained = await self.training(message.model, guess.confident, view="strong")
        return Upload(model=trained.model, weight=len(guess.confident))

    def training(self, model, images, view):
        return Train(
            model,
            {"labelled": Stream(images, view)},
            supervised,
            SGD(0.03, momentum=0.9),
            epochs=self.epochs,
        )

    def predictors(self, state):
        return {"model": state.tested}


METHODS = {"pseudo-avg": PseudoAvg}

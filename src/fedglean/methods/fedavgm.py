"""FedAvgM (Hsu et al. 2019): momentum at the hub, so that skewed cohorts do not undo each other.

Only clients with labels train, on their labelled images; other images and clients count for nothing
but the test statistics of static batch norm.

The row "HeteroFL" of SemiFL's table is this with equal weights, clipped gradients, Nesterov
momentum that clients keep from visit to visit and all labels at the clients (`heterofl-semifl`);
its models all have the full width.
"""

from dataclasses import dataclass

from fedglean import tree
from fedglean.method import Ask, Hub, MakeModel, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import ModelAndVelocity, supervised, with_momentum, with_statistics
from fedglean.methods.settings import SKEWED, WithSGD, needs_labels_at_clients, on_a_laptop, setting
from fedglean.optimiser import cosine
from fedglean.tree import Record


@dataclass(frozen=True)
class FedAvgM(WithSGD, Method):
    """V <- m V + (W - mean), W <- W - V at the hub; without momentum it is FedAvg."""

    defaults = on_a_laptop(20, SKEWED, active=0.4, epochs=2, batch=32, rate=0.1, view="plain")
    check = needs_labels_at_clients("FedAvgM")

    active: float = settings.active(0.4)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = settings.rate(0.05)
    annealed: bool = settings.annealed()
    global_momentum: float = settings.global_momentum(0.9, high=0.999)
    momentum: float = settings.momentum(0.0, "momentum at clients")
    nesterov: bool = setting(False, "Nesterov's momentum at clients")
    keep_momentum: bool = setting(False, "a client continues with the momentum of its last visit")
    decay: float = settings.decay(0.0)
    clip: float | None = settings.clip(None)
    weigh_by: str = setting("images", "what a client is weighted by", choices=("images", "nothing"))
    view: str = settings.view("weak")

    def start(self, make: MakeModel) -> ModelAndVelocity:
        model = make("model")
        return ModelAndVelocity(model, tree.zeros(model.parameters))

    async def round(self, hub: Hub, state: ModelAndVelocity) -> ModelAndVelocity:
        rate = cosine(self.rate, hub.progress) if self.annealed else self.rate
        once = ["model"] if self.weigh_by == "nothing" else []
        message = {"model": state.model, "rate": rate}
        reply = await Ask(self.client, hub.sample(self.active), message, once=once)
        if not reply.has("model"):
            return state
        mean = reply.mean("model")
        model, velocity = with_momentum(state.model, mean, state.velocity, self.global_momentum)
        return ModelAndVelocity(await with_statistics(model, hub), velocity)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        model, rate = message.model, message.rate
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        trained = await Train(
            model, streams, supervised, self.sgd, epochs=self.epochs, memory=me.state, rate=rate
        )
        keep = trained.memory if self.keep_momentum else None
        weight = len(me.labelled) if self.weigh_by == "images" else 1
        return Upload(model=trained.model, weight=weight, keep=keep, report=trained.metrics)

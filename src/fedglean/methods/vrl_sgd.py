"""VRL-SGD (Liang et al. 2019): local SGD that subtracts how a worker's gradients differ.

Everybody takes part in every round with the same number of steps, and then the printed recursion,
Delta_k += (mean - own) / (k rate), says Delta_k = c_k - c with c_k the worker's mean gradient of
the last round and c the mean of those: SCAFFOLD's correction, without the second upload, as c
follows from the mean of the models. Kept in this form a lost or refused upload leaves the
corrections summing to zero, where the recursion would carry the error along for ever.

Only clients with labels are workers, on their labelled images, all with the same weight; other
images and clients count for nothing but the test statistics of static batch norm.
"""

from dataclasses import dataclass

from fedglean import tree
from fedglean.method import Ask, Hub, MakeModel, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.scaffold import ModelAndControl, train_corrected
from fedglean.methods.settings import SKEWED, WithSGD, needs_labels_at_clients, on_a_laptop, setting
from fedglean.tree import Record


@dataclass(frozen=True)
class VRLSGD(WithSGD, Method):
    """Algorithm 1; with `warm_up` it is VRL-SGD-W."""

    needs_sgd = True
    defaults = on_a_laptop(20, SKEWED, period=10, rate=0.1, view="plain")
    check = needs_labels_at_clients("VRL-SGD")

    period: int = setting(20, "local steps per round, the same for all", low=1)
    batch: int = setting(32, "batch size", low=1)
    rate: float = setting(0.005, "learning rate", low=1e-9)
    decay: float = settings.decay(0.0)
    warm_up: bool = setting(False, "a first round of one step, so that corrections start out exact")
    view: str = settings.view("weak")

    def start(self, make: MakeModel) -> ModelAndControl:
        model = make("model")
        return ModelAndControl(model, tree.zeros(model.parameters))

    async def round(self, hub: Hub, state: ModelAndControl) -> ModelAndControl:
        steps = 1 if self.warm_up and hub.round == 1 else self.period
        message = {"model": state.model, "control": state.control, "steps": steps}
        reply = await Ask(self.client, hub.everyone, message, once=["model"])
        mean, workers = reply.mean("model"), sum(client.labelled > 0 for client in hub.clients)
        # c_k changes by (model - own) / (k rate) - c, so c by the mean of that over all workers.
        share, length = reply.count("model") / workers, steps * self.rate
        control = tree.map(
            lambda c, x, y: c + share * ((x - y) / length - c),
            state.control,
            state.model.parameters,
            mean.parameters,
        )
        return ModelAndControl(await with_statistics(mean, hub), control)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        training = Train(message.model, streams, supervised, self.sgd, steps=message.steps)
        trained, own, _ = await train_corrected(me, message.control, training)
        return Upload(model=trained.model, keep=own, report=trained.metrics)

"""SCAFFOLD (Karimireddy et al., ICML 2020): local gradients corrected by what a client leans to.

The hub keeps c, the mean of the clients' gradients, and a client its own, c_k. A step follows
g - c_k + c, so that at the optimum of all clients together nobody moves, whatever its own data
would like.

Only clients with labels take part, on their labelled images, all with the same weight; other images
and clients count for nothing but the test statistics of static batch norm.

c_k follows from the steps that the client really took (option II with its own K), as clients of
different sizes have different numbers of epochs' steps. It is kept, and c changed, once the upload
is admitted: c stays the mean of the c_k.
"""

from dataclasses import dataclass, replace

from fedglean import tree
from fedglean.method import Ask, Expect, Hub, MakeModel, Me, Method, Stream, Train, Trained, Upload
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.settings import SKEWED, WithSGD, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class ModelAndControl(State):
    """The model, and the hub's control variate c."""

    model: Model
    control: Tree


@dataclass(frozen=True)
class Scaffold(WithSGD, Method):
    """Algorithm 1 with option II; plain SGD, as momentum would be taken for gradients."""

    needs_sgd = True
    defaults = on_a_laptop(20, SKEWED, active=0.4, epochs=2, batch=32, rate=0.1, view="plain")
    check = needs_labels_at_clients("SCAFFOLD")

    active: float = settings.active(0.2)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(0.05, "learning rate at clients", low=1e-9)
    global_rate: float = setting(1.0, "how far the hub goes towards the clients' mean", low=0)
    decay: float = settings.decay(0.0)
    clip: float | None = settings.clip(None, "largest norm of a gradient, before its correction")
    view: str = settings.view("weak")

    def start(self, make: MakeModel) -> ModelAndControl:
        model = make("model")
        return ModelAndControl(model, tree.zeros(model.parameters))

    async def round(self, hub: Hub, state: ModelAndControl) -> ModelAndControl:
        model, control = state.model, state.control
        message = {"model": model, "control": control}
        expect, once = {"change": Expect(control, bound=1e3)}, ["model", "change"]
        reply = await Ask(self.client, hub.sample(self.active), message, expect=expect, once=once)
        # Eq. (5); N counts those who could take part.
        mean, members = reply.mean("model"), sum(client.labelled > 0 for client in hub.clients)
        weights = tree.map(
            lambda x, y: x + self.global_rate * (y - x), model.parameters, mean.parameters
        )
        control = tree.map(lambda c, change: c + change / members, control, reply.sum("change"))
        model = await with_statistics(mean.with_parameters(weights), hub)
        return ModelAndControl(model, control)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        training = Train(message.model, streams, supervised, self.sgd, epochs=self.epochs)
        trained, own, change = await train_corrected(me, message.control, training)
        return Upload(model=trained.model, change=change, keep=own, report=trained.metrics)


async def train_corrected(me: Me, control: Tree, training: Train) -> tuple[Trained, Tree, Tree]:
    """Training by g - c_k + c, the new c_k, and its change: eqs. (3) and (4), option II."""
    old = tree.zeros(control) if me.state is None else me.state
    correction = tree.subtract(control, old)
    trained = await replace(training, frozen={"correction": correction})
    length = trained.steps * training.learning_rate
    begin, end = training.models.parameters, trained.model.parameters
    own = tree.map(lambda x, y, c: (x - y) / length - c, begin, end, correction)
    return trained, own, tree.subtract(own, old)

"""SCAFFOLD (Karimireddy et al., ICML 2020): every local gradient is corrected by what the client is
known to lean to.

The hub keeps c, the mean of the clients' gradients, and a client its own, c_k. A step follows g -
c_k + c, so that at the optimum of all clients together nobody moves, whatever its own data would
like.

Only clients with labels take part, on their labelled images, all with the same weight; a partially
labelled client's other images and an unlabelled client count for nothing but the test statistics of
static batch norm.

c_k follows from the steps that the client really took (option II with its own K), as clients of
different sizes have different numbers of epochs' steps. It is kept, and c changed, once the upload
is admitted: c stays the mean of the c_k.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedglean import tree
from fedglean.method import (
    Ask,
    Declared,
    Expect,
    Hub,
    Me,
    Method,
    Stream,
    Train,
    Trained,
    Upload,
    setting,
)
from fedglean.methods.common import need_labels_at_clients, supervised, with_statistics
from fedglean.models import Model
from fedglean.optimiser import SGD
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class ScaffoldState(State):
    """The model and the hub's control variate c."""

    model: Model
    control: Tree


@dataclass(frozen=True)
class Scaffold(Method):
    """Algorithm 1 with option II; plain SGD, as momentum would be taken for gradients."""

    needs_sgd: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20,
        "split": {"partition": "dirichlet:0.1", "labels": "all", "clients": 10},
        "settings": {"active": 0.4, "epochs": 2, "batch": 32, "rate": 0.1, "view": "plain"},
    }

    active: float = setting(0.2, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(0.05, "learning rate at clients", low=1e-9)
    global_rate: float = setting(1.0, "how far the hub goes towards the clients' mean", low=0)
    decay: float = setting(0.0, "weight decay", low=0)
    clip: float | None = setting(
        None, "largest norm of a gradient, before its correction", low=1e-6
    )
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("SCAFFOLD", clients)

    def start(self, make: Callable[..., Model]) -> ScaffoldState:
        model = make("model")
        return ScaffoldState(model=model, control=tree.zeros(dict(model.parameters)))

    async def round(self, hub: Hub, state: ScaffoldState) -> ScaffoldState:
        model, control = state.model, state.control
        expect = {"change": Expect(control, bound=1e3)}
        message = {"model": model, "control": control}
        reply = await Ask(
            self.client, hub.sample(self.active), message, expect=expect, once=["model", "change"]
        )
        # Eq. (5); N counts those who could take part.
        mean, members = reply.mean("model"), sum(client.labelled > 0 for client in hub.clients)
        weights = tree.map(
            lambda x, y: x + self.global_rate * (y - x),
            dict(model.parameters),
            dict(mean.parameters),
        )
        control = tree.map(lambda c, change: c + change / members, control, reply.sum("change"))
        models = await with_statistics({"model": mean.with_parameters(weights)}, hub, "everyone")
        return ScaffoldState(model=models["model"], control=control)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        sgd = SGD(self.rate, decay=self.decay, clip=self.clip)
        training = Train(message.model, streams, supervised, sgd, epochs=self.epochs)
        trained, own, change = await corrected(me, message, training)
        return Upload(model=trained.model, change=change, keep=own, report=trained.metrics)


async def corrected(me: Me, message: Record, training: Train) -> tuple[Trained, Tree, Tree]:
    """Training by g - c_k + c: what it came to, the new c_k and its change. eqs. (3) and (4),
    option II.
    """
    old = tree.zeros(message.control) if me.state is None else me.state
    correction = tree.subtract(message.control, old)
    trained = await replace(training, frozen={"correction": correction})
    gone = trained.steps * training.learning_rate
    begin, end = dict(message.model.parameters), dict(trained.model.parameters)
    own = tree.map(lambda x, y, c: (x - y) / gone - c, begin, end, correction)
    return trained, own, tree.subtract(own, old)

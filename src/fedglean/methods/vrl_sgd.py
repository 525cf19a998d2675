"""VRL-SGD (Liang et al. 2019): local SGD in which every worker subtracts how its gradients differ
from typing import Any, ClassVar
from the mean.

Everybody takes part in every round with the same number of steps, and then the printed recursion,
Delta_k += (mean - own) / (k rate), says Delta_k = c_k - c with c_k the worker's mean gradient of
the last round and c the mean of those: SCAFFOLD's correction, without the second upload, as c
follows from the mean of the models. Kept in this form a lost or refused upload leaves the
corrections summing to zero, where the recursion would carry the error along for ever.

Only clients with labels are workers, on their labelled images, all with the same weight; a
partially labelled client's other images and an unlabelled client count for nothing but the test
statistics of static batch norm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedglean import tree
from fedglean.method import Ask, Declared, Hub, Me, Method, Stream, Train, Upload, setting
from fedglean.methods.common import need_labels_at_clients, supervised, with_statistics
from fedglean.methods.scaffold import corrected
from fedglean.models import Model
from fedglean.optimiser import SGD
from fedglean.tree import Record, State, Tree


@dataclass(frozen=True)
class VRLSGDState(State):
    """The model and the mean c of the workers' corrections."""

    model: Model
    control: Tree


@dataclass(frozen=True)
class VRLSGD(Method):
    """Algorithm 1; with `warm_up` it is VRL-SGD-W."""

    needs_sgd: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20,
        "split": {"partition": "dirichlet:0.1", "labels": "all", "clients": 10},
        "settings": {"period": 10, "rate": 0.1, "view": "plain"},
    }

    period: int = setting(20, "local steps per round, the same for all", low=1)
    batch: int = setting(32, "batch size", low=1)
    rate: float = setting(0.005, "learning rate", low=1e-9)
    decay: float = setting(0.0, "weight decay", low=0)
    warm_up: bool = setting(
        False, "a first round of one step, after which the corrections start out exact"
    )
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("VRL-SGD", clients)

    def start(self, make: Callable[..., Model]) -> VRLSGDState:
        model = make("model")
        return VRLSGDState(model=model, control=tree.zeros(dict(model.parameters)))

    async def round(self, hub: Hub, state: VRLSGDState) -> VRLSGDState:
        model, control = state.model, state.control
        steps = 1 if self.warm_up and hub.round == 1 else self.period
        message = {"model": model, "control": control, "steps": steps}
        reply = await Ask(self.client, hub.everyone, message, once=["model"])
        mean, workers = reply.mean("model"), sum(client.labelled > 0 for client in hub.clients)
        # A worker's c_k changes by (model - own) / (k rate) - c, so c by the mean of that over all
        # workers.
        share, gone = reply.count("model") / workers, steps * self.rate
        control = tree.map(
            lambda c, x, y: c + share * ((x - y) / gone - c),
            control,
            dict(model.parameters),
            dict(mean.parameters),
        )
        models = await with_statistics({"model": mean}, hub, "everyone")
        return VRLSGDState(model=models["model"], control=control)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        training = Train(
            message.model,
            streams,
            supervised,
            SGD(self.rate, decay=self.decay),
            steps=message.steps,
        )
        trained, own, _ = await corrected(me, message, training)
        return Upload(model=trained.model, keep=own, report=trained.metrics)

"""FixMatch (Sohn et al. 2020) in a federation: a baseline of HASSLE (2023) and SemiFL (2022).

Labels at clients: FedAvg with FixMatch's loss at each of them. Labels at the hub: `semifl` with
parallel training and labels by batch is FedAvg+FixMatch (`fedavg-fixmatch-hub`); here is
FedSGD+FixMatch, which exchanges gradients after every batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean import tree
from fedglean.losses import lanes, pseudo_label_loss
from fedglean.method import Ask, Batch, Hub, MakeModel, Me, Method, Stream, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import (
    ModelAndMemory,
    fedavg_round,
    streams_and_steps,
    supervised,
    with_statistics,
)
from fedglean.methods.settings import (
    WithSGD,
    iid,
    needs_labels_at_clients,
    needs_labels_at_hub,
    on_a_laptop,
    setting,
)
from fedglean.models import Model
from fedglean.optimiser import SGD, cosine
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class FedFixMatch(WithSGD, Method):
    """Labels at clients, with the defaults of SAGE's benchmark (2025): HASSLE's are not public.

    A fully labelled client does FedAvg and a partially labelled one FixMatch, as in HASSLE's
    baseline; an unlabelled one, which FixMatch alone would teach nothing, stays away.
    """

    defaults = on_a_laptop(
        30,
        iid("each:6"),
        active=1.0,
        epochs=1,
        labelled_batch=10,
        unlabelled_batch=20,
        rate=0.03,
        threshold=0.9,
    )
    check = needs_labels_at_clients("FedAvg+FixMatch")

    active: float = settings.active(0.4)
    epochs: int = settings.epochs_of_all(5)
    labelled_batch: int = settings.labelled_batch(128)
    unlabelled_batch: int = settings.unlabelled_batch(256)
    threshold: float = settings.threshold(0.95)
    unlabelled_weight: float = setting(1.0, "weight of the unlabelled loss", low=0)
    labels_from: str = setting(
        "local", "the model in training labels, or the global one", choices=("local", "global")
    )
    rate: float = settings.rate(0.1)
    momentum: float = settings.momentum(0.9)
    decay: float = settings.decay(1e-4)

    async def round(self, hub: Hub, state: Record) -> Record:
        return await fedavg_round(self.client, hub.sample(self.active), hub, state)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        trained = await self.training(me, message.model)
        total = len(me.labelled) + len(me.unlabelled)
        return Upload(model=trained.model, weight=total, report=trained.metrics)

    def training(self, me: Me, model: Model) -> Train:
        streams, steps = streams_and_steps(me, self.labelled_batch, self.unlabelled_batch)
        steps = self.epochs * steps
        if not me.unlabelled:
            known = {"labelled": streams["labelled"]}
            return Train(model, known, supervised, self.sgd, steps=steps)
        frozen = {"labeller": model} if self.labels_from == "global" else {}
        return Train(model, streams, self.loss, self.sgd, steps=steps, frozen=frozen)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """Eqs. (3)-(4) of FixMatch.

        Labelled and strong views are normalised apart: together, the global model's answers to weak
        views go astray.
        """
        weak, strong = batch.unlabelled.views
        if "labeller" in frozen:
            guess, logits = frozen["labeller"].evaluate(weak), model(strong)
        else:
            guess, logits = lanes(model, weak, strong)
        guessed, mask = pseudo_label_loss(guess, logits, self.threshold)
        loss = supervised(model, batch, frozen) + self.unlabelled_weight * guessed
        return loss, {"confident": mask.mean()}


#: A step of length 1 that starts at the model ends at the model minus the gradient.
GRADIENT = SGD(rate=1.0)


@dataclass(frozen=True)
class FedSGDFixMatch(WithSGD, Method):
    """Labels at the hub: Fig. 2 of SemiFL, where all gradients of a batch are taken together.

    Every step is an exchange: the hub's gradient on a batch of labels and the mean of the clients'
    on a batch of their unlabelled images each, all at the same model, make one step of momentum at
    the hub. Labels at clients are not used.
    """

    defaults = on_a_laptop(40, active=0.25, threshold=0.9, steps=10)
    nesterov = True
    check = needs_labels_at_hub("FedSGD+FixMatch", instead="fedavg-fixmatch")

    active: float = settings.active(0.1)
    steps: int = setting(250, "steps per round, each an exchange with all of them", low=1)
    threshold: float = settings.threshold(0.95)
    unlabelled_weight: float = setting(1.0, "weight of the clients' gradient", low=0)
    hub_batch: int = setting(10, "batch size at the hub", low=1)
    client_batch: int = setting(10, "batch size at each client", low=1)
    rate: float = settings.annealed_rate(0.03)
    momentum: float = settings.momentum(0.9, "Nesterov momentum")
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(1.0, "largest norm of the common gradient")

    def start(self, make: MakeModel) -> ModelAndMemory:
        model = make("model")
        return ModelAndMemory(model, self.sgd.init(model))

    async def round(self, hub: Hub, state: ModelAndMemory) -> ModelAndMemory:
        model, memory = state.model, state.memory
        rate = torch.tensor(cosine(self.rate, hub.progress), dtype=torch.float64)
        streams = {"labelled": Stream(hub.labelled, batch=self.hub_batch)}
        clients = hub.sample(self.active)
        for _ in range(self.steps):
            own = await Train(model, streams, supervised, GRADIENT, steps=1)
            reply = await Ask(self.client, clients, {"model": model}, once=["model"])
            weights = model.parameters
            gradient = tree.map(
                lambda at, hubs, clients: (at - hubs) + self.unlabelled_weight * (at - clients),
                weights,
                own.model.parameters,
                reply.mean("model").parameters,
            )
            weights, memory = self.sgd.update(weights, memory, gradient, rate)
            model = own.model.with_parameters(weights)
        return ModelAndMemory(await with_statistics(model, hub), memory)

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.unlabelled:
            return None
        views = Stream(me.unlabelled, view=("weak", "strong"), batch=self.client_batch)
        trained = await Train(message.model, {"unlabelled": views}, self.loss, GRADIENT, steps=1)
        return Upload(model=trained.model, report=trained.metrics)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        weak, strong = lanes(model, *batch.unlabelled.views)
        guessed, mask = pseudo_label_loss(weak, strong, self.threshold)
        return guessed, {"confident": mask.mean()}

"""FedMatch (Jeong et al., ICLR 2021): two parts of one model, one for labels, one for the rest.

The weights are a sum, sigma + psi. Labels move sigma alone and unlabelled images psi alone, so
neither undoes what the other taught. Clients help each other: from time to time each gets psi of
the clients whose models answer most alike to one picture of noise, agrees with them on
pseudo-labels, and is pulled towards their predictions.

Sigma is trained where labels are: at the hub, at clients, or both. A fully labelled client sends
sigma, an unlabelled one psi, a partially labelled one both. Defaults are the released code's for
labels at clients.

Only elements that changed noticeably need to be sent; others stay as the receiver has them.
Messages are whole here, but clients train on what a sparse one would leave them, and report
`models_up` and `models_down`: the elements that had to travel, in whole models. Helpers need every
client's psi by itself, so secure aggregation is out of reach.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.inputs.images import Images
from fedglean.losses import lanes, masked_cross_entropy, one_hot, squared_distance
from fedglean.method import (
    Ask,
    Batch,
    Declared,
    Hub,
    MakeModel,
    Me,
    Method,
    Predict,
    Stream,
    Train,
    Upload,
    together,
)
from fedglean.methods import settings
from fedglean.methods.common import supervised, with_statistics
from fedglean.methods.settings import WithSGD, iid, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import standard_step
from fedglean.randomness import key, uniform
from fedglean.tree import Record, State, Tree

TAUGHT_BY = {"sigma": "labelled", "psi": "unlabelled"}


@dataclass(frozen=True)
class FedMatchState(State):
    """The two parts, their sum as it is tested, and every client's last psi and answer to noise."""

    sigma: Model
    psi: Model
    tested: Model
    psis: dict[int, Model]
    answers: dict[int, Tensor]


@dataclass(frozen=True)
class FedMatch(WithSGD, Method):
    """Both scenarios of the paper: the hub trains first, and a step the parts it has data for."""

    #: Its two parts step one after the other, and without a memory.
    needs_sgd = True
    # As published, the unlabelled terms are too weak to be seen within so few rounds.
    defaults = on_a_laptop(
        40,
        iid("each:2", clients=20),
        epochs=5,
        unlabelled_batch=20,
        rate=0.01,
        agreement_weight=1.0,
        consistency_weight=1.0,
        closeness_weight=0.1,
        active=0.4,
        helper_interval=1,
    )

    active: float = settings.active(0.05)
    epochs: int = setting(1, "local epochs, over the labelled images where there are any", low=1)
    hub_epochs: int = setting(1, "epochs at the hub before each round", low=1)
    labelled_batch: int = setting(10, "batch size of labelled images at clients", low=1)
    unlabelled_batch: int = setting(100, "batch size of unlabelled images", low=1)
    hub_batch: int = setting(100, "batch size at the hub", low=1)
    rate: float = settings.rate(1e-3)
    threshold: float = settings.share(0.75, "confidence from which a prediction is used")
    helpers: int = setting(2, "H: clients that help a client", low=0)
    helper_interval: int = setting(10, "rounds from one sending of helpers to the next", low=1)
    supervised_weight: float = setting(10.0, "lambda_s", low=0)
    consistency_weight: float = setting(0.01, "lambda_i, of the difference from helpers", low=0)
    agreement_weight: float = setting(0.01, "lambda_a, of the agreed pseudo-labels", low=0)
    closeness_weight: float = setting(10.0, "lambda_L2, of the squared distance to sigma", low=0)
    sparsity_weight: float = setting(1e-4, "lambda_L1, of the size of psi (hub: 1e-5)", low=0)
    psi_share: float = setting(0.2, "psi at the start, as a share of sigma", low=0)
    smallest: float = setting(5e-6, "elements of psi up to this size are 0 (hub: 1e-5)", low=0)
    smallest_change: float = setting(5e-5, "up to this change nothing is sent (hub: 1e-5)", low=0)
    view: str = setting("plain", "how images are seen where not by the strong view", names="VIEWS")

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        if not hub_labels and not any(client.labelled for client in clients):
            raise ConfigError(
                "FedMatch needs labels, at the hub or at clients, but nobody has any; choose "
                "another label layout"
            )

    def start(self, make: MakeModel) -> FedMatchState:
        sigma = make("model")
        refuse_running_averages(sigma)
        psi = tree.map(lambda weight: self.psi_share * weight, sigma)
        return FedMatchState(sigma, psi, tested=total(sigma, psi), psis={}, answers={})

    def predictors(self, state: FedMatchState) -> dict[str, Model]:
        return {"model": state.tested}

    async def round(self, hub: Hub, state: FedMatchState) -> FedMatchState:
        sigma = state.sigma
        if hub.labelled:
            streams = {"labelled": Stream(hub.labelled, view=self.view, batch=self.hub_batch)}
            epochs, frozen = self.hub_epochs, {"psi": state.psi}
            tuned = await Train(
                sigma, streams, self.sigma_loss, self.sgd, epochs=epochs, frozen=frozen
            )
            sigma = tuned.model
        to = hub.sample(self.active)
        helped = to if hub.round % self.helper_interval == 0 else []
        each = {client: {"helpers": self.helpers_of(client, state)} for client in helped}
        sent = {"sigma": sigma, "psi": state.psi}
        reply = await Ask(self.client, to, sent, each=each, once=list(sent), collect="all")
        sigma, psi = reply.mean("sigma"), reply.mean("psi")
        tested = await with_statistics(total(sigma, sparse(psi, self.smallest)), hub)
        trees = {client: {**sent, **upload.trees} for client, upload in reply.uploads.items()}
        psis = state.psis | {client: parts["psi"] for client, parts in trees.items()}
        answers = state.answers | await answers_to_noise(trees, tested)
        return FedMatchState(sigma, psi, tested, psis, answers)

    def helpers_of(self, client: int, state: FedMatchState) -> list[Model]:
        """psi of the clients that are nearest; none for a client that was never seen."""
        return [state.psis[other] for other in nearest(state.answers, client, self.helpers)]

    async def client(self, me: Me, message: Record) -> Upload | None:
        streams = {}
        if me.labelled:
            streams["labelled"] = Stream(me.labelled, view=self.view, batch=self.labelled_batch)
        if me.unlabelled:
            views, batch = (self.view, "strong"), self.unlabelled_batch
            streams["unlabelled"] = Stream(me.unlabelled, view=views, batch=batch)
        if not streams:
            return None
        least = self.smallest_change
        sent = {"sigma": message.sigma.for_training(), "psi": message.psi.for_training()}
        start = merge(sent, me.state, least)
        # A helper's model is its psi with this client's sigma.
        helpers = [merge(psi, start["psi"], least) for psi in message.get("helpers", [])]
        frozen = {"helpers": [total(start["sigma"], psi) for psi in helpers]}
        trained = await Train(
            start, streams, step=self.step, epochs=self.epochs, frozen=frozen, rate=self.rate
        )
        found = {**trained.models, "psi": sparse(trained.models["psi"], self.smallest)}
        new = merge(found, sent, least)
        down = models_sent(start, me.state)
        down += sum(models_sent(psi, start["psi"]) for psi in helpers)
        report = {**trained.metrics, "models_up": models_sent(new, sent), "models_down": down}
        trees = {part: new[part] for part, stream in TAUGHT_BY.items() if stream in streams}
        return Upload(keep=new, report=report, **trees)

    def step(
        self, models: Tree, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """First sigma, with psi held; then psi, at the sigma that came of it."""
        sigma, psi, metrics = models["sigma"], models["psi"], {}
        if "labelled" in batch.streams:
            sigma, _, own = standard_step(self.sigma_loss, self.sgd)(sigma, {}, batch, {"psi": psi})
            metrics["sigma_loss"] = own["loss"]
        if "unlabelled" in batch.streams:
            frozen = {**frozen, "sigma": sigma}
            psi, _, own = standard_step(self.psi_loss, self.sgd)(psi, {}, batch, frozen)
            metrics |= {"psi_loss": own["loss"], "confident": own["confident"]}
        return {"sigma": sigma, "psi": psi}, memory, metrics

    def sigma_loss(self, sigma: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Cross-entropy, whose gradient psi never sees."""
        return self.supervised_weight * supervised(total(sigma, frozen["psi"]), batch, frozen)

    def psi_loss(self, psi: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """Agreement and consistency over confident images, and what holds psi small near sigma."""
        sigma = frozen["sigma"]
        own, strong = lanes(total(sigma, psi), *batch.unlabelled.views)
        images = batch.unlabelled.images
        helpers = [helper.evaluate(images).detach() for helper in frozen["helpers"]]
        mask = (own.detach().softmax(-1).amax(-1) >= self.threshold).to(own.dtype)
        label = vote([own.detach(), *helpers])
        loss = self.agreement_weight * masked_cross_entropy(strong, label, mask, over="masked")
        for helper in helpers:
            apart = F.kl_div(own.log_softmax(-1), helper.softmax(-1), reduction="none").sum(-1)
            weighted = self.consistency_weight / len(helpers) * (apart * mask).sum()
            loss = loss + weighted / mask.sum().clamp(min=1)
        loss = loss + self.closeness_weight * squared_distance(sigma.parameters, psi.parameters)
        size = torch.stack([weight.abs().sum() for weight in psi.parameters.values()]).sum()
        return loss + self.sparsity_weight * size, {"confident": mask.mean()}


def refuse_running_averages(model: Model) -> None:
    """Who trains one part alone would have to send averages that belong to both."""
    if model.architecture.norm == "running":
        raise ConfigError(
            "FedMatch's sigma and psi cannot share running averages; use norm 'static' or 'group'"
        )


def total(sigma: Model, psi: Model) -> Model:
    """The model that predicts."""
    return sigma.with_parameters(tree.add(sigma.parameters, psi.parameters))


def vote(outputs: Sequence[Tensor]) -> Tensor:
    """The class that most of the outputs favour; the first of several."""
    votes = [one_hot(logits.argmax(-1), like=logits) for logits in outputs]
    return torch.stack(votes).sum(0).argmax(-1)


def sparse(psi: Model, smallest: float) -> Model:
    without: Model = tree.map(lambda weight: torch.where(weight.abs() > smallest, weight, 0.0), psi)
    return without


def merge(new: Tree, old: Tree, smallest_change: float) -> Tree:
    """What a receiver of `old` has after noticeable changes were sent; without `old`, all."""
    if old is None:
        return new
    return tree.map(lambda a, b: torch.where((a - b).abs() > smallest_change, a, b), new, old)


def models_sent(new: Tree, old: Tree) -> float:
    """How much had to be sent, in whole models: sigma and psi are two."""
    models = len(new) if isinstance(new, dict) else 1
    if old is None:
        return float(models)
    return float(models * (tree.row(new) != tree.row(old)).double().mean())


async def answers_to_noise(
    trees: Mapping[int, Mapping[str, Model]], tested: Model
) -> dict[int, Tensor]:
    """What the clients' models predict for one picture, with the global batch-norm statistics."""
    noise, questions = picture_of_noise(tested), []
    for parts in trees.values():
        weights = total(parts["sigma"], parts["psi"]).parameters
        questions.append(Predict(Model(tested.architecture, weights, tested.statistics), noise))
    found = await together(*questions)
    return {client: each.probabilities[0] for client, each in zip(trees, found, strict=True)}


def picture_of_noise(model: Model) -> Images:
    """Of mean and deviation 125, cut off at 0 and 255: the same one in every round and run."""
    low, high = torch.special.ndtr(torch.tensor([-1.0, 1.04], dtype=torch.float64))
    drawn = uniform(key(0, "noise"), (1, *model.architecture.shape))
    spread = torch.special.ndtri(low + (high - low) * drawn)
    device = next(iter(model.parameters.values())).device
    pixels = (125 + 125 * spread).round().to(device, torch.uint8)
    return Images(pixels, index=torch.zeros(1, dtype=torch.long, device=device))


def nearest(answers: Mapping[int, Tensor], client: int, count: int) -> list[int]:
    """The other clients whose answers are nearest to a client's own, the nearest first."""
    if client not in answers:
        return []
    own = answers[client]
    apart = {other: float((answer - own).norm()) for other, answer in answers.items()}
    others = [other for other in answers if other != client]
    return sorted(others, key=lambda other: (apart[other], other))[:count]

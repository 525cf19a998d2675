"""ProxyFL (Chen, Wang, CVPR 2026): rows of the last layer stand for the classes, as proxies.

1. Global proxy tuning, at the hub: the averaged rows are trained until they are nearest to every
  client's rows of their class, by a margin. A row that lies far off pulls no harder than one
  nearby, as it would in the mean.
2. Indecisive-categories proxy learning, at clients: an image of which no model is sure is not left
  out. It is drawn to the proxies of all classes that are likelier for it than they are in general,
  and pushed off images that share no such class with it. Sure images are drawn to the proxy of
  their one class.

Labels are at clients. Everything here follows the released code (the paper's text was not at hand):
what it calls the prior is a slow average of the class shares that clients report, pseudo-labels are
the global model's, used where it or the local model is sure. Features and proxies meet through two
learned linear maps, which travel with the model as `projection.*`. What is different: momentum
starts afresh at every visit (the release hands one optimiser from client to client), and a client
weighs as many images as it has (there its labelled ones stand 2000 times in the list that is
counted). A fully labelled client does all of this with its own images, as they are put among the
unlabelled ones; a client without labels lacks the supervised term.

The hub needs each client's rows one by one, so this method cannot be combined with secure
aggregation.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad

from fedglean.errors import ConfigError
from fedglean.losses import cross_entropy, jointly, masked_cross_entropy, moving_average, one_hot
from fedglean.method import Ask, Batch, Expect, Hub, MakeModel, Me, Method, Train, Upload
from fedglean.methods import settings
from fedglean.methods.common import streams_and_steps, with_statistics
from fedglean.methods.proxies import (
    classify,
    contrast,
    feature_extractor,
    project,
    proxy_loss,
    widest_gap,
    with_projections,
)
from fedglean.methods.settings import WithSGD, iid, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.optimiser import standard_step
from fedglean.randomness import fold_int, order
from fedglean.tree import Record, State, Tree

LARGEST = 4096


@dataclass(frozen=True)
class ProxyFLState(State):
    """The model and the shares of the classes among trusted images."""

    model: Model
    prior: Tensor


@dataclass(frozen=True)
class ProxyFL(WithSGD, Method):
    """FedAvg with FixMatch by global pseudo-labels, tuned proxies and a contrast over images."""

    # With fewer labels than four each, some seeds leave a class without any.
    defaults = on_a_laptop(
        30, iid("each:4", 20), epochs=3, labelled_batch=20, unlabelled_batch=40, tuning_epochs=20
    )
    check = needs_labels_at_clients("ProxyFL")

    active: float = settings.active(0.4)
    epochs: int = settings.epochs_of_all(5)
    labelled_batch: int = settings.labelled_batch(128)
    unlabelled_batch: int = settings.unlabelled_batch(256)
    threshold: float = settings.share(0.95, "confidence from which a guess is trusted")
    pseudo_weight: float = setting(1.0, "weight of the pseudo-labels' loss", low=0)
    contrast_weight: float = setting(1.0, "weight of the contrast of proxies and images", low=0)
    prior_decay: float = settings.share(0.99, "how slowly the class shares follow the clients'")
    tuning_epochs: int = setting(100, "epochs over proxies at the hub; 10 for CIFAR-100", low=0)
    tuning_batch: int = setting(4, "proxies in a batch at the hub", low=1)
    tuning_rate: float = settings.rate(0.005, "learning rate at the hub")
    largest_margin: float = setting(100.0, "bound of the margin, the proxies' widest gap", low=0)
    rate: float = settings.rate(0.1)
    momentum: float = settings.momentum(0.9)
    decay: float = settings.decay(1e-4)

    def start(self, make: MakeModel) -> ProxyFLState:
        model = make("model")
        weight, bias = model.architecture.head
        classes, features = model.parameters[weight].shape
        if features > LARGEST:
            raise ConfigError(
                f"ProxyFL maps features to features, at most {LARGEST}, but "
                f"{model.architecture.name} has {features}"
            )
        prior = model.parameters[bias].new_full((classes,), 1 / classes)
        return ProxyFLState(model, prior)

    def predictors(self, state: ProxyFLState) -> dict[str, Model]:
        """The model without its projections."""
        model, plan = state.model, state.model.architecture.plan
        parameters = {name: model.parameters[name] for name in plan.parameters}
        return {"model": Model(model.architecture, parameters, model.statistics)}

    async def round(self, hub: Hub, state: ProxyFLState) -> ProxyFLState:
        model = with_projections(state.model, hub.key) if hub.round == 1 else state.model
        message = {"model": model, "prior": state.prior}
        bound = float(self.labelled_batch + self.unlabelled_batch)
        expect, to = {"counts": Expect(state.prior, bound, low=0)}, hub.sample(self.active)
        reply = await Ask(self.client, to, message, expect=expect, once=["counts"], collect="all")
        if not reply.has("model"):
            return replace(state, model=model)
        mean, counts, rows = reply.mean("model"), reply.sum("counts"), []
        weight, _ = mean.architecture.head
        for upload in reply.uploads.values():
            if "model" in upload.trees:
                rows.append(upload.trees["model"].parameters[weight])
        key = fold_int(hub.key, "proxies")
        proxies = self.tune(mean.parameters[weight], torch.stack(rows), key)
        mean = mean.with_parameters({**mean.parameters, weight: proxies})
        prior = state.prior
        if float(counts.sum()):
            shares = counts / counts.sum().clamp(min=1)
            prior = moving_average(prior, shares, self.prior_decay)
        return ProxyFLState(await with_statistics(mean, hub), prior)

    def tune(self, proxies: Tensor, rows: Tensor, key: int) -> Tensor:
        """Global proxy tuning: SGD over the clients' rows (clients x classes x features)."""
        clients, classes, _ = rows.shape
        points = rows.flatten(0, 1)
        label = torch.arange(classes, device=rows.device).repeat(clients)
        margin = widest_gap(proxies).clamp(max=self.largest_margin)
        slope = grad(proxy_loss)
        for epoch in range(self.tuning_epochs):
            shuffled = order(fold_int(key, epoch), len(points), rows.device)
            for some in torch.split(shuffled, self.tuning_batch):
                gradient = slope(proxies, points[some], label[some], margin)
                proxies = proxies - self.tuning_rate * gradient
        return proxies

    async def client(self, me: Me, message: Record) -> Upload | None:
        total = len(me.labelled) + len(me.unlabelled)
        if not total:
            return None
        model, prior = message.model, message.prior
        streams, steps = streams_and_steps(me, self.labelled_batch, self.unlabelled_batch)
        last = torch.tensor((self.epochs - 1) * steps, device=prior.device)
        trained = await Train(
            model,
            streams,
            step=self.step,
            steps=self.epochs * steps,
            memory={"sgd": self.sgd.init(model), "counts": torch.zeros_like(prior)},
            frozen={"global": model, "prior": prior, "last": last},
            rate=self.rate,
        )
        counts, weight = trained.memory["counts"], {"model": total, "counts": 1.0}
        return Upload(model=trained.model, counts=counts, weight=weight, report=trained.metrics)

    def step(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """The standard step; in the last epoch labels and trusted guesses are counted by class."""
        step, counts = standard_step(self.loss, self.sgd), memory["counts"]
        model, sgd, metrics = step(model, memory["sgd"], batch, frozen)
        is_last = batch.step >= frozen["last"]
        seen = torch.where(is_last, metrics.pop("seen"), torch.zeros_like(counts))
        return model, {"sgd": sgd, "counts": counts + seen}, metrics

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        known = [batch.labelled.images] if "labelled" in batch.streams else []
        features = jointly(feature_extractor(model), *batch.unlabelled.views, *known)
        weak, strong, *labelled = (classify(model, part) for part in features)
        common = frozen["global"].evaluate(batch.unlabelled.images).detach().softmax(-1)
        guess = common.argmax(-1)
        sure = torch.maximum(common, weak.detach().softmax(-1)).amax(-1) >= self.threshold
        trusted = sure.to(common.dtype)
        loss = self.pseudo_weight * masked_cross_entropy(strong, guess, trusted)
        seen = (trusted[:, None] * one_hot(guess, like=common)).sum(0)
        probabilities, certain = [common, common], [sure, sure]
        if labelled:
            loss = loss + cross_entropy(labelled[0], batch.labelled.label)
            seen = seen + one_hot(batch.labelled.label, like=common).sum(0)
            probabilities.append(frozen["global"].evaluate(known[0]).detach().softmax(-1))
            certain.append(probabilities[2].amax(-1) >= self.threshold)
        meeting = project(model, torch.cat(list(features)))
        pulled = contrast(*meeting, torch.cat(probabilities), torch.cat(certain), frozen["prior"])
        # Labelled images are only there to be pushed off.
        loss = loss + self.contrast_weight * pulled[: 2 * len(common)].mean()
        return loss, {"seen": seen, "trusted": trusted.mean()}

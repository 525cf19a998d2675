"""Fed-SHVR (Wang et al. 2021): every client has labelled and other images, of different classes.

Pseudo-labels are soft, the exact minimiser of the regularised objective; predictions are pulled
away from certainty; and clients that take different numbers of steps neither drift apart (variance
reduction) nor weigh by their steps (normalised averaging).

The paper's correction d_k is kept as c - c_k: c_k is the client's own mean gradient of its last
admitted round, c the hub's mean of them. That is the same algorithm (eqs. 14-16), but a refused
upload or a repeated round leaves sum_k w_k d_k = 0 intact, where adding to d_k at every visit would
not. What is sent is the change of c_k: with c it determines the client's model, so it costs one
model.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.inputs.images import Images, Predictions
from fedglean.losses import cross_entropy, one_hot, sharpen, uniformity
from fedglean.method import (
    Ask,
    Batch,
    Declared,
    Expect,
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
from fedglean.methods.common import with_statistics
from fedglean.methods.settings import MISMATCH, MLP, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.models.norm import lowest
from fedglean.optimiser import SGD
from fedglean.tree import Record, State, Tree

VIEWS = {"none": "plain", "shift": "shift", "noise": "noise", "dropout": "plain"}


@dataclass(frozen=True)
class FedSHVRState(State):
    """The model, the mean gradient c that corrections go by, and the model as it is tested."""

    model: Model
    mean_gradient: Tree
    tested: Model


@dataclass(frozen=True)
class FedSHVR(Method):
    """Algorithm 1.

    Without `correct` Fed-SH (FedNova), without `normalise` Fed-SVR (VRL-SGD), without both FedAvg.
    """

    needs_sgd = True
    # It, its floor and its ceiling meet on one split.
    defaults = on_a_laptop(25, MISMATCH, MLP, rate=0.1, ramp_epochs=20.0, perturb="noise")
    check = needs_labels_at_clients("Fed-SHVR", instead="semifl")

    epochs: int = setting(2, "local epochs", low=1)
    labelled_batch: int = setting(32, "batch size of labelled images", low=1)
    unlabelled_batch: int = setting(32, "batch size of unlabelled images", low=1)
    rate: float = setting(0.01, "learning rate, constant: the corrections assume it", low=1e-9)
    unlabelled_weight: float = setting(1.0, "alpha_0: final weight of the unlabelled loss", low=0)
    soft_weight: float = setting(0.75, "alpha_1: how soft pseudo-labels are; 0 is hard", low=0)
    output_weight: float = setting(0.1, "alpha_2: pull of predictions towards uniform", low=0)
    ramp_epochs: float = setting(50.0, "local epochs over which alpha_0 grows linearly", low=0)
    ramped_labels: bool = setting(False, "let alpha_0 soften labels while it ramps (trains worse)")
    perturb: str = setting(
        "none", "what is done to images in training; the paper names nothing", choices=tuple(VIEWS)
    )
    correct: bool = setting(True, "variance reduction")
    normalise: bool = setting(True, "normalised averaging")

    @property
    def drops(self) -> bool:
        return self.perturb == "dropout"

    def start(self, make: MakeModel) -> FedSHVRState:
        model = make("model")
        if self.drops and not model.architecture.drops:
            raise ConfigError(
                "perturb 'dropout' needs a model that drops: 'mlp' with model.dropout = 0.5, or "
                "'cnn13'"
            )
        return FedSHVRState(model, mean_gradient=tree.zeros(model.parameters), tested=model)

    def predictors(self, state: FedSHVRState) -> dict[str, Model]:
        return {"model": state.tested}

    def steps(self, client: Declared) -> int:
        """tau_k, which hub and client both know."""
        unlabelled = client.unlabelled * self.epochs / self.unlabelled_batch
        labelled = client.labelled * self.epochs / self.labelled_batch
        return max(1, math.floor(max(unlabelled, labelled)))

    async def round(self, hub: Hub, state: FedSHVRState) -> FedSHVRState:
        model, mean_gradient = state.model, state.mean_gradient
        done = (hub.round - 1) * self.epochs
        message = {"model": model, "mean_gradient": mean_gradient, "epochs_done": done}
        expect = {"change": Expect(tree.zeros(model.parameters), bound=1e3)}
        if model.statistics:
            expect["statistics"] = Expect(model.statistics, low=lowest(model.statistics))
        reply = await Ask(self.client, hub.everyone, message, expect=expect)
        if not reply.has("change"):
            return state
        # Eq. (14); without normalisation clients' sums of gradients are averaged, not their means.
        answered = [hub.clients[client] for client in reply.answered]
        steps = sum(client.total * self.steps(client) for client in answered)
        mean_steps = steps / sum(client.total for client in answered)
        scale = self.rate * (mean_steps if self.normalise else 1.0)
        direction = tree.add(reply.mean("change"), mean_gradient)
        weights = tree.map(lambda w, g: w - scale * g, model.parameters, direction)
        statistics = reply.mean("statistics") if model.statistics else {}
        model = Model(model.architecture, weights, statistics)
        if self.correct:
            share = 1 / sum(client.total for client in hub.clients)
            mean_gradient = tree.map(lambda c, d: c + share * d, mean_gradient, reply.sum("change"))
        return FedSHVRState(model, mean_gradient, tested=await with_statistics(model, hub))

    async def client(self, me: Me, message: Record) -> Upload | None:
        declared = Declared(len(me.labelled), len(me.unlabelled))
        if not declared.total:
            return None
        model, steps = message.model, self.steps(declared)
        labelled, unlabelled = await together(
            Predict(model, me.labelled), Predict(model, me.unlabelled, threshold=0.0)
        )
        alpha = self.unlabelled_weight * self.ramp(message.epochs_done)
        soft = self.soft_labels(unlabelled.probabilities, alpha)
        # Without normalisation a client counts by its steps: the hub sums gradients over steps.
        times = 1 if self.normalise else steps
        is_new = me.state is None or not self.correct
        own = tree.zeros(model.parameters) if is_new else me.state
        correction = tree.map(lambda c, o: c / times - o, message.mean_gradient, own)
        frozen: dict[str, Any] = {"correction": correction} if self.correct else {}
        frozen["epochs_done"] = torch.tensor(float(message.epochs_done), dtype=torch.float64)
        frozen["epochs_a_step"] = torch.tensor(self.epochs / steps, dtype=torch.float64)
        streams, sgd = self.streams(me.labelled, me.unlabelled, soft), SGD(self.rate)
        trained = await Train(model, streams, self.loss, sgd, steps=steps, frozen=frozen)
        length = self.rate * steps
        new = tree.map(lambda a, b: (a - b) / length, model.parameters, trained.model.parameters)
        if self.correct:
            new = tree.subtract(new, correction)
        trees = {"change": tree.map(lambda a, b: times * (a - b), new, own)}
        if trained.model.statistics:
            trees["statistics"] = trained.model.statistics
        report = {"objective": self.objective(me.labelled, (labelled, unlabelled), soft)}
        keep = new if self.correct else None
        return Upload(weight=declared.total, keep=keep, report=report, **trees)

    def streams(self, labelled: Images, unlabelled: Images, soft: Tensor) -> dict[str, Stream]:
        view, streams = VIEWS[self.perturb], {}
        if unlabelled:
            images = unlabelled.labelled(soft)
            streams["unlabelled"] = Stream(images, view=view, batch=self.unlabelled_batch)
        if labelled:
            streams["labelled"] = Stream(labelled, view=view, batch=self.labelled_batch)
        return streams

    def ramp(self, epochs: Any) -> Any:
        """The share of alpha_0 that is reached after so many local epochs."""
        if not self.ramp_epochs:
            return 1.0
        share = epochs / self.ramp_epochs
        return share.clamp(max=1.0) if isinstance(share, Tensor) else min(1.0, share)

    def soft_labels(self, probabilities: Tensor, alpha: float) -> Tensor:
        """Eq. (8), or eq. (3) when nothing softens."""
        if not self.soft_weight:
            return one_hot(probabilities.argmax(-1), like=probabilities)
        strength = alpha if self.ramped_labels else self.unlabelled_weight
        return sharpen(probabilities, strength / self.soft_weight)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """F_k of eq. (5a), as far as it depends on the model."""
        key = batch.key if self.drops else None
        total: Any = 0.0
        if "labelled" in batch.streams:
            total = cross_entropy(model(batch.labelled.images, key), batch.labelled.label)
        if "unlabelled" in batch.streams:
            logits = model(batch.unlabelled.images, key)
            epochs = frozen["epochs_done"] + frozen["epochs_a_step"] * batch.step
            alpha = self.unlabelled_weight * self.ramp(epochs)
            total = total + alpha * cross_entropy(logits, batch.unlabelled.label)
            total = total + self.output_weight * uniformity(logits)
        loss: Tensor = total
        return loss

    def objective(
        self, labelled: Images, parts: tuple[Predictions, Predictions], soft: Tensor
    ) -> float:
        """Eq. (5a) of this client at the model it received, with alpha_0 at its final value."""
        known, guessed = (part.probabilities.double().clamp(min=1e-30).log() for part in parts)
        total = torch.zeros((), dtype=torch.float64)
        if len(known):
            total = total + cross_entropy(known, labelled.label)  # type: ignore[arg-type]
        if len(guessed):
            v = soft.double().clamp(min=1e-30)
            softness = (v * (v * v.shape[-1]).log()).sum(-1).mean()
            total = total - self.unlabelled_weight * (v * guessed).sum(-1).mean()
            total = total + self.soft_weight * softness + self.output_weight * uniformity(guessed)
        return float(total)

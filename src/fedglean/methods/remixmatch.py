"""ReMixMatch (Berthelot et al., ICLR 2020): MixMatch with aligned guesses and rotations to tell.

A guess comes from one weak view, moved by what the model says too often; it is the target of two
strong views, mixed, and of one unmixed. Strong views are the configured RandAugment, not the
paper's CTAugment.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean.errors import ConfigError
from fedglean.losses import cross_entropy, mix, moving_average, one_hot, ramp, sharpen
from fedglean.method import Batch, Me
from fedglean.methods import settings
from fedglean.methods.central import Central
from fedglean.methods.settings import setting
from fedglean.models import Model
from fedglean.randomness import Key, bits, fold
from fedglean.tree import Record, Tree

TURNS = 4


@dataclass(frozen=True)
class ReMixMatch(Central):
    """Algorithm 1. The rotation head is four more rows of the last layer, which tests leave out."""

    labelled_view = "strong"
    views = ("weak", "strong", "strong")

    mix_weight: float = setting(1.5, "weight of the guessed labels of mixed images", low=0)
    strong_weight: float = setting(0.5, "weight of the guess for an unmixed strong view", low=0)
    rotation_weight: float = setting(0.5, "weight of telling how far a view was rotated", low=0)
    ramp: float = settings.share(1 / 64, "part of the run in which the first two grow, linearly")
    temperature: float = settings.temperature(0.5)
    concentration: float = settings.concentration(0.75)
    alignment: float = settings.share(0.999, "decay of the average guess that alignment divides by")

    def extend(self, model: Model) -> Model:
        """With rows for the four rotations, which start at zero, as the last layer may."""
        shape = model.architecture.shape
        if shape[1] != shape[2]:
            raise ConfigError(
                f"ReMixMatch rotates images, so they must be square, not {shape[1]} x {shape[2]}"
            )
        old = {name: model.parameters[name] for name in model.architecture.head}
        rows = {name: part.new_zeros(TURNS, *part.shape[1:]) for name, part in old.items()}
        return _with_head(model, {name: torch.cat([old[name], rows[name]]) for name in old})

    def classifier(self, model: Model) -> Model:
        names = model.architecture.head
        return _with_head(model, {name: model.parameters[name][:-TURNS] for name in names})

    def fresh_memory(self, model: Model) -> dict[str, Tree]:
        bias = model.parameters[model.architecture.head[1]]
        mean_guess = torch.zeros_like(bias[:-TURNS])
        return {**super().fresh_memory(model), "mean_guess": mean_guess}

    def frozen(self, me: Me, message: Record) -> dict[str, Tensor]:
        """Guesses are aligned to the site's labels."""
        label, bias = me.labelled.label, message.model.architecture.head[1]
        like = message.model.parameters[bias][:-TURNS]
        assert label is not None
        return {**super().frozen(me, message), "label_share": one_hot(label, like).mean(0)}

    def step(
        self, model: Model, memory: Tree, batch: Batch, frozen: Tree
    ) -> tuple[Model, Tree, dict[str, Tensor]]:
        guess = model.for_training()(batch.unlabelled.images)[:, :-TURNS].softmax(-1)
        mean = average_guess(memory["mean_guess"], guess.mean(0), self.alignment)
        target = sharpen(align(guess, frozen["label_share"], mean), 1 / self.temperature)
        memory, frozen = {**memory, "mean_guess": mean}, {**frozen, "guess": target}
        return super().step(model, memory, batch, frozen)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        weak, strong, other = batch.unlabelled.views
        guess, count = frozen["guess"], self.batch
        label = torch.cat([one_hot(batch.labelled.label, like=guess), guess, guess, guess])
        images = torch.cat([batch.labelled.images, strong, other, weak])
        mixed, soft = mix(batch.key, images, label, self.concentration)
        turned, turn = turn_at_random(batch.key, strong)
        logits = model(mixed)[:, :-TURNS]
        fit = cross_entropy(logits[:count], soft[:count])
        guessed = cross_entropy(logits[count:], soft[count:])
        unmixed = cross_entropy(model(strong)[:, :-TURNS], guess)
        rotation = cross_entropy(model(turned)[:, -TURNS:], turn)
        share = ramp(frozen["progress"], self.ramp)
        weighted = self.mix_weight * guessed + self.strong_weight * unmixed
        return fit + share * weighted + self.rotation_weight * rotation


def average_guess(average: Tensor, new: Tensor, decay: float) -> Tensor:
    """The running average; the first batch is all there is to begin with."""
    moved: Tensor = moving_average(average, new, decay)
    return torch.where(average.sum() > 0, moved, new)


def align(guess: Tensor, wanted: Tensor, mean: Tensor) -> Tensor:
    """Distribution alignment: guesses times p(y) / p~(y), normalised."""
    moved = guess * wanted / mean.clamp(min=1e-12)
    return moved / moved.sum(-1, keepdim=True).clamp(min=1e-12)


def turn_at_random(key: Key, images: Tensor) -> tuple[Tensor, Tensor]:
    """Every image turned by 0 to 3 quarters, and by how many."""
    turn = bits(fold(key, "turns"), (len(images),)) & 3
    turns = torch.stack([torch.rot90(images, quarter, (2, 3)) for quarter in range(TURNS)], 1)
    return turns[torch.arange(len(images), device=images.device), turn], turn


def _with_head(model: Model, head: dict[str, Tensor]) -> Model:
    architecture = model.architecture.with_classes(len(head[model.architecture.head[1]]))
    return Model(architecture, {**model.parameters, **head}, model.statistics)

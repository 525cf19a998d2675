"""Fed-SHVR's Theorem 1, measured: the smallest gap within T rounds, at the theorem's step size.

The gap of eq. (21) after round t is |grad_theta F(theta^t, v^(t+1))|^2 + sum_k w_k |v_k^(t+1) -
v_k^t|^2, where v are the soft labels of all unlabelled images. It is computed from the model after
each round and all images, apart from the code that trains, and averaged over seeds, as the
theorem's expectation. Training is the package's own: its method, its round loop.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglean.data.partition import Split
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Images
from fedglean.inputs.views import view
from fedglean.losses import one_hot, sharpen
from fedglean.randomness import fold_int, order
from fedglean.runs.config import Config, configure
from fedglean.runs.experiment import Experiment, dataset_of, prepare_seeds
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import LiveRun, play_rounds
from fedglean_papers.reproduce import smooth_problem

#: Labelled images, and as many unlabelled ones, of the clients; whose labels are of which classes.
IMAGES = (11, 11, 17, 17)
CLASSES = ((0, 1), (1, 2), (2, 3), (3, 0))
SOFT, OUTPUT = 4.0, 0.1
METHODS: Mapping[str, Mapping[str, Any]] = {
    "Fed-SHVR": {"correct": True, "normalise": True},
    "Fed-SH": {"correct": False, "normalise": True},
    "Fed-SVR": {"correct": True, "normalise": False},
}
#: The largest curvature, over all logits of four classes, of the predictions' divergence from
#: uniform.
BEND = 0.6


@dataclass(frozen=True)
class Visits:
    """How long a client works: once through all whole batches of each kind.

    A part of the images is left over in every round. Without, a round's gradients would add up to
    the exact one.
    """

    batch: int
    data: str = "coarse-digits"

    @property
    def steps(self) -> list[int]:
        return [count // self.batch for count in IMAGES]

    @property
    def mean_steps(self) -> float:
        return float(np.average(self.steps, weights=IMAGES))

    def rate(self, rounds: int) -> float:
        """The theorem's step size."""
        return math.sqrt(len(IMAGES) / (rounds * self.mean_steps))

    def largest_rate(self, smoothness: float) -> float:
        """Its three bounds; the soft labels' regulariser is a mean: 1 / images convex."""
        longest = max(self.steps)
        spread = (longest - 1) * (2 * longest - 1)
        bounds = [
            4 / max(IMAGES) * SOFT / (self.mean_steps * (2 * smoothness**2 + 1)),
            1 / (2 * smoothness * self.mean_steps),
        ]
        if spread:
            bounds.append(1 / (smoothness * math.sqrt(15) * spread))
        return min(bounds)

    def enough_rounds(self, smoothness: float) -> int:
        """From how many rounds on the theorem's step size keeps to its bounds."""
        return math.ceil(len(IMAGES) / (self.mean_steps * self.largest_rate(smoothness) ** 2))


def split_of(labels: Tensor) -> Split:
    """Labels of two classes at each client, unlabelled images of any."""
    left = order(fold_int(0, "theorem"), len(labels))
    labelled, unlabelled = [], []
    for count, kinds in zip(IMAGES, CLASSES, strict=True):
        labelled.append(left[torch.isin(labels[left], torch.tensor(kinds))][:count])
        left = left[~torch.isin(left, labelled[-1])]
    for count in IMAGES:
        unlabelled.append(left[:count])
        left = left[count:]
    return Split(torch.empty(0, dtype=torch.int64), tuple(labelled), tuple(unlabelled))


def config_of(method: str, visits: Visits, rounds: int) -> Config:
    return configure(
        "fed-shvr",
        use=smooth_problem.__file__,
        data=visits.data,
        model="linear",
        clients=len(IMAGES),
        device="cpu",
        dtype="float64",
        executor="stack",
        evaluate_every=rounds,
        rounds=rounds,
        epochs=1,
        labelled_batch=visits.batch,
        unlabelled_batch=visits.batch,
        rate=visits.rate(rounds),
        unlabelled_weight=1.0,
        soft_weight=SOFT,
        output_weight=OUTPUT,
        ramp_epochs=0.0,
        perturb="none",
        **METHODS[method],
    )


@dataclass(frozen=True)
class Problem:
    """All images by client, for gradients that nobody in the federation could compute."""

    labelled: list[Tensor]
    answers: list[Tensor]
    unlabelled: list[Tensor]
    weights: list[float]

    @classmethod
    def of(cls, experiment: Experiment) -> "Problem":
        federation, recipe = experiment.federation, experiment.evaluator.setting.recipe
        total = sum(client.total for client in federation.declared)

        def pixels(images: Images) -> Tensor:
            stored = images.store[images.index]
            return view("plain", stored, images.index, recipe, torch.float64).flatten(1)

        logits = torch.zeros(1, len(experiment.dataset.classes), dtype=torch.float64)
        answers = []
        for images in federation.labelled:
            assert images.label is not None
            answers.append(one_hot(images.label, logits))
        return cls(
            [pixels(images) for images in federation.labelled],
            answers,
            [pixels(images) for images in federation.unlabelled],
            [client.total / total for client in federation.declared],
        )

    def soft_labels(self, weight: Tensor) -> list[Tensor]:
        """Eq. (8)."""
        return [sharpen((images @ weight.T).softmax(-1), 1 / SOFT) for images in self.unlabelled]

    def gradient(self, weight: Tensor, soft: Sequence[Tensor]) -> Tensor:
        """Of eq. (5a) by hand: of cross-entropy it is (prediction - label) x image."""
        total = torch.zeros_like(weight)
        for share, seen, answer, unseen, label in zip(
            self.weights, self.labelled, self.answers, self.unlabelled, soft, strict=True
        ):
            total += share * ((seen @ weight.T).softmax(-1) - answer).T @ seen / len(seen)
            guess = (unseen @ weight.T).softmax(-1)
            logs = guess.log()
            pull = guess * (logs - (guess * logs).sum(-1, keepdim=True))
            total += share * (guess - label + OUTPUT * pull).T @ unseen / len(unseen)
        return total

    def gap(self, weight: Tensor, before: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        """Eq. (21), and the soft labels that it has seen."""
        soft = self.soft_labels(weight)
        moved = 0.0
        for share, now, then in zip(self.weights, soft, before, strict=True):
            moved += share * float((now - then).square().sum())
        return float(self.gradient(weight, soft).square().sum()) + moved, soft

    def smoothness(self) -> float:
        """L of Assumption 2, from above.

        A softmax bends by at most 1/2, and the gradient is linear in soft labels.
        """

        def largest(images: Tensor) -> float:
            return float(torch.linalg.eigvalsh(images.T @ images / len(images))[-1])

        bends = []
        for seen, unseen in zip(self.labelled, self.unlabelled, strict=True):
            in_model = largest(seen) / 2 + (0.5 + OUTPUT * BEND) * largest(unseen)
            bends.append(math.hypot(in_model, math.sqrt(largest(unseen) / len(unseen))))
        return max(bends)


def gaps(
    method: str, visits: Visits, rounds: int, seeds: int
) -> tuple[NDArray[np.float64], Problem]:
    """The gap after every round, averaged over seeds that share the split and the first model."""
    config = config_of(method, visits, rounds)
    split = split_of(dataset_of(config).train_labels)
    experiments = prepare_seeds(config, range(seeds), [split] * seeds)
    start = experiments[0].start()
    runs = [LiveRun(each, Progress(0, start, ClientStates(), [])) for each in experiments]
    problem = Problem.of(experiments[0])
    soft = [problem.soft_labels(start.model.parameters["weight"])] * seeds
    found = np.zeros((rounds, seeds))
    for number in range(1, rounds + 1):
        play_rounds(runs, number)
        for seed, run in enumerate(runs):
            weight = run.progress.state.model.parameters["weight"]
            found[number - 1, seed], soft[seed] = problem.gap(weight, soft[seed])
            run.progress.history.clear()
    mean: NDArray[np.float64] = found.mean(1)
    return mean, problem


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])

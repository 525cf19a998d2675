"""The verdict of a comparison: which method is best, by how much and how certainly, and whether the
clients helped.

Differences are between last rounds and paired by seed. Their 95 % interval is Student's over seeds.
A single seed, or several that differ by the same few images, leave only the test images to count:
that interval says how sure one is of two models, not of the methods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, sqrt
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.partition import Split
from fedglean.methods.central import Central
from fedglean.runs.config import Config
from fedglean.runs.evaluate import plain_logits
from fedglean.runs.result import Result
from fedglean.runs.seeds import SeedsResult, Spread

#: Trained on the labels that there are and on nothing else: what unlabelled clients are measured
#: against.
LABELS_ALONE = (
    "hub-only",
    "fedavg",
    "fedprox",
    "fednova",
    "scaffold",
    "vrl-sgd",
    "fedavgm",
    "heterofl",
    "heterofl-semifl",
)
#: Trained with labels that nobody gave them.
ALL_LABELS = ("hub-all", "fedavg-all")

FEW, WIDE = 5, " (few, so wide)"
#: Of so many images one may be wrong about at most, 97.5 % sure, where none was seen: -log(0.025).
NEVER = 3.69
IMAGES = "the test images of one seed, without the spread between seeds"
UNTESTED = "one seed, which says nothing until its final models are tested image by image"

Results = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class Difference:
    """A mean paired difference in accuracy, its 95 % interval, and what that was taken over."""

    mean: float
    low: float
    high: float
    over: str

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


@dataclass(frozen=True)
class Row:
    """What one method came to; `against_best` is None for the best itself. Bytes and seconds are
    means over seeds.
    """

    label: str
    last: Spread
    best: Spread
    against_best: Difference | None
    bytes_sent: float
    seconds: float


@dataclass(frozen=True)
class Help:
    """What a method gained from the unlabelled clients over `floor`, which trained on the labels
    alone.

    Not `heard`, they never had anything to train on, and what was gained came from what else the
    method does.
    """

    label: str
    floor: str
    gain: Difference
    heard: bool = True

    @property
    def answer(self) -> str:
        if not self.heard:
            return "no, they never had anything to train on"
        return judged(self.gain.low, self.gain.high) + (
            " with this seed" if self.gain.over == IMAGES else ""
        )


def at_one_place(config: Config) -> bool:
    """Whether it is no federation: all images, labelled or not, are at one site. A method whose
    code may not run is taken for one of a federation.
    """
    if config.names.is_closed_to("METHODS", config.method):
        return False
    return issubclass(config.names.find("METHODS", config.method).method, Central)


def is_reference(config: Config) -> bool:
    """Whether it knows more than the others: all labels, or everybody's images at one place."""
    return config.method in ALL_LABELS or at_one_place(config)


def floors(split: Split) -> list[str]:
    """The methods that train on the labels alone: at the hub, at the clients. None where no image
    lacks its label.
    """
    if not any(map(len, split.unlabelled)):
        return []
    return ["hub-only"] * (len(split.hub) > 0) + ["fedavg"] * any(map(len, split.labelled))


def heard(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether clients that were asked ever sent something; where none is asked, data come together
    otherwise.
    """
    return any(line["answered"] for line in history) or not any(
        line["abstained"] for line in history
    )


def judged(low: float, high: float) -> str:
    """What the interval of a gain says of whether it helped."""
    return "yes" if low > 0 else "no, they did harm" if high < 0 else "too uncertain to say"


def rows(results: Results, best: str, dataset: Dataset) -> tuple[Row, ...]:
    """A line a label, in the order given."""
    return tuple(
        Row(
            label,
            SeedsResult(list(mine)).last(),
            SeedsResult(list(mine)).best(),
            None if label == best else difference(mine, results[best], dataset),
            fmean(sum(each.bytes_sent) for each in mine),
            fmean(each.seconds for each in mine),
        )
        for label, mine in results.items()
    )


def leader(results: Results, among: Sequence[str]) -> str | None:
    """The highest mean accuracy after the last round; the first of equals, None of none."""
    return max(
        (label for label in among if label in results),
        key=lambda label: SeedsResult(list(results[label])).last().mean,
        default=None,
    )


def helped(
    results: Results, methods: Sequence[str], alone: Sequence[str], dataset: Dataset
) -> tuple[Help, ...]:
    """Each method against the best of those that had the labels alone, which is chosen against the
    method.

    Only against those of its own net and rounds: another net's accuracy says nothing about
    unlabelled clients.
    """
    fitting = {
        label: leader(
            results,
            [floor for floor in alone if floor in results and _same_net(results, label, floor)],
        )
        for label in methods
        if label in results
    }
    return tuple(
        Help(
            label,
            floor,
            difference(results[label], results[floor], dataset),
            any(heard(each.history) for each in results[label]),
        )
        for label, floor in fitting.items()
        if floor is not None
    )


def _same_net(results: Results, label: str, floor: str) -> bool:
    """And as many rounds."""
    mine, its = (results[each][0].config for each in (label, floor))
    return (mine.model.name, mine.rounds) == (its.model.name, its.rounds)


def difference(mine: Sequence[Result], its: Sequence[Result], dataset: Dataset) -> Difference:
    """Mine less its, by seed."""
    gaps = [a.last.accuracy - b.last.accuracy for a, b in zip(mine, its, strict=True)]
    return over_seeds(gaps) or over_images(gaps[0], right(mine[0], dataset), right(its[0], dataset))


def over_seeds(gaps: Sequence[float]) -> Difference | None:
    """Their mean with Student's interval; None of a single one or equal ones, which say nothing
    about others.
    """
    if len(gaps) < 2 or isclose(min(gaps), max(gaps), abs_tol=1e-9):
        return None
    from scipy.special import stdtrit  # takes a moment to load, and most commands judge nothing

    reach = float(stdtrit(len(gaps) - 1, 0.975)) * stdev(gaps) / sqrt(len(gaps))
    mean = fmean(gaps)
    over = f"{len(gaps)} seeds" + (WIDE if len(gaps) < FEW else "")
    return Difference(mean, max(-1.0, mean - reach), min(1.0, mean + reach), over)


def over_images(gap: float, mine: Tensor | None, its: Tensor | None) -> Difference:
    """By which test images each is `right` about; where that is not known, the gap may as well be
    any.
    """
    if mine is None or its is None:
        return Difference(gap, -1.0, 1.0, UNTESTED)
    better, worse, count = int((mine > its).sum()), int((mine < its).sum()), len(mine)
    if not better + worse:
        return Difference(gap, -NEVER / count, NEVER / count, IMAGES)
    from scipy.special import betaincinv

    # Exact (McNemar, Clopper and Pearson): how often mine wins an image that just one of them has
    # right.
    low = float(betaincinv(better, worse + 1, 0.025)) if better else 0.0
    high = float(betaincinv(better + 1, worse, 0.975)) if worse else 1.0
    apart = (better + worse) / count
    return Difference(gap, (2 * low - 1) * apart, (2 * high - 1) * apart, IMAGES)


def right(result: Result, dataset: Dataset) -> Tensor:
    """1 for every test image that the final model labels rightly, 0 for the others."""
    predictor = result.predictors[result.names[0]]
    output = plain_logits(predictor, dataset.test_images, dataset.mean, dataset.std)
    return (output.argmax(-1).cpu() == dataset.test_labels).double()


def answer(found: Sequence[Help], unlabelled: bool) -> str:
    """One sentence, whatever was compared."""
    question = "Did the unlabelled clients help?"
    if not unlabelled:
        return f"{question} There are none: every image here is labelled."
    if not found:
        takes = (
            "a method that learns from them and one that does not, with the same model and rounds"
        )
        return f"{question} No answer: it takes {takes}."
    several = len({each.floor for each in found}) > 1
    answers = "; ".join(
        f"{each.label}: {each.answer}, {each.gain}" + f" over {each.floor}" * several
        for each in found
    )
    points = "in points" if several else f"in points over {found[0].floor}"
    return (
        f"{question} {answers}, {points} with 95 % intervals over "
        f"{taken_over(each.gain for each in found)}."
    )


def taken_over(differences: Iterable[Difference]) -> str:
    """What their intervals were taken over, all in one sentence."""
    return ", or ".join(dict.fromkeys(each.over for each in differences))

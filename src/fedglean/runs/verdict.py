"""The verdict of a comparison: which method is best, how certainly, and did the clients help?

Differences are between last rounds and paired by seed. Their 95 % interval is Student's over seeds.
A single seed, or several that differ by the same few images, leave only the test images to count:
that interval says how sure one is of two models, not of the methods.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, sqrt
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from fedglean.data.partition import Split
from fedglean.methods.central import Central
from fedglean.runs.config import Config
from fedglean.runs.run import Run, Runs, Spread

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

Pairs = Sequence[tuple[Run, Run]]
#: For every test image, 1 if a run's final model labels it rightly and else 0; None where that is
#: not known.
RightImages = Callable[[Run], Tensor | None]


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
    """What one method came to, means over seeds; `against_best` is None for the best itself."""

    label: str
    last: Spread
    best: Spread
    against_best: Difference | None
    bytes_sent: float
    seconds: float


@dataclass(frozen=True)
class Help:
    """What a method gained over `floor`, which trained on the labels alone.

    Where the clients were not `heard`, they never had anything to train on, and what was gained
    came from what else the method does.
    """

    label: str
    floor: str
    gain: Difference
    heard: bool = True

    @property
    def answer(self) -> str:
        if not self.heard:
            return "no, they never had anything to train on"
        where = " with this seed" if self.gain.over == IMAGES else ""
        return judgement(self.gain.low, self.gain.high) + where


def at_one_place(config: Config) -> bool:
    """Whether it is no federation: all images, labelled or not, are at one site.

    A method whose code may not run is taken for one of a federation.
    """
    if config.names.is_closed_to("METHODS", config.method):
        return False
    return issubclass(config.names.find("METHODS", config.method).method, Central)


def is_reference(config: Config) -> bool:
    """Whether it knows more than the others: all labels, or everybody's images at one place."""
    return config.method in ALL_LABELS or at_one_place(config)


def floors(split: Split) -> list[str]:
    """The methods that train on the labels alone; none where no image lacks its label."""
    found = []
    if any(map(len, split.unlabelled)):
        if len(split.hub):
            found.append("hub-only")
        if any(map(len, split.labelled)):
            found.append("fedavg")
    return found


def has_sent(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether clients that were asked ever sent something; true where none was asked."""
    has_answered = any(line["answered"] for line in history)
    return has_answered or not any(line["abstained"] for line in history)


def judgement(low: float, high: float) -> str:
    """What the interval of a gain says of whether it helped."""
    if low > 0:
        return "yes"
    return "no, they did harm" if high < 0 else "too uncertain to say"


def rows(results: Mapping[str, Runs], best: str, right: RightImages) -> tuple[Row, ...]:
    """A line a label, in the order given."""
    table = []
    for label, runs in results.items():
        gap = None
        if label != best:
            gap = difference(list(zip(runs, results[best], strict=True)), right)
        sent = fmean(sum(run.bytes_sent) for run in runs)
        seconds = fmean(run.seconds for run in runs)
        table.append(Row(label, runs.last.spread, runs.best.spread, gap, sent, seconds))
    return tuple(table)


def leader(results: Mapping[str, Runs], among: Sequence[str]) -> str | None:
    """The highest mean accuracy after the last round; the first of equals, None of none."""
    found = [label for label in among if label in results]
    return max(found, key=lambda label: results[label].last.accuracy, default=None)


def did_it_help(
    methods: Iterable[Runs], alone: Sequence[Runs], right: RightImages
) -> tuple[Help, ...]:
    """Each method against the best of those that had the labels alone on the same task.

    That is chosen against the method: the honest floor.
    """
    found = []
    for runs in methods:
        best: Pairs = ()
        floor = ""
        for other in alone:
            pairs = pairs_on_one_task(runs, other)
            if pairs and (not best or _floor_accuracy(pairs) > _floor_accuracy(best)):
                best, floor = pairs, other.name
        if best:
            has_clients = any(has_sent(mine.history) for mine, _ in best)
            found.append(Help(runs.name, floor, difference(best, right), has_clients))
    return tuple(found)


def _floor_accuracy(pairs: Pairs) -> float:
    return fmean(floor.last.accuracy for _, floor in pairs)


def pairs_on_one_task(runs: Runs, floor: Runs) -> Pairs:
    """Tested runs of one seed on one task, the floor's to its end."""
    others = {run.seed: run for run in floor.tested if run.finished}
    pairs = [(run, others[run.seed]) for run in runs.tested if run.seed in others]
    return [pair for pair in pairs if is_same_task(*pair)]


def is_same_task(a: Run, b: Run) -> bool:
    """The same net, data, labelled images and rounds.

    Another net's accuracy says nothing about unlabelled clients, and which images are unlabelled
    makes no difference to the labels alone.
    """
    task = attrgetter("data", "model.name", "rounds")
    return task(a.config) == task(b.config) and labelled_images(a) == labelled_images(b)


def labelled_images(run: Run) -> tuple[list[int], list[list[int]]]:
    """At the hub, and at those clients that have any."""
    return run.split.hub.tolist(), [part.tolist() for part in run.split.labelled if len(part)]


def difference(pairs: Pairs, right: RightImages) -> Difference:
    """The first of each pair less the second, after the last round."""
    gaps = [mine.last.accuracy - other.last.accuracy for mine, other in pairs]
    return over_seeds(gaps) or over_images(gaps[0], right(pairs[0][0]), right(pairs[0][1]))


def over_seeds(gaps: Sequence[float]) -> Difference | None:
    """Their mean with Student's interval; None of a single one or of equal ones."""
    if len(gaps) < 2 or isclose(min(gaps), max(gaps), abs_tol=1e-9):
        return None
    from scipy.special import stdtrit  # takes a moment to load, and most commands judge nothing

    reach = float(stdtrit(len(gaps) - 1, 0.975)) * stdev(gaps) / sqrt(len(gaps))
    mean = fmean(gaps)
    over = f"{len(gaps)} seeds" + (WIDE if len(gaps) < FEW else "")
    return Difference(mean, max(-1.0, mean - reach), min(1.0, mean + reach), over)


def over_images(gap: float, mine: Tensor | None, its: Tensor | None) -> Difference:
    """By which test images each is right about; where that is not known, the gap may be any."""
    if mine is None or its is None:
        return Difference(gap, -1.0, 1.0, UNTESTED)
    better, worse, count = int((mine > its).sum()), int((mine < its).sum()), len(mine)
    if not better + worse:
        return Difference(gap, -NEVER / count, NEVER / count, IMAGES)
    from scipy.special import betaincinv

    # Exact (McNemar, Clopper and Pearson): how often mine wins an image that just one has right.
    low = float(betaincinv(better, worse + 1, 0.025)) if better else 0.0
    high = float(betaincinv(better + 1, worse, 0.975)) if worse else 1.0
    apart = (better + worse) / count
    return Difference(gap, (2 * low - 1) * apart, (2 * high - 1) * apart, IMAGES)


def answer(found: Sequence[Help], unlabelled: bool) -> str:
    """One sentence, whatever was compared."""
    question = "Did the unlabelled clients help?"
    if not unlabelled:
        return f"{question} There are none: every image here is labelled."
    if not found:
        return (
            f"{question} No answer: it takes a method that learns from them and one that does not, "
            "with the same model and rounds."
        )
    floors = {each.floor for each in found}
    points = "in points" if len(floors) > 1 else f"in points over {found[0].floor}"
    answers = []
    for each in found:
        over = f" over {each.floor}" if len(floors) > 1 else ""
        answers.append(f"{each.label}: {each.answer}, {each.gain}{over}")
    intervals = f"95 % intervals over {taken_over(each.gain for each in found)}"
    return f"{question} {'; '.join(answers)}, {points} with {intervals}."


def taken_over(differences: Iterable[Difference]) -> str:
    """What their intervals were taken over, all in one sentence."""
    return ", or ".join(dict.fromkeys(each.over for each in differences))

"""What a page says in words: how good the model is, and whether the unlabelled clients helped."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from fedglean.config import Config, make_method
from fedglean.methods.central import Central
from fedglean.report.gather import Group, Told
from fedglean.report.terminal import percent
from fedglean.verdict import ALL_LABELS, LABELS_ALONE, confidence, judged


@dataclass(frozen=True)
class Scores:
    """Accuracies of one predictor over the seeds, in their order."""

    values: list[float]
    rounds: list[int]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float:
        return stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Help:
    """A method against the labels alone, seed against seed: mean difference and its 95 % interval, if there is one."""

    label: str
    floor: str
    difference: float
    low: float | None
    high: float | None
    seeds: list[int]
    differences: list[float]
    verdict: str
    sentence: str


def role(config: Config) -> str:
    """What a run is there for: labels alone, a reference that knows more than clients may, or a method to be judged."""
    central = isinstance(make_method(config), Central)
    if config.method in ALL_LABELS or config.split.labels in ("all", "all-hub") or central:
        return "reference"
    return "labels alone" if config.method in LABELS_ALONE else "method"


def last(runs: Sequence[Told], name: str) -> Scores:
    """After the last round that was tested."""
    lines = [run.tested[-1] for run in runs if run.tested]
    return Scores([line["accuracy"][name] for line in lines], [line["round"] for line in lines])


def best(runs: Sequence[Told], name: str) -> Scores:
    """In each seed's best round, the first of them where several are equally good."""
    lines = [max(run.tested, key=lambda line: line["accuracy"][name]) for run in runs if run.tested]
    return Scores([line["accuracy"][name] for line in lines], [line["round"] for line in lines])


def headline(groups: Sequence[Group]) -> dict[str, str]:
    """Of the best of the methods; of what there is where there is no method."""
    asked = [group for group in groups if role(group.config) == "method"] or list(groups)
    tested = [group for group in asked if any(run.tested for run in group.runs)]
    if not tested:
        config = asked[0].config
        return {"sentence": f"{asked[0].label} on {config.data.name}: no round is tested yet", "detail": ""}
    group = max(tested, key=lambda group: last(group.runs, _result(group)).mean)
    name, config = _result(group), group.config
    end, top = last(group.runs, name), best(group.runs, name)
    done = max(end.rounds)
    verb = "reaches" if group.finished else "is at"
    among = " best of its kind here," if len(asked) > 1 else ""
    when = f"after the last of {config.rounds} rounds" if group.finished else f"after round {done} of {config.rounds}"
    return {
        "sentence": f"{group.label} {verb} {percent(end.mean)} on {config.data.name}",
        "detail": f"Test accuracy {when}:{among} {_spread(end)}. {_best(top)}",
    }


def _spread(scores: Scores) -> str:
    if len(scores.values) == 1:
        return "one seed"
    return (
        f"mean of {len(scores.values)} seeds, standard deviation {100 * scores.deviation:.1f} points, "
        f"{percent(min(scores.values))} to {percent(max(scores.values))}"
    )


def _best(scores: Scores) -> str:
    if len(scores.values) == 1:
        return f"The best round, {scores.rounds[0]}, had {percent(scores.mean)}; it is chosen on the test set."
    return f"The best round of each seed had {percent(scores.mean)} on average; it is chosen on the test set."


def _result(group: Group) -> str:
    return next(run.names[0] for run in group.runs if run.tested)


def did_it_help(groups: Sequence[Group]) -> dict[str, Any]:
    """The answers where a labels-only run of the same task is there; else how to get one."""
    methods = [group for group in groups if role(group.config) == "method"]
    if not methods:
        return {"answers": [], "how": None, "why": "None of these runs learns from unlabelled images."}
    answers = [help for group in methods if (help := _help(group, groups)) is not None]
    if answers:
        return {"answers": [asdict(answer) for answer in answers], "how": None, "why": None}
    return {"answers": [], "how": _how(methods[0]), "why": "That takes a run on the labels alone to compare with:"}


def _help(group: Group, groups: Sequence[Group]) -> Help | None:
    """Against the better one where several labels-only runs fit: the honest floor."""
    alone = [other for other in groups if role(other.config) == "labels alone"]
    floors = [other for other in alone if _same_task(group.config, other.config)]
    pairs = {floor.label: _differences(group, floor) for floor in floors}
    pairs = {label: differences for label, differences in pairs.items() if differences}
    if not pairs:
        return None
    floor, by_seed = min(pairs.items(), key=lambda pair: fmean(pair[1].values()))
    differences = list(by_seed.values())
    mean, interval = fmean(differences), confidence(differences)
    low, high = interval or (None, None)
    verdict, sentence = _verdict(group.label, floor, mean, interval, len(differences))
    if not group.finished:
        sentence += " The run is not finished: so far only."
    return Help(group.label, floor, mean, low, high, list(by_seed), differences, verdict, sentence)


def _same_task(a: Config, b: Config) -> bool:
    return (a.data.name, a.split.labels, a.model.name) == (b.data.name, b.split.labels, b.model.name)


def _differences(group: Group, floor: Group) -> dict[int, float]:
    """By seed: seeds have the same labelled images in both."""
    ends = {run.config.seed: run.tested[-1]["accuracy"][run.names[0]] for run in floor.runs if run.tested}
    name = _result(group) if any(run.tested for run in group.runs) else ""
    mine = {run.config.seed: run.tested[-1]["accuracy"][name] for run in group.runs if run.tested}
    return {seed: mine[seed] - ends[seed] for seed in mine if seed in ends}


def _verdict(label: str, floor: str, mean: float, interval: tuple[float, float] | None, seeds: int) -> tuple[str, str]:
    gap = f"{label} ended {abs(100 * mean):.1f} points {'above' if mean >= 0 else 'below'} {floor}"
    if interval is None:
        word = "It looks like it" if mean > 0 else "It does not look like it"
        return word, f"{gap}, with one seed. What another seed would give is unknown: repeat both with --seeds 5."
    low, high = (100 * bound for bound in interval)
    sentence = f"{gap} on average; 95 % interval {low:+.1f} to {high:+.1f} points over {seeds} seeds, paired."
    return judged(low, high).capitalize(), sentence


def _how(group: Group) -> list[str]:
    """The commands that answer the question."""
    config, floor = group.config, f"{group.path.name}-labels-only"
    method = "hub-only" if config.split.labels.startswith("hub") else "fedavg"
    options = {
        "--data": config.data.name,
        "--data-root": config.data.root,
        "--labels": config.split.labels,
        "--partition": config.split.partition,
        "--clients": config.split.clients,
        "--split-file": config.split.file,
        "--model": config.model.name,
        "--norm": config.model.norm,
        "--rounds": config.rounds,
        "--seed": config.seed,
        "--seeds": len(group.runs),
        "--out": floor,
    }
    given = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    return [
        shlex.join(["fedglean", "run", method, *given]),
        shlex.join(["fedglean", "report", str(group.path), floor]),
    ]

"""What a page says in words: how good the model is, and whether the unlabelled clients helped."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any

from fedglean.report.examine import Examiner
from fedglean.report.gather import Coming, Group, Told
from fedglean.report.terminal import percent
from fedglean.runs.config import Config
from fedglean.runs.verdict import (
    LABELS_ALONE,
    Difference,
    Help,
    at_one_place,
    floors,
    heard,
    is_reference,
    over_images,
    over_seeds,
)


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


def role(group: Group) -> str:
    """What runs are there for: labels alone, a reference that knows more than clients may, or a
    method to be judged.
    """
    unlabelled = group.runs[0].split.unlabelled
    if unlabelled and not any(map(len, unlabelled)):
        return "reference"
    return _part(group.config)


def _part(config: Config) -> str:
    if is_reference(config):
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
    """The headline, about the best of the methods, or of what there is if there is no method."""
    asked = [group for group in groups if role(group) == "method"] or list(groups)
    tested = [group for group in asked if any(run.tested for run in group.runs)]
    if not tested:
        config = asked[0].config
        sentence = f"{asked[0].label} on {config.data.title}: no round has been tested yet"
        return {"label": asked[0].label, "sentence": sentence, "detail": ""}
    group = max(tested, key=lambda group: last(group.runs, _result(group)).mean)
    name, config = _result(group), group.config
    end, top = last(group.runs, name), best(group.runs, name)
    done = max(end.rounds)
    verb = "reaches" if group.finished else "is at"
    one_task = len({each.config.data for each in asked}) == 1
    among = f" best of {len(asked)} methods," if len(asked) > 1 and one_task else ""
    when = (
        f"after the last of {config.rounds} rounds"
        if group.finished
        else f"after round {done} of {config.rounds}"
    )
    return {
        "label": group.label,
        "sentence": f"{group.label} {verb} {percent(end.mean)} on {config.data.title}",
        "detail": f"Test accuracy {when}:{among} {_spread(end)}. {_best(top)}",
    }


def _spread(scores: Scores) -> str:
    if len(scores.values) == 1:
        return "one seed"
    return (
        f"mean of {len(scores.values)} seeds, standard deviation {100 * scores.deviation:.1f} "
        "points, "
        f"from {percent(min(scores.values))} to {percent(max(scores.values))}"
    )


def _best(scores: Scores) -> str:
    if len(scores.values) == 1:
        return (
            f"The best round, {scores.rounds[0]}, had {percent(scores.mean)}; it is chosen on the "
            "test set."
        )
    return f"Each seed's best round, chosen on the test set, had {percent(scores.mean)} on average."


def _result(group: Group) -> str:
    return next(run.names[0] for run in group.runs if run.tested)


def did_it_help(
    groups: Sequence[Group], examiner: Examiner, coming: Sequence[Coming] = ()
) -> dict[str, Any]:
    """The answers where a labels-only run of the same task is there, as a comparison has them; else
    how to get one.
    """
    methods = [group for group in groups if role(group) == "method"]
    later = [each.label for each in coming if _part(each.config) == "method"]
    if not methods:
        return {
            "answers": [],
            "how": None,
            "why": _to_come(later) if later else _without_methods(groups),
        }
    alone = [group for group in groups if role(group) == "labels alone"]
    answers = [
        answer for group in methods if (answer := _answer(group, alone, examiner)) is not None
    ]
    floors_to_come = [
        each.label
        for each in coming
        if _part(each.config) == "labels alone" and _fits(each, methods)
    ]
    if floors_to_come:
        return {
            "answers": answers,
            "how": None,
            "why": f"{_to_come(floors_to_come)[:-1]}, on the labels alone.",
        }
    if answers:
        return {"answers": answers, "how": None, "why": None}
    waited = [floor for floor in alone if not floor.finished]
    if any(_same_task(group.runs[0], floor.runs[0]) for group in methods for floor in waited):
        return {"answers": [], "how": None, "why": "The run on the labels alone is not finished."}
    return {
        "answers": [],
        "how": _how(methods[0]),
        "why": "To find out, train on the labels alone too, and compare:",
    }


def _fits(floor: Coming, methods: Sequence[Group]) -> bool:
    """Whether it will be some method's floor, by what the configurations say."""
    task = attrgetter("data", "split", "model.name", "rounds")
    return any(task(floor.config) == task(group.config) for group in methods)


def _to_come(labels: Sequence[str]) -> str:
    return f"{_listed(labels)} {'is' if len(labels) == 1 else 'are'} still to come."


def _without_methods(groups: Sequence[Group]) -> str:
    """Why there is no answer; who has all images at one place learns from the unlabelled ones, but
    from no client.
    """
    pooled = [group.label for group in groups if at_one_place(group.config)]
    if not pooled:
        return "None of these runs learns from unlabelled images."
    verb, kind = ("has", "a reference") if len(pooled) == 1 else ("have", "references")
    return (
        f"{_listed(pooled)} {verb} everybody's images in one place, unlabelled ones too: {kind} "
        "for federations, "
        "but no answer about clients that keep their images."
    )


def _listed(labels: Sequence[str]) -> str:
    """As a sentence takes them: a, b and c."""
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


def _answer(group: Group, alone: Sequence[Group], examiner: Examiner) -> dict[str, Any] | None:
    """Against the best one where several labels-only runs fit: the honest floor."""
    fitting = {floor.label: pairs for floor in alone if (pairs := _pairs(group, floor))}
    if not fitting:
        return None
    floor, pairs = max(fitting.items(), key=lambda each: fmean(_end(its) for _, its in each[1]))
    help = Help(
        group.label,
        floor,
        _difference(pairs, examiner),
        any(heard(mine.history) for mine, _ in pairs),
    )
    sentence = _sentence(help)
    if len(pairs) == 1 and group.hub is None:
        sentence += " Repeat both with --seeds 5."
    if not group.finished:
        sentence += " The run is not finished, so this may change."
    return asdict(help) | {"verdict": help.answer.capitalize(), "sentence": sentence}


def against_the_best(groups: Sequence[Group], examiner: Examiner) -> dict[str, Difference | None]:
    """By label, the gap to the best one on the same task that is no reference; None for the best
    itself.

    What cannot be paired, seed by seed, is not in it, nor a best one that no other is measured
    against.
    """
    ended = [group for group in groups if group.finished and all(run.tested for run in group.runs)]
    judged = [group for group in ended if role(group) != "reference"]
    ranked = sorted(judged, key=lambda group: -last(group.runs, _result(group)).mean)
    found: dict[str, Difference | None] = {}
    for group in ended:
        top = next((each for each in ranked if each is group or _comparable(group, each)), group)
        if top is not group:
            found |= {top.label: None, group.label: _difference(_comparable(group, top), examiner)}
    return found


def _comparable(group: Group, other: Group) -> list[tuple[Told, Told]]:
    """All of their runs in pairs: same seeds, data and labelled images; what a reference had more
    is no difference.
    """
    if [run.config.seed for run in group.runs] != [run.config.seed for run in other.runs]:
        return []
    pairs = list(zip(group.runs, other.runs, strict=True))
    known = role(group) == "reference"
    alike = all(
        a.config.data == b.config.data and (known or _labels(a) == _labels(b)) for a, b in pairs
    )
    return pairs if alike else []


def _difference(pairs: Sequence[tuple[Told, Told]], examiner: Examiner) -> Difference:
    gaps = [_end(mine) - _end(its) for mine, its in pairs]
    return over_seeds(gaps) or over_images(gaps[0], *map(examiner.right, pairs[0]))


def _pairs(group: Group, floor: Group) -> list[tuple[Told, Told]]:
    """Tested runs of one seed on one task, the floor's to its end."""
    others = {run.config.seed: run for run in floor.runs if run.tested and run.finished}
    found = [
        (run, others[run.config.seed])
        for run in group.runs
        if run.tested and run.config.seed in others
    ]
    return [pair for pair in found if _same_task(*pair)]


def _same_task(a: Told, b: Told) -> bool:
    """The same net, data, labelled images and rounds; which are unlabelled makes no difference to
    labels alone.
    """
    alike = [(run.config.data, run.config.model.name, run.config.rounds) for run in (a, b)]
    return alike[0] == alike[1] and _labels(a) == _labels(b)


def _labels(run: Told) -> tuple[list[int], list[list[int]]]:
    return run.split.hub.tolist(), [part.tolist() for part in run.split.labelled if len(part)]


def _end(run: Told) -> float:
    return float(run.tested[-1]["accuracy"][run.names[0]])


def _sentence(help: Help) -> str:
    mean, low, high = (100 * value for value in (help.gain.mean, help.gain.low, help.gain.high))
    where = f"{abs(mean):.1f} points {'above' if mean >= 0 else 'below'} {help.floor}"
    return (
        f"{help.label} ended {where}; 95 % interval {low:+.1f} to {high:+.1f} points over "
        f"{help.gain.over}."
    )


def _how(group: Group) -> list[str]:
    """The commands that answer the question."""
    config = group.config
    split = config.split
    drawn = {"--labels": split.labels, "--partition": split.partition, "--clients": split.clients}
    data = {
        "--data": config.data.name,
        "--data-root": config.data.root,
        **({} if config.holders else drawn),
        "--split-file": config.split.file,
    }
    options = {
        "--use": config.use,
        **({} if group.hub else data),
        "--model": config.model.name,
        "--norm": config.model.norm,
        "--rounds": config.rounds,
        "--seed": config.seed,
        "--seeds": None if group.hub else len(group.runs),
        "--set": config.data.images and f"data.images={config.data.images}",
    }
    given = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    given += ["--allow-partial"] * config.data.allow_partial
    outs = {method: f"{group.path.name}-{method}" for method in floors(group.runs[0].split)}

    def started(method: str, out: str) -> str:
        if group.hub is not None:
            alone = method == "hub-only" and not any(map(len, group.runs[0].split.labelled))
            return group.hub.command(method, *given, out=out, asks_branches=not alone)
        return shlex.join(["fedglean", "run", method, *given, "--out", out])

    return [
        *(started(method, out) for method, out in outs.items()),
        shlex.join(["fedglean", "report", str(group.path), *outs.values()]),
    ]

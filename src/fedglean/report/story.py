"""What a page says in words: how good the model is, and whether the unlabelled clients helped."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedglean.report.examine import ModelReport
from fedglean.report.terminal import percent
from fedglean.runs import verdict
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.run import Runs, Score
from fedglean.runs.verdict import Difference, Help, Pairs

METHOD, ALONE, REFERENCE = "method", "labels alone", "reference"


def role_of(runs: Runs) -> str:
    """What runs are there for: to be judged, labels alone, or a reference that knows more."""
    unlabelled = runs[0].split.unlabelled if runs else ()
    has_all_labels = bool(unlabelled) and not any(map(len, unlabelled))
    if has_all_labels or verdict.is_reference(runs.config):
        return REFERENCE
    return ALONE if runs.config.method in verdict.LABELS_ALONE else METHOD


def hub_of(runs: Runs) -> HubOptions | None:
    """How `fedglean deploy hub` was started, where that made the runs."""
    return HubOptions.of(runs.folder) if runs.folder is not None else None


def headline(groups: Sequence[Runs]) -> dict[str, str]:
    """The headline, about the best of the methods, or of what there is if there is no method."""
    asked = [runs for runs in groups if role_of(runs) == METHOD] or list(groups)
    tested = [runs for runs in asked if runs.tested]
    if not tested:
        where = asked[0].config.data.title
        sentence = f"{asked[0].name} on {where}: no round has been tested yet"
        return {"label": asked[0].name, "sentence": sentence, "detail": ""}
    runs = max(tested, key=lambda each: each.last.accuracy)
    config, last = runs.config, runs.last
    one_task = len({each.config.data for each in asked}) == 1
    among = f" best of {len(asked)} methods," if len(asked) > 1 and one_task else ""
    verb, when = "is at", f"after round {max(last.rounds)} of {config.rounds}"
    if runs.finished:
        verb, when = "reaches", f"after the last of {config.rounds} rounds"
    return {
        "label": runs.name,
        "sentence": f"{runs.name} {verb} {percent(last.accuracy)} on {config.data.title}",
        "detail": f"Test accuracy {when}:{among} {_seeds(last)}. {_best(runs.best)}",
    }


def _seeds(score: Score) -> str:
    seeds = len(score.values)
    if seeds == 1:
        return "one seed"
    spread = score.spread
    apart = f"standard deviation {100 * spread.deviation:.1f} points"
    return f"mean of {seeds} seeds, {apart}, from {percent(spread.worst)} to {percent(spread.best)}"


def _best(score: Score) -> str:
    accuracy = percent(score.accuracy)
    if len(score.values) == 1:
        return f"The best round, {score.round}, had {accuracy}; it is chosen on the test set."
    return f"Each seed's best round, chosen on the test set, had {accuracy} on average."


def help_section(
    groups: Sequence[Runs], report: ModelReport, coming: Sequence[Runs] = ()
) -> dict[str, Any]:
    """The answers, as a comparison has them; without labels-only runs, how to get one."""
    methods = [runs for runs in groups if role_of(runs) == METHOD]
    alone = [runs for runs in groups if role_of(runs) == ALONE]
    gains = verdict.did_it_help(methods, alone, report.right)
    answers = [_answer(gain, methods, alone) for gain in gains]
    section: dict[str, Any] = {"answers": answers, "how": None, "why": None}
    floors_to_come = [runs.name for runs in coming if _will_be_floor(runs, methods)]
    if not methods:
        later = [runs.name for runs in coming if role_of(runs) == METHOD]
        section["why"] = f"{_to_come(later)}." if later else _without_methods(groups)
    elif floors_to_come:
        section["why"] = f"{_to_come(floors_to_come)}, on the labels alone."
    elif not gains and _is_floor_unfinished(methods, alone):
        section["why"] = "The run on the labels alone is not finished."
    elif not gains:
        section["why"] = "To find out, train on the labels alone too, and compare:"
        section["how"] = _how(methods[0])
    return section


def _will_be_floor(runs: Runs, methods: Sequence[Runs]) -> bool:
    """Whether it will be some method's floor, by what the configurations say."""
    task = attrgetter("data", "split", "model.name", "rounds")
    tasks = [task(method.config) for method in methods]
    return role_of(runs) == ALONE and task(runs.config) in tasks


def _is_floor_unfinished(methods: Sequence[Runs], alone: Sequence[Runs]) -> bool:
    for runs, floor in product(methods, alone):
        if not floor.finished and verdict.is_same_task(runs[0], floor[0]):
            return True
    return False


def _to_come(labels: Sequence[str]) -> str:
    return f"{_series(labels)} {'is' if len(labels) == 1 else 'are'} still to come"


def _without_methods(groups: Sequence[Runs]) -> str:
    """Why there is no answer; who has all images at one place learns from no client."""
    pooled = [runs.name for runs in groups if verdict.at_one_place(runs.config)]
    if not pooled:
        return "None of these runs learns from unlabelled images."
    verb, kind = ("has", "a reference") if len(pooled) == 1 else ("have", "references")
    return (
        f"{_series(pooled)} {verb} everybody's images in one place, unlabelled ones too: {kind} "
        "for federations, but no answer about clients that keep their images."
    )


def _series(labels: Sequence[str]) -> str:
    """As a sentence takes them: a, b and c."""
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


def _answer(gain: Help, methods: Sequence[Runs], alone: Sequence[Runs]) -> dict[str, Any]:
    runs = next(each for each in methods if each.name == gain.label)
    floor = next(each for each in alone if each.name == gain.floor)
    mean, low, high = (100 * value for value in (gain.gain.mean, gain.gain.low, gain.gain.high))
    where = f"{abs(mean):.1f} points {'above' if mean >= 0 else 'below'} {gain.floor}"
    interval = f"95 % interval {low:+.1f} to {high:+.1f} points over {gain.gain.over}"
    sentence = f"{gain.label} ended {where}; {interval}."
    if len(verdict.pairs_on_one_task(runs, floor)) == 1 and hub_of(runs) is None:
        sentence += " Repeat both with --seeds 5."
    if not runs.finished:
        sentence += " The run is not finished, so this may change."
    return asdict(gain) | {"verdict": gain.answer.capitalize(), "sentence": sentence}


def gaps_to_best(groups: Sequence[Runs], report: ModelReport) -> dict[str, Difference | None]:
    """By label, the gap to the best on the same task that is no reference, None for that itself.

    What cannot be paired, seed by seed, is not in it, nor a best one that no other is measured
    against.
    """
    ended = [runs for runs in groups if runs.finished and len(runs.tested) == len(runs)]
    judged = [runs for runs in ended if role_of(runs) != REFERENCE]
    ranked = sorted(judged, key=lambda runs: -runs.last.accuracy)
    found: dict[str, Difference | None] = {}
    for runs in ended:
        top = next((each for each in ranked if each is runs or _all_pairs(runs, each)), runs)
        if top is not runs:
            found[top.name] = None
            found[runs.name] = verdict.difference(_all_pairs(runs, top), report.right)
    return found


def _all_pairs(runs: Runs, other: Runs) -> Pairs:
    """All seeds in pairs, if seeds, data and labelled images are the same, or more is known."""
    if [run.seed for run in runs] != [run.seed for run in other]:
        return []
    is_pooled = role_of(runs) == REFERENCE
    pairs = list(zip(runs, other, strict=True))
    for a, b in pairs:
        if a.config.data != b.config.data:
            return []
        if not is_pooled and verdict.labelled_images(a) != verdict.labelled_images(b):
            return []
    return pairs


def _how(runs: Runs) -> list[str]:
    """The commands that answer the question."""
    config, split, hub = runs.config, runs.config.split, hub_of(runs)
    options: dict[str, Any] = {
        "--use": config.use,
        "--model": config.model.name,
        "--norm": config.model.norm,
        "--rounds": config.rounds,
        "--seed": config.seed,
        "--set": config.data.images and f"data.images={config.data.images}",
        "--image-size": config.data.image_size,
        "--image-fit": config.data.image_fit,
    }
    if hub is None:
        options |= {"--data": config.data.name, "--data-root": config.data.root}
        options |= {"--split-file": split.file, "--seeds": len(runs)}
    if hub is None and not config.holders:
        options |= {"--labels": split.labels, "--partition": split.partition}
        options |= {"--clients": split.clients}
    given: list[str] = []
    for name, value in options.items():
        if value is not None:
            given += [name, str(value)]
    if config.data.allow_partial:
        given.append("--allow-partial")
    commands, outs = [], []
    for method in verdict.floors(runs[0].split):
        outs.append(str(folder_beside(runs, method)))
        command = shlex.join(["fedglean", "run", method, *given, "--out", outs[-1]])
        if hub is not None:
            alone = method == "hub-only" and not any(map(len, runs[0].split.labelled))
            command = hub.command(method, *given, out=outs[-1], asks_branches=not alone)
        commands.append(command)
    return [*commands, shlex.join(["fedglean", "report", str(runs.folder), *outs])]


def folder_beside(runs: Runs, ending: str) -> Path:
    assert runs.folder is not None, "a page is of what lies in folders"
    return runs.folder.parent / f"{runs.folder.resolve().name}-{ending}"

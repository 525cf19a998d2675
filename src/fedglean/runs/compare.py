"""Compare methods on the same splits: which is best, and did the unlabelled clients help?

    compare.json      what is compared, written first; the numbers too once all is done
    NAME/seed-K/      a run folder for each method and seed
    curves.png        accuracy against rounds, bytes and seconds

The methods run one after the other, because a shared stack would hide how long each of them takes;
the seeds of one method share a stack.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.partition import Split
from fedglean.engine.task import PartyError
from fedglean.errors import ConfigError, RoundError, StorageError
from fedglean.report.page import write_page
from fedglean.report.plots import cost_curves
from fedglean.report.tracker import OnRound, Track, Trackers, trackers_of
from fedglean.runs.experiment import dataset_of, settled_for
from fedglean.runs.kinds import Kind, check_is_free, kind_of
from fedglean.runs.plan import Named, Plan, divide, read_record, split_for
from fedglean.runs.run import Run, Runs
from fedglean.runs.seeds import ensure_seeds
from fedglean.runs.verdict import Help, Row, answer, did_it_help, leader, rows
from fedglean.schema import write
from fedglean.sealed import make_folder, write_whole


@dataclass(frozen=True)
class Comparison:
    """Results by label, the rows of the table, and whether the unlabelled clients helped.

    One that was read before it was done has the results so far.
    """

    plan: Plan
    results: Mapping[str, Runs]
    failed: Mapping[str, str]
    best: str
    rows: tuple[Row, ...]
    helped: tuple[Help, ...]
    answer: str
    folder: Path | None = None

    @classmethod
    def of(cls, folder: Path) -> "Comparison":
        """As its folder tells, without training anything."""
        record = read_record(folder)
        results = {}
        for each in record.entries:
            place = folder / each.folder
            if kind_of(place) is Kind.SEEDS:
                results[each.label] = Runs.of(place)
        told = record.answer or "This comparison is not finished."
        plan, gains = record.plan(), record.gains()
        return cls(plan, results, record.failed, record.best, record.rows, gains, told, folder)


def named_methods(methods: str | Iterable[str] | Named) -> Named:
    """By label, as Python's callers may write them."""
    if isinstance(methods, Mapping):
        return methods
    names = [methods] if isinstance(methods, str) else [str(name) for name in methods]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(f"'{name}' is named twice; give one its own label and settings")
        if ":" in name:
            how = "here, write {label: settings}, a dictionary"
            raise ConfigError(f"'{name}' is a label of the command line; {how}")
    return {name: {} for name in names}


def carry_out(
    plan: Plan, out: Path | None = None, track: Track = (), on_round: OnRound | None = None
) -> Comparison:
    """Train what was not trained yet, and compare; given the same again, it goes on."""
    if out is not None:
        _claim(out, plan)
    with settled_for(plan.shared):
        dataset = plan.dataset or dataset_of(plan.shared)
        splits = divide(plan.shared, plan.seeds, dataset)
        results: dict[str, Runs] = {}
        failed: dict[str, str] = {}
        for entry in plan.entries:
            trackers = Trackers(trackers_of(track, plan.shared.names), on_round, entry.label)
            mine = [split_for(entry, split, dataset) for split in splits]
            place = out and out / entry.folder
            try:
                runs = ensure_seeds(entry.config, len(mine), place, trackers, mine, dataset)
                results[entry.label] = runs
            except (RoundError, PartyError) as error:
                failed[entry.label] = _reason(error)
        if not results:
            raise RoundError(f"no method finished; {entry.label}: {failed[entry.label]}")
        comparison = _conclude(plan, results, failed, dataset, splits[0], out)
    if out is not None:
        _write(comparison, out)
    return comparison


def _reason(error: Exception) -> str:
    """What a breakdown says; of a bug, most likely in a method of one's own, the line as well."""
    if error.__cause__ is None:
        return str(error)
    place = extract_tb(error.__cause__.__traceback__)[-1]
    return f"{error} ({place.filename}, line {place.lineno})"


def _claim(out: Path, plan: Plan) -> None:
    """Make the folder this comparison's, or see that it is."""
    kind = kind_of(out)
    if kind is Kind.COMPARISON:
        if read_record(out).plan().mark() != plan.mark():
            how = "choose another folder with --out, or remove that one"
            raise StorageError(f"{out} holds another comparison; {how}")
        return
    if kind is not None:
        raise StorageError(f"{out} holds a run; choose another folder with --out")
    check_is_free(out)
    make_folder(out)
    _write_record(out, _content(plan))


def _conclude(
    plan: Plan,
    results: Mapping[str, Runs],
    failed: Mapping[str, str],
    dataset: Dataset,
    split: Split,
    out: Path | None,
) -> Comparison:
    alone = [each.label for each in plan.entries if each.labels_alone]
    methods = [each.label for each in plan.entries if not each.labels_alone and not each.reference]
    best = leader(results, [*methods, *alone]) or next(iter(results))

    def right(run: Run) -> Tensor:
        guess = run.model.logits(dataset.test_images).argmax(-1).cpu()
        return (guess == dataset.test_labels).double()

    judged = [results[label] for label in methods if label in results]
    floors = [results[label] for label in alone if label in results]
    gains = did_it_help(judged, floors, right)
    told = answer(gains, any(map(len, split.unlabelled)))
    table = rows(results, best, right)
    return Comparison(plan, results, failed, best, table, gains, told, out)


def _write(comparison: Comparison, out: Path) -> None:
    plan = comparison.plan
    at_one_place = [each.label for each in plan.entries if not each.federated]
    cost_curves(comparison.results, out / "curves.png", plan.title, at_one_place)
    content = {
        "failed": dict(comparison.failed),
        "best": comparison.best,
        "rows": write(comparison.rows),
        "helped": [write(each) | {"answer": each.answer} for each in comparison.helped],
        "answer": comparison.answer,
    }
    _write_record(out, _content(plan) | content)
    write_page([out], out / "report.html", plan.title)


def _write_record(out: Path, content: Mapping[str, Any]) -> None:
    write_whole(out / "compare.json", json.dumps(content, indent=1).encode())


def _content(plan: Plan) -> dict[str, Any]:
    entries = []
    for each in plan.entries:
        kind = {"reference": each.reference, "labels_alone": each.labels_alone}
        own = {"label": each.label, "folder": each.folder, **kind, "config": write(each.config)}
        entries.append(own)
    return {"seeds": list(plan.seeds), "notes": list(plan.notes), "entries": entries}

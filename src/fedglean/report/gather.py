"""Gathers what folders hold for a report: runs, seeds of a run, or several with a label each.

Reading changes nothing, and runs need not be finished. What a comparison has yet to begin is there
without any run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from fedglean.errors import StorageError, no_folder
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.plan import read_record
from fedglean.runs.run import Runs

#: Of folders in a folder that are looked through; runs are taken from the first that has any.
LEVELS = 3


def gather(folders: Sequence[Path]) -> list[Runs]:
    """All that the folders hold, in their order, each with a label of its own."""
    found: list[Runs] = []
    places: set[Path] = set()
    for path in folders:
        if path.resolve() not in places:  # one may be named twice, by patterns for instance
            found += _runs_in(path)
        places.add(path.resolve())
    for by in (attrgetter("name"), str):
        common = Counter(runs.name for runs in found if runs)
        for place, runs in enumerate(found):
            if runs and runs.folder and common[runs.name] > 1:
                found[place] = replace(runs, label=f"{runs.name} ({by(runs.folder)})")
    return found


def _runs_in(path: Path) -> list[Runs]:
    if not path.is_dir():
        raise no_folder(path)
    if _holds_runs(path):
        return [Runs.of(path)]
    if kind_of(path) is Kind.COMPARISON:
        found = _results_in(path)
        if not any(found):
            raise StorageError(f"{path} holds no run yet: its comparison has not begun")
        return found
    for level in range(1, LEVELS + 1):
        places = [place for place in sorted(path.glob("/".join("*" * level))) if _holds_runs(place)]
        if places:
            return [replace(Runs.of(place), label=str(place.relative_to(path))) for place in places]
    raise StorageError(f"{path} holds no run, nor does any folder in it; name the folder of a run")


def _holds_runs(path: Path) -> bool:
    return kind_of(path) in (Kind.RUN, Kind.SEEDS, Kind.FEDERATION)


def _results_in(path: Path) -> list[Runs]:
    """By the labels of a comparison; once that has its answer, nothing is to come."""
    record = read_record(path)
    found = []
    for each in record.entries:
        place = path / each.folder
        if _holds_runs(place):
            failed = record.failed.get(each.label)
            found.append(replace(Runs.of(place), label=each.label, failed=failed))
        elif record.answer is None:
            found.append(Runs(each.entry().config, [], place, each.label))
    return found

"""Gathers what folders hold for a report: runs, the seeds of a run, or several of those with a
label each.

Reading changes nothing, and runs need not be finished: a line that is half written is left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedglean.data.partition import Split
from fedglean.errors import UNREADABLE, StorageError, UntrustedError, no_folder
from fedglean.federation.options import HubOptions
from fedglean.runs.config import Config, resolve
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.seeds import members


@dataclass(frozen=True)
class Told:
    """One run as far as its folder tells."""

    folder: RunFolder
    config: Config
    history: list[dict[str, Any]]

    @cached_property
    def finished(self) -> bool:
        return self.folder.model_path.exists()

    @property
    def federation(self) -> bool:
        """Whether it trained on real branches, of whose images the hub's machine has none."""
        return kind_of(self.folder.path) is Kind.FEDERATION

    @cached_property
    def split(self) -> Split:
        return self.folder.split()

    @cached_property
    def tested(self) -> list[dict[str, Any]]:
        return [line for line in self.history if line.get("accuracy")]

    @cached_property
    def names(self) -> list[str]:
        """Its predictors, the result first; the final model knows their order also where an old
        history does not.
        """
        # A net of the user's own may have changed since, or may not run.
        with suppress(StorageError, UntrustedError):
            if self.finished:
                return list(self.folder.predictors()[0])
        return list(self.tested[0]["accuracy"]) if self.tested else []


@dataclass(frozen=True)
class Group:
    """The seeds of one experiment; of a lone run, that one."""

    label: str
    path: Path
    runs: list[Told]
    failed: str | None = None

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @cached_property
    def hub(self) -> HubOptions | None:
        """How `fedglean deploy hub` was started, where that made it."""
        return HubOptions.of(self.path)

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)


@dataclass(frozen=True)
class Coming:
    """A line of a comparison that goes on; its runs have not begun."""

    label: str
    path: Path
    config: Config


def gather(folders: Mapping[str, Path] | Sequence[Path]) -> list[Group]:
    """All runs that the folders hold, in their order, each with a label of its own."""
    return survey(folders)[0]


def survey(folders: Mapping[str, Path] | Sequence[Path]) -> tuple[list[Group], list[Coming]]:
    """What the folders hold, and what their comparisons have yet to begin."""
    if isinstance(folders, Mapping):
        return [
            replace(group, label=label)
            for label, path in folders.items()
            for group in _found(path)[0]
        ], []
    places: dict[Path, Path] = {}
    for path in folders:
        places.setdefault(path.resolve(), path)  # one may be named twice, by patterns for instance
    found = [_found(path) for path in places.values()]
    groups, coming = (
        [each for part, _ in found for each in part],
        [each for _, part in found for each in part],
    )
    return _told_apart(
        _told_apart(groups, lambda group: group.path.name), lambda group: str(group.path)
    ), coming


def _told_apart(groups: Sequence[Group], by: Callable[[Group], str]) -> list[Group]:
    common = Counter(group.label for group in groups)
    return [
        replace(group, label=f"{group.label} ({by(group)})") if common[group.label] > 1 else group
        for group in groups
    ]


def _found(path: Path) -> tuple[list[Group], list[Coming]]:
    if not path.is_dir():
        raise no_folder(path)
    if _holds_runs(path):
        return [_group(path)], []
    groups, coming = _compared(path) if kind_of(path) is Kind.COMPARISON else (_below(path), [])
    if not groups:
        if coming:
            raise StorageError(f"{path} holds no run yet: its comparison has not begun")
        raise StorageError(
            f"{path} holds no run, nor does any folder in it; name the folder of a run"
        )
    return groups, coming


def _holds_runs(path: Path) -> bool:
    return kind_of(path) in (Kind.RUN, Kind.SEEDS, Kind.FEDERATION)


def _below(path: Path) -> list[Group]:
    places = sorted(place for place in path.iterdir() if _holds_runs(place))
    return [replace(_group(place), label=place.name) for place in places]


def _compared(path: Path) -> tuple[list[Group], list[Coming]]:
    """By the labels of the comparison, and why one failed; once it has its answer, nothing is to
    come.
    """
    try:
        content = json.loads((path / "compare.json").read_bytes())
        failed, ended = content.get("failed", {}), "answer" in content
        entries = [
            (str(entry["label"]), path / entry["folder"], entry["config"])
            for entry in content["entries"]
        ]
        groups = [
            replace(_group(place), label=label, failed=failed.get(label))
            for label, place, _ in entries
            if _holds_runs(place)
        ]
        coming = [
            Coming(label, place, resolve(None, config, foreign=config))
            for label, place, config in entries
            if not ended and not _holds_runs(place)
        ]
    except UNREADABLE as error:
        raise StorageError(
            f"{path} is damaged: its compare.json cannot be read ({error})"
        ) from error
    return groups, coming


def _group(path: Path) -> Group:
    places = members(path) if kind_of(path) is Kind.SEEDS else [path]
    runs = [_told(RunFolder(place)) for place in places if (place / "config.toml").is_file()]
    if not runs:
        raise StorageError(f"{path} holds no run yet")
    return Group(runs[0].config.method, path, runs)


def _told(folder: RunFolder) -> Told:
    return Told(folder, folder.config(), list(_lines(folder)))


def _lines(folder: RunFolder) -> Iterator[dict[str, Any]]:
    path = folder.path / "metrics.jsonl"
    whole, _, _ = folder.history().rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            told = json.loads(line)
        except UNREADABLE as error:
            raise StorageError(f"{path} is damaged: line {number} is not JSON ({error})") from error
        if not isinstance(told, dict) or not isinstance(told.get("round"), int):
            raise StorageError(f"{path} is damaged: line {number} is not a round")
        yield told

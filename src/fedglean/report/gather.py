"""What folders hold, to be told of: runs, the seeds of a run, or several of those with a label each.

Reading changes nothing and needs no end: a run may go on meanwhile, and a line that is half written is left out.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedglean.config import Config
from fedglean.data.partition import Split
from fedglean.errors import StorageError, no_folder
from fedglean.folder import RunFolder
from fedglean.seeds import is_group


@dataclass(frozen=True)
class Told:
    """One run as far as its folder tells."""

    folder: RunFolder
    config: Config
    history: list[dict[str, Any]]

    @cached_property
    def finished(self) -> bool:
        return self.folder.model_path.exists()

    @cached_property
    def split(self) -> Split:
        return self.folder.split()

    @cached_property
    def tested(self) -> list[dict[str, Any]]:
        return [line for line in self.history if line.get("accuracy")]

    @cached_property
    def names(self) -> list[str]:
        """Its predictors, the result first; the final model knows their order also where an old history does not."""
        with suppress(StorageError):  # a net of the user's own may have changed since
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

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)


def gather(folders: Mapping[str, Path] | Sequence[Path]) -> list[Group]:
    """All that the folders hold, in their order, each with a label of its own."""
    if isinstance(folders, Mapping):
        return [replace(group, label=label) for label, path in folders.items() for group in _found(path)]
    places: dict[Path, Path] = {}
    for path in folders:
        places.setdefault(path.resolve(), path)  # one may be named twice, by patterns for instance
    groups = [group for path in places.values() for group in _found(path)]
    return _told_apart(_told_apart(groups, lambda group: group.path.name), lambda group: str(group.path))


def _told_apart(groups: Sequence[Group], by: Callable[[Group], str]) -> list[Group]:
    common = Counter(group.label for group in groups)
    return [
        replace(group, label=f"{group.label} ({by(group)})") if common[group.label] > 1 else group for group in groups
    ]


def _found(path: Path) -> list[Group]:
    if not path.is_dir():
        raise no_folder(path)
    if _holds_runs(path):
        return [_group(path)]
    within = [(label, path / name, why) for label, name, why in _labels(path) if _holds_runs(path / name)]
    if not within:
        raise StorageError(f"{path} holds no run: neither config.toml nor seeds.json, and no folder with one of them")
    return [replace(_group(place), label=label, failed=why) for label, place, why in within]


def _holds_runs(path: Path) -> bool:
    return is_group(path) or (path / "config.toml").is_file()


def _labels(path: Path) -> list[tuple[str, str, str | None]]:
    """Labels, folders and why one failed, as a comparison wrote them down; else the folders by name."""
    below = sorted(place.name for place in path.iterdir() if place.is_dir())
    try:
        content = json.loads((path / "compare.json").read_bytes())
        entries, failed = content["entries"], content.get("failed", {})
        found = [(str(entry["label"]), entry["folder"], failed.get(entry["label"])) for entry in entries]
        return [each for each in found if each[1] in below]
    except FileNotFoundError:
        return [(name, name, None) for name in below]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: its compare.json cannot be read ({error})") from error


def _group(path: Path) -> Group:
    places = sorted(path.glob("seed-*"), key=_seed_of) if is_group(path) else [path]
    runs = [_told(RunFolder(place)) for place in places if (place / "config.toml").is_file()]
    if not runs:
        raise StorageError(f"{path} holds no run yet")
    return Group(runs[0].config.method, path, runs)


def _seed_of(place: Path) -> tuple[int, str]:
    number = place.name.removeprefix("seed-")
    return int(number) if number.isdecimal() else -1, number


def _told(folder: RunFolder) -> Told:
    return Told(folder, folder.config(), list(_lines(folder.path / "metrics.jsonl")))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    whole, _, _ = content.rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            told = json.loads(line)
        except ValueError as error:
            raise StorageError(f"{path} is damaged: line {number} is no JSON ({error})") from error
        if not isinstance(told, dict) or not isinstance(told.get("round"), int):
            raise StorageError(f"{path} is damaged: line {number} tells of no round")
        yield told

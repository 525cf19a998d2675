"""The trainings that a table or figure is read off: found below its folder, or made there."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from fedglean.data.partition import Split
from fedglean.data.sources import PUBLISHED, load
from fedglean.errors import unknown
from fedglean.names import Names
from fedglean.report.terminal import Terminal
from fedglean.report.tracker import Trackers
from fedglean.runs.config import FLAT, Config, DataConfig, configure, settings_of
from fedglean.runs.experiment import dataset_of, divide_up
from fedglean.runs.run import Runs
from fedglean.runs.seeds import ensure_seeds
from fedglean.studies import StudyOptions
from fedglean_papers.presets import PRESETS

#: What becomes shorter with the run.
SCHEDULES = ("rounds", "settings.ramp_epochs", "settings.warmup_rounds")


@dataclass(frozen=True)
class Part:
    """What is left of a split: some figures vary how many images or clients take part."""

    name: str
    take: Callable[[Split], Split]


@dataclass(frozen=True)
class Training:
    """A preset, with the keys that a figure changes (such as "split.labels")."""

    preset: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    part: Part | None = None

    @property
    def name(self) -> str:
        words = [self.preset.replace("/", "-")]
        for key, value in self.changed.items():
            words.append(f"{key.rpartition('.')[2]}-{value}")
        if self.part is not None:
            words.append(self.part.name)
        return re.sub(r"[^\w.=-]+", "-", "-".join(words))

    @property
    def published(self) -> Mapping[str, float]:
        """What the paper printed for the preset; nothing if this is not quite it."""
        return {} if self.changed or self.part else PRESETS[self.preset].published or {}


def part_of_unlabelled(share: float) -> Part:
    """Every client keeps this share of its unlabelled images, which come shuffled."""

    def take(split: Split) -> Split:
        kept = tuple(images[: round(share * len(images))] for images in split.unlabelled)
        return replace(split, unlabelled=kept)

    return Part(f"unlabelled-{share:g}", take)


def first_clients(count: int) -> Part:
    """The other clients stay away, and their images with them."""

    def take(split: Split) -> Split:
        parts = (split.labelled[:count], split.unlabelled[:count], split.names[:count])
        return Split(split.hub, *parts)

    return Part(f"first-{count}-clients", take)


def config_of(training: Training, asked: StudyOptions) -> Config:
    """The preset, the figure's changes, the user's options, and fewer rounds by the scale."""
    preset = PRESETS[training.preset]
    options = {key: value for key, value in asked.options if _concerns(key, preset.method)}
    given = _flatten(preset.layer)
    if asked.scale != 1:
        _shorten(given, asked.scale)
    given |= training.changed
    published = given["data.name"]
    if asked.data_root is not None and published != "digits":
        given["data.root"] = str(asked.data_root)
    config = configure(preset.method, **{**given, **options})
    chosen = {FLAT.get(key, key) for key in options}
    if config.data.name == published or chosen & {"split.labels", "split.file"}:
        return config
    given["split.labels"] = _fit_labels(given["split.labels"], published, config)
    return configure(preset.method, **{**given, **options})


def _concerns(option: str, method: str) -> bool:
    """Not so for an option of other methods alone: it is meant for other lines of the figure."""
    names = Names.of()
    if option in settings_of(method, names):
        return True
    return not any(option in settings_of(other, names) for other in names.tables["METHODS"])


def _flatten(layer: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in layer.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{start}{key}.")
        else:
            flat[f"{start}{key}"] = value
    return flat


def _shorten(given: dict[str, Any], scale: float) -> None:
    """Fewer rounds, and with them what is counted in rounds or epochs of the whole run."""
    for key in SCHEDULES:
        value = given.get(key)
        if value:
            given[key] = type(value)(max(1, round(value * scale, 6)))


def _fit_labels(labels: str, published: str, config: Config) -> str:
    """As many labels of other data as they would be by its size.

    Each class, or pair of classes, has some.
    """
    kind, _, value = labels.partition(":")
    count, comma, rest = value.partition(",")
    if not count.isdigit():
        return labels
    images, classes = _size(config.data)
    wanted = int(count) * images / PUBLISHED[published].sizes[0]
    if kind == "hub":
        return f"hub:{classes * max(1, round(wanted / classes))}"
    least = {"mismatch": max(1, round(0.6 * classes)), "mismatch-digits": 2}.get(kind, 1)
    return f"{kind}:{max(least, round(wanted))}{comma}{rest}"


@cache
def _size(data: DataConfig) -> tuple[int, int]:
    """Training images and classes."""
    root = None if data.root is None else Path(data.root)
    dataset = load(data.name, root, data.allow_partial, data.images)
    return len(dataset.train_images), len(dataset.classes)


def train(training: Training, asked: StudyOptions) -> Runs:
    """Its results, one a seed; what is not done yet is done now."""
    config, folder = config_of(training, asked), asked.out / "runs" / training.name
    trackers = Trackers([] if asked.quiet else [Terminal()], label=training.name)
    splits = splits_of(training, config, asked.seeds)
    return ensure_seeds(config, asked.seeds, folder, trackers, splits)


def splits_of(training: Training, config: Config, seeds: int) -> list[Split] | None:
    """A split a seed, where the figure takes a part of it."""
    if training.part is None:
        return None
    dataset, splits = dataset_of(config), []
    for seed in range(config.seed, config.seed + seeds):
        splits.append(training.part.take(divide_up(replace(config, seed=seed), dataset)))
    return splits


def choose(cell: str | None, cells: Sequence[str], what: str = "part of the figure") -> list[str]:
    """The cells that were asked for, by name or pattern; all of them by default."""
    chosen = [each for each in cells if cell is None or fnmatch(each, cell)]
    if not chosen:
        raise unknown(what, str(cell), cells)
    return chosen


def note(text: str, asked: StudyOptions) -> None:
    if not asked.quiet:
        print(text, file=sys.stderr, flush=True)

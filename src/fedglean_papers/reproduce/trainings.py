"""The trainings that a figure is read off: found below its folder, gone on with, or made."""

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

#: What is shortened when a run is.
SCHEDULES = ("rounds", "settings.ramp_epochs", "settings.warmup_rounds")


@dataclass(frozen=True)
class Part:
    """What is left of a split: some figures vary how many images or clients take part."""

    name: str
    take: Callable[[Split], Split]


@dataclass(frozen=True)
class Training:
    """A preset, with what the figure changes of it (keys such as "split.labels") and the part of
    its split.
    """

    preset: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    part: Part | None = None

    @property
    def name(self) -> str:
        words = [
            self.preset.replace("/", "-"),
            *(f"{key.rpartition('.')[2]}-{v}" for key, v in self.changed.items()),
        ]
        return re.sub(r"[^\w.=-]+", "-", "-".join(words + ([self.part.name] if self.part else [])))

    @property
    def published(self) -> Mapping[str, float]:
        """What the paper printed for the preset; nothing if this is not quite it."""
        return {} if self.changed or self.part else PRESETS[self.preset].published or {}


def thinned(share: float) -> Part:
    """Every client keeps this share of its unlabelled images. They come shuffled: the first ones
    are any.
    """

    def take(split: Split) -> Split:
        kept = tuple(part[: round(share * len(part))] for part in split.unlabelled)
        return replace(split, unlabelled=kept)

    return Part(f"unlabelled-{share:g}", take)


def first_clients(count: int) -> Part:
    """The other clients stay away, and their images with them."""
    return Part(f"first-{count}-clients", lambda split: _first(split, count))


def _first(split: Split, count: int) -> Split:
    return Split(split.hub, split.labelled[:count], split.unlabelled[:count], split.names[:count])


def config_of(training: Training, asked: StudyOptions) -> Config:
    """What is trained: the preset, the figure's changes, the user's options; fewer rounds by the
    scale that was asked for.
    """
    preset = PRESETS[training.preset]
    options = {key: value for key, value in asked.options if _concerns(key, preset.method)}
    given: dict[str, Any] = {**_scaled(_dotted(preset.layer), asked.scale), **training.changed}
    if asked.data_root is not None and given["data.name"] != "digits":
        given["data.root"] = str(asked.data_root)
    chosen = {FLAT.get(key, key) for key in options}
    config = configure(preset.method, **{**given, **options})
    if config.data.name != given["data.name"] and not chosen & {"split.labels", "split.file"}:
        given["split.labels"] = _fitted(given["split.labels"], given["data.name"], config)
    return configure(preset.method, **{**given, **options})


def _concerns(option: str, method: str) -> bool:
    """Whether a method has an option; one that only other methods have is for other lines of the
    figure.
    """
    names = Names.of()
    others = names.tables["METHODS"]
    return option in settings_of(method, names) or not any(
        option in settings_of(other, names) for other in others
    )


def _scaled(given: dict[str, Any], scale: float) -> dict[str, Any]:
    """Fewer rounds, and with them what is counted in rounds or epochs of the whole run."""
    if scale == 1:
        return given
    counted = {key: given[key] for key in SCHEDULES if given.get(key)}
    return {
        **given,
        **{key: type(value)(max(1, round(value * scale, 6))) for key, value in counted.items()},
    }


def _dotted(layer: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in layer.items():
        flat |= (
            _dotted(value, f"{start}{key}.")
            if isinstance(value, Mapping)
            else {f"{start}{key}": value}
        )
    return flat


def _fitted(labels: str, published: str, config: Config) -> str:
    """As many labels of other data as they would be by its size; each class, or pair of classes,
    has some.
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


def trained(training: Training, asked: StudyOptions) -> Runs:
    """Its results, one a seed; what is not done yet is done now."""
    config, folder = config_of(training, asked), asked.out / "runs" / training.name
    trackers = Trackers([] if asked.quiet else [Terminal()], label=training.name)
    splits = splits_of(training, config, asked.seeds)
    return ensure_seeds(config, asked.seeds, folder, trackers, splits)


def splits_of(training: Training, config: Config, seeds: int) -> list[Split] | None:
    """A split a seed, where the figure takes a part of it."""
    if training.part is None:
        return None
    dataset = dataset_of(config)
    each = [replace(config, seed=seed) for seed in range(config.seed, config.seed + seeds)]
    return [training.part.take(divide_up(config, dataset)) for config in each]


def one_of(cell: str | None, cells: Sequence[str]) -> list[str]:
    """The cells that were wished for, by name or pattern; without a asked all."""
    chosen = [each for each in cells if cell is None or fnmatch(each, cell)]
    if not chosen:
        raise unknown("part of the figure", str(cell), cells)
    return chosen


def note(text: str, asked: StudyOptions) -> None:
    if not asked.quiet:
        print(text, file=sys.stderr, flush=True)

"""What a comparison will train: its methods, on which splits, and what cannot be compared.

Everything is paired by seed: split, initial model, and all random choices that methods share.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from fedglean.data.dataset import Dataset
from fedglean.data.partition import Split
from fedglean.data.split_file import fitted
from fedglean.errors import ConfigError, StorageError
from fedglean.method import Declared
from fedglean.names import Names
from fedglean.runs.config import (
    FLAT,
    NO_METHOD,
    Config,
    configure,
    fingerprint,
    make_method,
    resolve,
    settings_of,
)
from fedglean.runs.experiment import dataset_of, divide_up
from fedglean.runs.kinds import Kind, kind_of, read_json
from fedglean.runs.verdict import (
    ALL_LABELS,
    LABELS_ALONE,
    Help,
    Row,
    at_one_place,
    floors,
    is_reference,
)
from fedglean.schema import read, write

#: Options that all have in common; one alone may ask for its own model and rounds.
SHARED = ("data", "partition", "labels", "clients", "model", "rounds")

#: What references have that others do not; the rest has all images in one place.
ADVANTAGES = {"hub-all": "all labels, at the hub", "fedavg-all": "all labels, at the clients"}
#: Methods, presets or labels with the settings that each has for itself.
Named = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ComparedMethod:
    """One line of a comparison."""

    label: str
    folder: str
    config: Config

    @property
    def reference(self) -> bool:
        return is_reference(self.config)

    @property
    def federated(self) -> bool:
        """Whether it has clients to send to; a reference at one site only runs as if it had."""
        return not at_one_place(self.config)

    @property
    def labels_alone(self) -> bool:
        return self.config.method in LABELS_ALONE


@dataclass(frozen=True)
class Plan:
    """What is compared, on which seeds; `notes` are choices that the user did not spell out."""

    entries: tuple[ComparedMethod, ...]
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()
    dataset: Dataset | None = field(default=None, repr=False, compare=False)

    @property
    def shared(self) -> Config:
        """Whose data and split all share: references see the split in a way of their own."""
        others = (each.config for each in self.entries if not each.reference)
        return next(others, self.entries[0].config)

    @property
    def title(self) -> str:
        """What all methods have in common, in words."""
        data, split = self.shared.data, self.shared.split
        if self.shared.holders:
            return f"{data.name}, who holds what as in {self.shared.holders}"
        return f"{data.name}, {split.partition}, labels {split.labels}, {split.clients} clients"

    def mark(self) -> str:
        """A text that is equal for equivalent plans."""
        marks: list[Any] = [[each.label, fingerprint(each.config)] for each in self.entries]
        return json.dumps([*marks, list(self.seeds)])


@dataclass(frozen=True)
class ComparedMethodRecord:
    """A line of compare.json."""

    label: str
    folder: str
    config: dict[str, Any]
    reference: bool = False
    labels_alone: bool = False

    def entry(self) -> ComparedMethod:
        config = resolve(None, self.config, foreign=self.config)
        return ComparedMethod(self.label, self.folder, config)


@dataclass(frozen=True)
class ComparisonRecord:
    """What compare.json holds; there is no answer before all is done."""

    entries: tuple[ComparedMethodRecord, ...]
    seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    best: str = ""
    rows: tuple[Row, ...] = ()
    helped: tuple[dict[str, Any], ...] = ()
    answer: str | None = None

    def plan(self) -> Plan:
        if not self.entries or not self.seeds:
            raise StorageError("this comparison has no methods or no seeds")
        return Plan(tuple(each.entry() for each in self.entries), self.seeds, self.notes)

    def gains(self) -> tuple[Help, ...]:
        known = []
        for each in self.helped:
            given = dict(each)
            given.pop("answer", None)  # which follows from the rest
            known.append(read(Help, given))
        return tuple(known)


def read_record(folder: Path) -> ComparisonRecord:
    if kind_of(folder) is not Kind.COMPARISON:
        how = f"'fedglean resume {folder}' continues any run"
        raise StorageError(f"{folder} does not hold a comparison; {how}")
    return read_json(ComparisonRecord, folder / "compare.json")


def make_plan(named: Named, seeds: int, options: Mapping[str, Any]) -> Plan:
    """The plan of a comparison, labels alone included; what cannot be compared is refused here."""
    _check_words(named, seeds)
    try:
        configs = {label: _configure(label, own, options) for label, own in named.items()}
    except ConfigError:
        _refuse_settings_of_some(named, options)
        raise
    entries = [ComparedMethod(label, _slug(label), config) for label, config in configs.items()]
    lead = next((each for each in entries if not each.reference), entries[0]).label
    # What it asks for in its own name, it does not ask of the others.
    own = {key: named[lead][key] for key in ("method", "preset") if key in named[lead]}
    first = _configure(lead, own, options)
    numbers = tuple(range(first.seed, first.seed + seeds))
    dataset = dataset_of(first)
    splits = divide(first, numbers, dataset)
    notes = _decisions(entries, lead, first, named, options)
    entries = [_align(each, first, splits[0], named[each.label]) for each in entries]
    for floor in floors(splits[0]):
        if not any(each.config.method == floor for each in entries):
            entries.append(_alone(floor, first))
            notes.append(f"{floor} is added, to show what the labels alone are worth")
    _check_methods(entries, dataset, splits)
    _check_distinct(entries)
    return Plan(tuple(entries), numbers, (*notes, *_remarks(entries)), dataset)


def divide(config: Config, seeds: Sequence[int], dataset: Dataset) -> list[Split]:
    """A split a seed."""
    return [fitted(divide_up(replace(config, seed=seed), dataset), dataset) for seed in seeds]


def split_for(entry: ComparedMethod, split: Split, dataset: Dataset) -> Split:
    """The split as a method gets it: references know more than was given to anybody."""
    if not entry.reference:
        return split
    nothing = split.hub[:0]
    labelled, unlabelled = torch.cat([split.hub, *split.labelled]), torch.cat(split.unlabelled)
    if entry.config.method not in ALL_LABELS:
        return Split(nothing, (labelled,), (unlabelled,))
    if bool((dataset.train_labels < 0).any()):
        what = f"'{entry.label}' needs a label for every image, but some of your images have none"
        raise ConfigError(f"{what}; leave it out")
    empty = tuple(nothing for _ in split.labelled)
    if entry.config.method == "hub-all":
        return Split(torch.cat([labelled, unlabelled]), empty, empty)
    held = zip(split.labelled, split.unlabelled, strict=True)
    return Split(split.hub, tuple(map(torch.cat, held)), empty)


def _check_words(named: Named, seeds: int) -> None:
    if not isinstance(seeds, int) or seeds < 1:
        what = f"the number of seeds must be a whole number of at least 1, not {seeds!r}"
        raise ConfigError(f"{what}; `seed` sets the first of them")
    for label, own in named.items():
        if not isinstance(own, Mapping):
            how = "{} leaves them as they are"
            raise ConfigError(f"the settings of '{label}' must be a dictionary; {how}")
    if not named:
        raise ConfigError(NO_METHOD)


def _configure(label: str, own: Mapping[str, Any], options: Mapping[str, Any]) -> Config:
    own = dict(own)
    presets = Names.of({**options, **own}.get("use")).tables["PRESETS"]
    preset = own.pop("preset", label if label in presets and "method" not in own else None)
    method = own.pop("method", None if preset else label)
    alone = configure(method, preset, **options)
    config = configure(method, preset, **{**options, **own})
    if (config.data, config.split, config.seed) != (alone.data, alone.split, alone.seed):
        what = f"'{label}' sets its own data, split or seed, but all methods share these"
        raise ConfigError(f"{what}; set them for all")
    return config


def _refuse_settings_of_some(named: Named, options: Mapping[str, Any]) -> None:
    """A setting that is meant for all of them must be one of each."""
    names = Names.of(options.get("use"))
    settings = {}
    for label, own in named.items():
        method = own.get("method", label)
        if method in names.tables["METHODS"]:
            settings[label] = settings_of(method, names)
    for key, value in options.items():
        having = [label for label in settings if key in settings[label]]
        lacking = [label for label in settings if key not in settings[label]]
        if having and lacking:
            how = f"set it only for those that have it: {having[0]}:{key}={value}"
            raise ConfigError(f"{lacking[0]} has no setting '{key}'; {how}")


def _slug(label: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", label).strip("-.") or "unnamed"


def _align(
    entry: ComparedMethod, first: Config, split: Split, own: Mapping[str, Any]
) -> ComparedMethod:
    """With data, split, model and rounds of the first, but for model or rounds of its `own`."""
    config = replace(entry.config, data=first.data, split=first.split)
    if config.method == "hub-all":
        config = replace(config, split=replace(first.split, labels="all-hub"))
    elif config.method == "fedavg-all":
        config = replace(config, split=replace(first.split, labels="all"))
    elif entry.reference:
        labelled = sum(map(len, (split.hub, *split.labelled)))
        pooled = replace(first.split, labels=f"each:{labelled}", clients=1)
        config = replace(config, split=pooled)
    if not {"model", "model.name"} & set(own):
        config = replace(config, model=replace(config.model, name=first.model.name))
    if "rounds" not in own:
        config = replace(config, rounds=first.rounds)
    return replace(entry, config=config)


def _alone(name: str, first: Config) -> ComparedMethod:
    """As the first in all but method and settings; no unit is dropped, as in none beside it."""
    general = write(first)
    del general["method"], general["settings"]
    general["model"]["dropout"] = 0.0
    return ComparedMethod(name, _slug(name), resolve(name, general, names=first.names))


def _decisions(
    entries: Sequence[ComparedMethod],
    lead: str,
    first: Config,
    named: Named,
    options: Mapping[str, Any],
) -> list[str]:
    """What the first method decides for others that would have it otherwise."""
    notes = []
    for name in SHARED:
        key = FLAT[name]
        if options.get(name, options.get(key)) is not None:
            continue
        value = attrgetter(key)
        others = []
        for each in entries:
            is_asked = {name, key} & set(named[each.label])
            if value(each.config) != value(first) and not each.reference and not is_asked:
                others.append(f"{each.label} would have {value(each.config)}")
        if others:
            notes.append(f"{name} is {value(first)} for all, as for {lead} ({', '.join(others)})")
    return notes


def _remarks(entries: Sequence[ComparedMethod]) -> list[str]:
    """In what the methods still differ, and what cannot be said because of it."""
    remarks = []
    shares = {}
    for each in entries:
        if "active" in each.config.settings:
            shares[each.label] = each.config.settings["active"]
    if len(set(shares.values())) > 1:
        each_has = ", ".join(f"{label} {share:g}" for label, share in shares.items())
        remarks.append(
            f"the share of clients asked in a round differs ({each_has}); METHOD:active=0.5 sets it"
        )
    for each in entries:
        if each.reference:
            has = ADVANTAGES.get(each.config.method, "everybody's images in one place")
            remarks.append(f"{each.label} is a reference: it has {has}")
    alone = {(each.config.model.name, each.config.rounds) for each in entries if each.labels_alone}
    for each in entries:
        is_alike = (each.config.model.name, each.config.rounds) in alone
        if alone and not is_alike and not each.reference:
            remarks.append(
                f"whether {each.label} gained cannot be said: the labels alone train another model "
                "or other rounds"
            )
    return remarks


def _check_methods(
    entries: Sequence[ComparedMethod], dataset: Dataset, splits: Sequence[Split]
) -> None:
    """Every method can work with who has labels."""
    for split in splits:
        for entry in entries:
            error = _refusal(entry.config, split_for(entry, split, dataset))
            if error is None:
                continue
            able = []
            names = entry.config.names
            for name in names.tables["METHODS"]:
                if _refusal(resolve(name, names=names), split) is None:
                    able.append(name)
            others = f"these can: {', '.join(able)}"
            raise ConfigError(f"{entry.label} cannot be compared here: {error} ({others})")


def _check_distinct(entries: Sequence[ComparedMethod]) -> None:
    marks: dict[str, str] = {}
    folders: set[str] = set()
    for entry in entries:
        other = marks.setdefault(fingerprint(entry.config), entry.label)
        if other != entry.label:
            same = f"'{other}' and '{entry.label}' are the same run"
            raise ConfigError(f"{same}; leave one of them out")
        if entry.folder in folders:
            same = f"two labels lead to the same folder '{entry.folder}'"
            raise ConfigError(f"{same}; rename one of them")
        folders.add(entry.folder)


def _refusal(config: Config, split: Split) -> ConfigError | None:
    held = zip(split.labelled, split.unlabelled, strict=True)
    declared = [Declared(len(labelled), len(unlabelled)) for labelled, unlabelled in held]
    try:
        make_method(config).check(declared, len(split.hub))
    except ConfigError as error:
        return error
    return None

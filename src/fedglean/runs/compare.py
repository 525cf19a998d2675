"""Compare methods on the same splits: which is best, at what cost, and whether the unlabelled
clients helped.

    compare.json      what is compared, written first; the numbers too once all is done
    NAME/seed-K/      a run folder for each method and seed
    curves.png        accuracy against rounds, bytes and seconds

Everything is paired by seed: the split, the initial model and every random choice that methods have
in common are the same. The methods run one after the other, because a shared stack would hide how
long each of them takes; the seeds of one method share a stack.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch

from fedglean.data.dataset import Dataset
from fedglean.data.partition import Split
from fedglean.data.split_file import fitted
from fedglean.engine.task import PartyError
from fedglean.errors import UNREADABLE, ConfigError, RoundError, StorageError
from fedglean.method import Declared
from fedglean.names import Names
from fedglean.report.costs import cost_curves
from fedglean.report.page import write_page
from fedglean.runs.config import Config, configure, fingerprint, make_method, resolve
from fedglean.runs.experiment import dataset_of, divide_up
from fedglean.runs.kinds import Kind, check_is_free, kind_of
from fedglean.runs.result import Result
from fedglean.runs.rounds import OnRounds
from fedglean.runs.seeds import SeedsResult, ensure_seeds, run_seeds
from fedglean.runs.verdict import (
    ALL_LABELS,
    LABELS_ALONE,
    Help,
    Row,
    answer,
    at_one_place,
    floors,
    helped,
    is_reference,
    leader,
    rows,
)
from fedglean.schema import write
from fedglean.sealed import make_folder, write_whole
from fedglean.trust import allow

#: What all have in common, by flag and place in a configuration. Model and rounds may be asked for
#: by one alone.
SHARED = {
    "data": "data.name",
    "partition": "split.partition",
    "labels": "split.labels",
    "clients": "split.clients",
    "model": "model.name",
    "rounds": "rounds",
}

Shown = Callable[[str, Config, int], AbstractContextManager[OnRounds]]


def unseen(label: str, config: Config, seeds: int) -> AbstractContextManager[OnRounds]:
    """Shows nothing of a method's rounds."""
    return nullcontext(lambda lines: None)


@dataclass(frozen=True)
class Entry:
    """One line of a comparison."""

    label: str
    folder: str
    config: Config

    @property
    def reference(self) -> bool:
        return is_reference(self.config)

    @property
    def federated(self) -> bool:
        """Whether there are clients to send anything to; a reference at one site is run as if it
        were a client.
        """
        return not at_one_place(self.config)

    @property
    def labels_alone(self) -> bool:
        return self.config.method in LABELS_ALONE


@dataclass(frozen=True)
class Plan:
    """What is compared, on which seeds; `notes` are choices that the user did not spell out."""

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def shared(self) -> Config:
        """The configuration whose data and split all share."""
        return _shared(self.entries)

    def mark(self) -> str:
        """A text that is equal for equivalent plans."""
        return json.dumps(
            [[each.label, fingerprint(each.config)] for each in self.entries] + [list(self.seeds)]
        )


@dataclass(frozen=True)
class Comparison:
    """All results by label, the rows of the table, and the answer to whether the unlabelled clients
    helped.
    """

    plan: Plan
    results: Mapping[str, list[Result]]
    failed: Mapping[str, str]
    best: str
    rows: tuple[Row, ...]
    helped: tuple[Help, ...]
    answer: str
    folder: Path | None = None


def compare(
    methods: str | Iterable[str] | Mapping[str, Mapping[str, Any]],
    seeds: int = 3,
    *,
    out: Path | str | None = None,
    shown: Shown = unseen,
    **options: Any,
) -> Comparison:
    """Train methods on the same splits: `compare(["semifl", "fl2"], labels="hub:20",
    out="runs/both").answer`.

    A dictionary gives a method its own settings or label: `{"semifl": {}, "eager": {"method":
    "semifl", "rate": 0.1}}`.
    """
    names = [methods] if isinstance(methods, str) else [str(name) for name in methods]
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ConfigError(
            f"'{twice[0]}' is named twice; give one of the two another label and its own setting"
        )
    if worded := [name for name in names if ":" in name and not isinstance(methods, Mapping)]:
        raise ConfigError(
            f"'{worded[0]}' is a label of the command line; here, write {{label: settings}}, a "
            "dictionary"
        )
    named = methods if isinstance(methods, Mapping) else {name: {} for name in names}
    return carried_out(planned(named, seeds, options), None if out is None else Path(out), shown)


def planned(named: Mapping[str, Mapping[str, Any]], seeds: int, options: Mapping[str, Any]) -> Plan:
    """The plan of a comparison, labels alone included; whatever cannot be compared is refused
    here.
    """
    if not isinstance(seeds, int) or seeds < 1:
        raise ConfigError(
            f"the number of seeds must be a whole number of at least 1, not {seeds!r}; `seed` sets "
            "the first of them"
        )
    if odd := [label for label, own in named.items() if not isinstance(own, Mapping)]:
        raise ConfigError(
            f"the settings of '{odd[0]}' must be a dictionary; {{}} leaves them as they are"
        )
    if not named:
        raise ConfigError(
            "no method was named; name some, such as semifl ('fedglean list methods' shows them "
            "all)"
        )
    try:
        entries = [
            Entry(label, _slug(label), _configured(label, own, options))
            for label, own in named.items()
        ]
    except ConfigError:
        _refuse_settings_of_some(named, options)
        raise
    lead = next((each for each in entries if not each.reference), entries[0]).label
    # What it asks for in its own name, it does not ask of the others.
    first = _configured(
        lead, {key: named[lead][key] for key in ("method", "preset") if key in named[lead]}, options
    )
    numbers = tuple(range(first.seed, first.seed + seeds))
    dataset, splits = _divided(first, numbers)
    notes = _told(entries, lead, first, named, options)
    entries = [
        replace(each, config=_alike(each, first, splits[0], named[each.label])) for each in entries
    ]
    for floor in floors(splits[0]):
        if not any(each.config.method == floor for each in entries):
            entries.append(_alone(floor, first))
            notes.append(f"{floor} is added, to show what the labels alone are worth")
    _check(entries, dataset, splits)
    return Plan(tuple(entries), numbers, (*notes, *_remarks(entries)))


def carried_out(plan: Plan, out: Path | None = None, shown: Shown = unseen) -> Comparison:
    """Train what was not trained yet, and compare. Given the same plan and folder again, it
    continues.
    """
    if out is not None:
        _claim(out, plan)
    dataset, splits = _divided(plan.shared, plan.seeds)
    results: dict[str, list[Result]] = {}
    failed: dict[str, str] = {}
    for entry in plan.entries:
        mine = [_seen(entry, split, dataset) for split in splits]
        with shown(entry.label, entry.config, len(plan.seeds)) as on_rounds:
            try:
                place = None if out is None else out / entry.folder
                results[entry.label] = _trained(entry.config, mine, place, on_rounds).results
            except (RoundError, PartyError) as error:
                failed[entry.label] = _reason(error)
    if not results:
        raise RoundError(f"no method finished; {entry.label}: {failed[entry.label]}")
    return _settled(plan, results, failed, dataset, splits[0], out)


def _reason(error: Exception) -> str:
    """What a breakdown says; of a bug, most likely in a method of one's own, the line as well."""
    if error.__cause__ is None:
        return str(error)
    place = extract_tb(error.__cause__.__traceback__)[-1]
    return f"{error} ({place.filename}, line {place.lineno})"


def resume_comparison(folder: Path | str, shown: Shown = unseen, trust: bool = False) -> Comparison:
    """Continue an interrupted comparison, or return the numbers of a finished one."""
    if trust:
        allow(folder)
    return carried_out(read_plan(Path(folder)), Path(folder), shown)


def read_plan(folder: Path) -> Plan:
    if kind_of(folder) is not Kind.COMPARISON:
        raise StorageError(
            f"{folder} does not hold a comparison; 'fedglean resume {folder}' continues any run"
        )
    try:
        kept = json.loads((folder / "compare.json").read_bytes())
        entries = [
            Entry(
                each["label"], each["folder"], resolve(None, each["config"], foreign=each["config"])
            )
            for each in kept["entries"]
        ]
        return Plan(tuple(entries), tuple(map(int, kept["seeds"])), tuple(kept["notes"]))
    except UNREADABLE as error:
        raise StorageError(
            f"{folder} is damaged: its compare.json cannot be read ({error})"
        ) from error


def _configured(label: str, own: Mapping[str, Any], options: Mapping[str, Any]) -> Config:
    own = dict(own)
    presets = Names.of({**options, **own}.get("use")).tables["PRESETS"]
    preset = own.pop("preset", label if label in presets and "method" not in own else None)
    method = own.pop("method", None if preset else label)
    alone, config = (
        configure(method, preset, **given) for given in (dict(options), {**options, **own})
    )
    if (config.data, config.split, config.seed) != (alone.data, alone.split, alone.seed):
        raise ConfigError(
            f"'{label}' sets its own data, split or seed, but all methods share these; set them "
            "for all"
        )
    return config


def _refuse_settings_of_some(
    named: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
) -> None:
    """A setting that is meant for all of them must be one of each."""
    methods = {label: own.get("method", label) for label, own in named.items()}
    names = Names.of(options.get("use"))
    settings = {
        label: resolve(name, names=names).settings
        for label, name in methods.items()
        if name in names.tables["METHODS"]
    }
    for key, value in options.items():
        having = [label for label, own in settings.items() if key in own]
        lacking = [label for label in settings if label not in having]
        if having and lacking:
            raise ConfigError(
                f"{lacking[0]} has no setting '{key}'; set it only for those that have it: "
                f"{having[0]}:{key}={value}"
            )


def _shared(entries: Sequence[Entry]) -> Config:
    """The first that is no reference: references see the others' split in a way of their own."""
    return next((each.config for each in entries if not each.reference), entries[0].config)


def _slug(label: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", label).strip("-.") or "unnamed"


def _alike(entry: Entry, first: Config, split: Split, own: Mapping[str, Any]) -> Config:
    """Data, split, model and rounds as the first has them; a model or rounds of its own must be
    asked for.
    """
    count = sum(map(len, (split.hub, *split.labelled)))
    pooled = {"hub-all": {"labels": "all-hub"}, "fedavg-all": {"labels": "all"}}.get(
        entry.config.method, {"labels": f"each:{count}", "clients": 1}
    )
    mine = replace(first.split, **pooled) if entry.reference else first.split
    config = replace(entry.config, data=first.data, split=mine)
    if not {"model", "model.name"} & set(own):
        config = replace(config, model=replace(config.model, name=first.model.name))
    return config if "rounds" in own else replace(config, rounds=first.rounds)


def _told(
    entries: Sequence[Entry],
    lead: str,
    first: Config,
    named: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
) -> list[str]:
    """What the first method decides for the others, where they would have it otherwise and the user
    did not say.
    """
    notes = []
    for name, key in SHARED.items():
        value = attrgetter(key)
        others = [
            f"{each.label} would have {value(each.config)}"
            for each in entries
            if value(each.config) != value(first)
            and not each.reference
            and not {name, key} & set(named[each.label])
        ]
        if others and options.get(name, options.get(key)) is None:
            notes.append(f"{name} is {value(first)} for all, as for {lead} ({', '.join(others)})")
    return notes


def _remarks(entries: Sequence[Entry]) -> list[str]:
    """In what the methods still differ, and what cannot be said because of it."""
    remarks = []
    shares = {
        each.label: each.config.settings["active"]
        for each in entries
        if "active" in each.config.settings
    }
    if len(set(shares.values())) > 1:
        each_has = ", ".join(f"{label} {share:g}" for label, share in shares.items())
        remarks.append(
            f"the share of clients asked in a round differs ({each_has}); METHOD:active=0.5 sets it"
        )
    remarks += [
        f"{each.label} is a reference: {_advantage(each)}" for each in entries if each.reference
    ]
    alone = {(each.config.model.name, each.config.rounds) for each in entries if each.labels_alone}
    for each in entries:
        other = (each.config.model.name, each.config.rounds) not in alone
        if alone and other and not each.reference:
            remarks.append(
                f"whether {each.label} gained cannot be said: the labels alone train another model "
                "or other rounds"
            )
    return remarks


def _alone(name: str, first: Config) -> Entry:
    """As the first in all but the method and its settings; none of the methods that stand beside it
    drops units.
    """
    general = {
        key: value for key, value in write(first).items() if key not in ("method", "settings")
    }
    general["model"]["dropout"] = 0.0
    return Entry(name, _slug(name), resolve(name, general, names=first.names))


def _advantage(entry: Entry) -> str:
    if entry.config.method in ALL_LABELS:
        return (
            f"it has all labels, at the {'hub' if entry.config.method == 'hub-all' else 'clients'}"
        )
    return "it has everybody's images in one place"


def _divided(config: Config, seeds: Sequence[int]) -> tuple[Dataset, list[Split]]:
    dataset = dataset_of(config)
    return dataset, [
        fitted(divide_up(replace(config, seed=seed), dataset), dataset) for seed in seeds
    ]


def _seen(entry: Entry, split: Split, dataset: Dataset) -> Split:
    """The split as a method gets it: references know more than was given to anybody."""
    if not entry.reference:
        return split
    nothing = split.hub[:0]
    labelled, unlabelled = torch.cat([split.hub, *split.labelled]), torch.cat(split.unlabelled)
    if entry.config.method not in ALL_LABELS:
        return Split(nothing, (labelled,), (unlabelled,))
    if bool((dataset.train_labels < 0).any()):
        raise ConfigError(
            f"'{entry.label}' needs a label for every image, but some of your images have none; "
            "leave it out"
        )
    empty = tuple(nothing for _ in split.labelled)
    if entry.config.method == "hub-all":
        return Split(torch.cat([labelled, unlabelled]), empty, empty)
    return Split(
        split.hub, tuple(map(torch.cat, zip(split.labelled, split.unlabelled, strict=True))), empty
    )


def _check(entries: Sequence[Entry], dataset: Dataset, splits: Sequence[Split]) -> None:
    """Every method can work with who has labels, and no two are the same."""
    for split in splits:
        for entry in entries:
            error = _refusal(entry, _seen(entry, split, dataset))
            if error is not None:
                names = entry.config.names
                own = {
                    name: Entry(name, "", resolve(name, names=names))
                    for name in names.tables["METHODS"]
                }
                able = [name for name, other in own.items() if _refusal(other, split) is None]
                raise ConfigError(
                    f"{entry.label} cannot be compared here: {error} (these can: {', '.join(able)})"
                )
    marks: dict[str, str] = {}
    for entry in entries:
        other = marks.setdefault(fingerprint(entry.config), entry.label)
        if other != entry.label:
            raise ConfigError(
                f"'{other}' and '{entry.label}' are the same run; leave one of them out"
            )
    folders = [entry.folder for entry in entries]
    for entry in entries:
        if folders.count(entry.folder) > 1:
            raise ConfigError(
                f"two labels lead to the same folder '{entry.folder}'; rename one of them"
            )


def _refusal(entry: Entry, split: Split) -> ConfigError | None:
    declared = [
        Declared(len(mine), len(rest))
        for mine, rest in zip(split.labelled, split.unlabelled, strict=True)
    ]
    try:
        make_method(entry.config).check(declared, len(split.hub))
    except ConfigError as error:
        return error
    return None


def _claim(out: Path, plan: Plan) -> None:
    """Make the folder this comparison's, or see that it is."""
    if kind_of(out) is Kind.COMPARISON:
        if read_plan(out).mark() != plan.mark():
            raise StorageError(
                f"{out} holds another comparison; choose another folder with --out, or remove that "
                "one"
            )
        return
    if kind_of(out) is not None:
        raise StorageError(f"{out} holds a run; choose another folder with --out")
    check_is_free(out)
    make_folder(out)
    write_whole(out / "compare.json", json.dumps(_content(plan), indent=1).encode())


def _trained(
    config: Config, splits: Sequence[Split], folder: Path | None, on_rounds: OnRounds
) -> SeedsResult:
    if folder is None:
        return run_seeds(config, len(splits), None, on_rounds, splits)
    return ensure_seeds(config, len(splits), folder, on_rounds, splits)


def _settled(
    plan: Plan,
    results: Mapping[str, list[Result]],
    failed: Mapping[str, str],
    dataset: Dataset,
    split: Split,
    out: Path | None,
) -> Comparison:
    alone = [each.label for each in plan.entries if each.labels_alone]
    methods = [each.label for each in plan.entries if not each.labels_alone and not each.reference]
    best = leader(results, [*methods, *alone]) or next(iter(results))
    found = helped(results, methods, alone, dataset)
    told = answer(found, any(len(part) for part in split.unlabelled))
    comparison = Comparison(
        plan, results, failed, best, rows(results, best, dataset), found, told, out
    )
    if out is not None:
        _write(comparison, out)
    return comparison


def _write(comparison: Comparison, out: Path) -> None:
    content = _content(comparison.plan) | {
        "failed": dict(comparison.failed),
        "best": comparison.best,
        "rows": [asdict(row) for row in comparison.rows],
        "helped": [{**asdict(each), "answer": each.answer} for each in comparison.helped],
        "answer": comparison.answer,
    }
    apart = [each.label for each in comparison.plan.entries if not each.federated]
    cost_curves(comparison.results, out / "curves.png", title(comparison.plan), apart)
    write_whole(out / "compare.json", json.dumps(content, indent=1).encode())
    write_page([out], out / "report.html", title(comparison.plan))


def title(plan: Plan) -> str:
    """What all methods have in common, in words."""
    data, split = plan.shared.data, plan.shared.split
    if plan.shared.holders:
        return f"{data.name}, who holds what as in {plan.shared.holders}"
    return f"{data.name}, {split.partition}, labels {split.labels}, {split.clients} clients"


def _content(plan: Plan) -> dict[str, Any]:
    entries = [
        {
            "label": each.label,
            "folder": each.folder,
            "reference": each.reference,
            "labels_alone": each.labels_alone,
            "config": write(each.config),
        }
        for each in plan.entries
    ]
    return {"seeds": list(plan.seeds), "notes": list(plan.notes), "entries": entries}

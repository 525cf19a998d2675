"""The configuration of a run: nested frozen dataclasses with strict keys, typed and within bounds.

It comes from layers, each stronger than the one before: the defaults here, those of the method
(`Entry.defaults`), a preset, a TOML file, flags or keyword options. Every layer is a nested
dictionary of the same shape as the TOML that `to_toml` writes.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedglean.data.labels import LAYOUTS
from fedglean.data.partition import dealer, of_form
from fedglean.data.sources import OWN, PUBLISHED, check_name
from fedglean.errors import ConfigError, unknown
from fedglean.inputs.views import STRONG
from fedglean.method import Method
from fedglean.methods import ALIASES, METHODS
from fedglean.models import NORMS
from fedglean.models.nets import net_of
from fedglean.names import activate, digests
from fedglean.schema import read, setting, shown, values, write
from fedglean_papers.presets import PRESETS

Layer = Mapping[str, Any]
#: What stands for None where TOML needs a value.
NONE = "none"


@dataclass(frozen=True)
class DataConfig:
    name: str = setting("digits", "the data set, one of `fedglean list data`")
    root: str | None = setting(None, "the folder or file with the data")
    allow_partial: bool = setting(False, "accept a published data set of which a part is missing")
    images: int | None = setting(None, "use only this many of the training images", low=1)

    @property
    def title(self) -> str:
        """Its name for people: a user's own data goes by the name of its folder or file."""
        return Path(self.root).resolve().name if self.root and self.name in OWN else self.name


@dataclass(frozen=True)
class SplitConfig:
    partition: str = setting("iid", "how images are spread over the clients, such as dirichlet:0.1")
    labels: str = setting("hub:20", "who has labels, such as hub:20 or fraction:0.1")
    clients: int = setting(20, "the number of clients", low=1)
    file: str | None = setting(
        None, "a split that `fedglean partition --save` wrote, instead of the three above"
    )


@dataclass(frozen=True)
class ModelConfig:
    name: str = setting("cnn", "the model, one of `fedglean list models`")
    norm: str = setting("static", "the model's normalisation, such as group")
    dropout: float = setting(
        0.0,
        "share of hidden units that mlp drops; only for fed-shvr with perturb = dropout",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class GateConfig:
    quorum: float = setting(
        0.5, "share of the asked clients that must answer, or the run stops", low=0, high=1
    )
    stretch: float = setting(
        100.0, "how far an upload may be from what was sent, relative to it", low=0
    )


@dataclass(frozen=True)
class EngineConfig:
    executor: str = setting(
        "auto",
        "train clients one by one (loop), side by side (stack), or as is faster (auto)",
        choices=("auto", "loop", "stack"),
    )
    placement: str = setting(
        "here",
        "where clients train: in this process (here), one per core (workers), a cluster (ray)",
        choices=("here", "workers", "ray"),
    )
    workers: int = setting(
        0, "processes; 0 means one per core, on CUDA one per GPU, on ray one per CPU", low=0
    )
    device: str = setting(
        "auto",
        "where to compute: cpu, cuda, or cuda if there is one (auto)",
        choices=("auto", "cpu", "cuda"),
    )
    dtype: str = setting(
        "float32", "precision of training: float32 or float64", choices=("float32", "float64")
    )
    compile: bool = setting(
        False, "fuse stacked steps with torch.compile on CUDA; takes a minute for each kind of step"
    )
    half: bool = setting(False, "bf16 autocast on CUDA; needs compile")
    deterministic: bool = setting(
        True, "use only CUDA kernels that repeat their last bits; twice as fast without"
    )
    threads: int = setting(
        1, "the number of torch threads; another one changes the last bits", low=1, high=1024
    )
    block: int = setting(16, "how many clients are served and summed together", low=1)
    evaluate_every: int = setting(1, "rounds between tests", low=1)
    checkpoint_every: int = setting(1, "rounds between checkpoints", low=1)


@dataclass(frozen=True)
class Config:
    """Everything that determines a run. `settings` holds all settings of the method, not only those
    chosen.
    """

    method: str
    settings: Mapping[str, Any]
    data: DataConfig
    split: SplitConfig
    model: ModelConfig
    rounds: int = setting(50, "the number of rounds", low=1)
    seed: int = setting(0, "the seed of everything random", low=0, high=2**63 - 1)
    strong: str = setting("fixmatch-ra", "the strong augmentation")
    use: str | None = setting(
        None, "a Python file with your own methods, models, data sets, partitions or views"
    )
    gate: GateConfig = GateConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def holders(self) -> str | None:
        """The file or folder that says who holds what, if it is not drawn at random."""
        return self.split.file or (self.data.root if self.data.name in OWN else None)


SECTIONS: Mapping[str, type] = {
    "data": DataConfig,
    "split": SplitConfig,
    "model": ModelConfig,
    "gate": GateConfig,
    "engine": EngineConfig,
}
_TOP = ("rounds", "seed", "strong", "use")
_FILES = (("data", "root"), ("split", "file"))
_OWN_NAME = {
    "data.name": "data",
    "model.name": "model",
    "data.root": "data_root",
    "split.file": "split_file",
}
_PATHS = [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in fields(kind)]

#: Flat names of options and where they belong.
FLAT: Mapping[str, str] = {_OWN_NAME.get(path, path.partition(".")[2]): path for path in _PATHS} | {
    k: k for k in _TOP
}


def resolve(method: str | None, *layers: Layer) -> Config:
    """The configuration that the layers add up to, the last one strongest; `method` overrides that
    of a layer.
    """
    use = _used(layers)
    name = _method_name(method, layers)
    _refuse_hidden(name)
    merged: dict[str, Any] = {}
    for layer in (METHODS[name].defaults, *layers, {"use": use}):
        merged = _merged(merged, layer)
    _refuse_unknown(merged, name)
    for table in ("settings", *SECTIONS):
        merged.setdefault(table, {})
        if not isinstance(merged[table], Mapping):
            given = shown(merged[table])
            raise ConfigError(f"{table} must be a table, [{table}] in TOML, not {given}")
    settings = values(METHODS[name].method, merged["settings"], "settings", none=NONE)
    config = read(Config, {**merged, "method": name, "settings": settings}, none=NONE)
    _check_names(config)
    if not make_method(config).drops and config.model.dropout:
        raise ConfigError(
            f"model.dropout = {config.model.dropout:g} has no effect with {name} as set here; "
            "set it to 0, or use fed-shvr with perturb = dropout"
        )
    return config


def configure(
    method: str | None = None,
    preset: str | None = None,
    file: Path | str | None = None,
    **options: Any,
) -> Config:
    """A configuration from flat options: `data="digits"`, `labels="hub:20"`, `rate=0.1`,
    `**{"split.labels": "all"}`.

    Options that are None count as not given; nested dictionaries are taken as they are.
    """
    layers = [_preset(preset)] if preset is not None else []
    if file is not None:
        layers.append(_with_place(read_toml(Path(file)), Path(file).parent))
    given = {option: value for option, value in options.items() if value is not None}
    _used([*layers, given])
    name = _method_name(method, layers)
    if preset is not None and PRESETS[preset].method != name:
        raise ConfigError(
            f"the preset '{preset}' is for {PRESETS[preset].method}, not {name}; leave out one of "
            "them"
        )
    brought = layers[-1] if file is not None else {}
    if brought.get("settings") and brought.get("method", name) != name:
        raise ConfigError(
            f"{file} has settings for {brought['method']}, not for {name}; remove them, or leave "
            f"out '{name}'"
        )
    places = {_place(key, value, name): value for key, value in given.items()}
    config = _absolute(
        resolve(name, *layers, *(_nested(place, value) for place, value in places.items()))
    )
    _refuse_ignored(config, places)
    return config


def make_method(config: Config) -> Method:
    """The method with the configuration's settings; it may refuse settings that do not go
    together.
    """
    activate(config.use, again=False)
    return METHODS[config.method].method(**config.settings)


#: What makes no difference to a result, and neither to whether a run can go on.
INDIFFERENT = ("engine.checkpoint_every", "engine.workers", "engine.placement")


def fingerprint(config: Config) -> str:
    """A name for the result: configurations that share it train the same model and write the same
    history.

    Where a published set lies does not matter, for its pixels are checked; a user's own images are
    known by their place alone. Code that is not the package's own counts by what it says, wherever
    it lies. What is not set is left out, so that a key of a later version does not rename the runs
    of before.
    """
    parts = write(config)
    del parts["use"]
    if code := digests(config.use, _names(config)):
        parts["use"] = code
    for path in INDIFFERENT:
        del parts["engine"][path.removeprefix("engine.")]
    parts["engine"]["placement"] = "here"  # as ever: runs of before keep their fingerprint
    if config.data.name in PUBLISHED:
        del parts["data"]["root"]
    for name in SECTIONS:
        parts[name] = {key: value for key, value in parts[name].items() if value is not None}
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def to_toml(config: Config) -> str:
    """The whole configuration as text that `read_toml` and `resolve` turn into an equal one."""
    parts = write(config)
    tables = {name: parts.pop(name) for name in ("settings", *SECTIONS)}
    texts = [_toml_lines(parts)]
    texts += [
        f"[{name}]\n{_toml_lines(table, name == 'settings')}" for name, table in tables.items()
    ]
    text = "\n".join(texts)
    if config.holders:
        says = "file" if config.split.file else "data.root"
        text = text.replace(
            "[split]\n",
            f"[split]\n# {says} says who holds what; partition, labels and clients do not\n",
        )
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """The layer that a file holds; what its keys mean is checked by `resolve`."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _used(layers: Sequence[Layer]) -> str | None:
    """The file that the strongest layer uses; from here on its names are known."""
    named = [layer["use"] for layer in layers if "use" in layer]
    use = named[-1] if named else None
    if use is not None and not isinstance(use, str | Path):
        raise ConfigError(f"use must be text, not {shown(use)}")
    return activate(None if use in (None, NONE) else str(use))


def _with_place(layer: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A TOML file names other files from where it lies itself."""

    def placed(table: Layer, key: str) -> dict[str, Any]:
        path = table.get(key)
        if not isinstance(path, str) or path == NONE:
            return dict(table)
        return {**table, key: os.path.join(folder, os.path.expanduser(path))}

    tables = {
        name: placed(layer[name], key)
        for name, key in _FILES
        if isinstance(layer.get(name), Mapping)
    }
    return {**placed(layer, "use"), **tables}


def _absolute(config: Config) -> Config:
    """Resumed from elsewhere, a run must not find other data."""
    for name, key in _FILES:
        if path := getattr(getattr(config, name), key):
            table = replace(
                getattr(config, name), **{key: os.path.abspath(os.path.expanduser(path))}
            )
            config = replace(config, **{name: table})
    return config


def _names(config: Config) -> dict[str, str]:
    return {
        "METHODS": config.method,
        "MODELS": config.model.name,
        "DATASETS": config.data.name,
        "PARTITIONS": config.split.partition,
        "LAYOUTS": config.split.labels,
        "STRONG": config.strong,
    }


def _method_name(name: str | None, layers: Sequence[Layer]) -> str:
    named = [layer["method"] for layer in layers if "method" in layer]
    chosen = name if name is not None else named[-1] if named else None
    if chosen is None:
        raise ConfigError(
            "no method was named; name one, such as semifl ('fedglean list methods' shows them all)"
        )
    if not isinstance(chosen, str):
        raise ConfigError(
            f"a method is given by its name, not as {chosen!r}; the file of one's own goes into "
            "`use`"
        )
    found = str(chosen) if str(chosen) in METHODS else ALIASES.get(str(chosen))
    if found is None:
        raise unknown("method", str(chosen), [*METHODS, *ALIASES])
    return found


def _refuse_ignored(config: Config, given: Mapping[str, Any]) -> None:
    """Who holds what is not to be chosen where files say it."""
    for key in ("split.labels", "split.clients", "split.partition"):
        if key in given and (file := config.holders):
            raise ConfigError(
                f"'{file}' already says who holds what; leave out {key.partition('.')[2]} = "
                f"{given[key]}"
            )


def _preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return {**PRESETS[name].layer, "method": PRESETS[name].method}


def settings_of(method: str) -> list[str]:
    """The names of a method's settings."""
    return [field.name for field in fields(METHODS[method].method)]  # type: ignore[arg-type]


def _refuse_hidden(method: str) -> None:
    """A setting that has the name of an option could never be given."""
    hidden = sorted({*settings_of(method)} & {*FLAT, *SECTIONS, "method", "preset", "file"})
    if hidden:
        raise ConfigError(
            f"the setting '{hidden[0]}' of {method} has the same name as an option of every run; "
            "rename it"
        )


def _place(option: str, value: Any, method: str) -> str:
    """The full key of an option."""
    settings = settings_of(method)
    if "." in option or (isinstance(value, Mapping) and option in ("settings", *SECTIONS)):
        return option
    if option in FLAT:
        return FLAT[option]
    if option in settings:
        return f"settings.{option}"
    raise unknown(f"option of {method}", option, [*FLAT, *settings])


def _nested(key: str, value: Any) -> dict[str, Any]:
    first, dot, rest = key.partition(".")
    return {first: _nested(rest, value) if dot else value}


def _merged(weak: Layer, strong: Layer) -> dict[str, Any]:
    merged = dict(weak)
    for key, value in strong.items():
        below = merged.get(key)
        merged[key] = (
            _merged(below, value)
            if isinstance(below, Mapping) and isinstance(value, Mapping)
            else value
        )
    return merged


def _refuse_unknown(layer: Layer, method: str) -> None:
    known = ("method", "settings", *SECTIONS, *_TOP)
    places = {**FLAT, **{name: f"settings.{name}" for name in settings_of(method)}}
    for key in layer:
        if key in places and key not in known:
            raise ConfigError(f"unknown key '{key}'; did you mean '{places[key]}'?")
        if key not in known:
            raise unknown("key", key, known)


def _check_names(config: Config) -> None:
    check_name(config.data.name)
    names = (("norm", config.model.norm, NORMS), ("strong augmentation", config.strong, STRONG))
    for what, name, known in names:
        if name not in known:
            raise unknown(what, name, known)
    net_of(config.model.name)
    dealer(config.split.partition)
    of_form("label layout", config.split.labels, LAYOUTS)
    if config.engine.workers and config.engine.placement == "here":
        raise ConfigError(
            "engine.workers has no effect in a single process; add --placement workers, or leave "
            "it out"
        )
    if config.engine.half and not config.engine.compile:
        raise ConfigError("engine.half works only with compiled steps; add --set compile=true")


def _toml_lines(table: Mapping[str, Any], with_none: bool = False) -> str:
    """TOML writes texts, numbers and truth values as JSON does, but for one control character."""
    lines = []
    for name, value in table.items():
        if value is None and not with_none:
            continue
        text = json.dumps(NONE if value is None else value, ensure_ascii=False)
        lines.append(f"{name} = {text}\n")
    return "".join(lines).replace("\x7f", "\\u007f")

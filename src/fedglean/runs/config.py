"""The configuration of a run: nested frozen dataclasses with strict keys, typed and within bounds.

It comes from layers, each stronger than the one before: the defaults here, those of the method
(`Entry.defaults`), a preset, a TOML file, flags or keyword options. Every layer is a nested
dictionary of the same shape as the TOML that `to_toml` writes.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedglean.data.partition import dealer
from fedglean.data.photos import FITS, ImageForm
from fedglean.data.sources import OWN, PUBLISHED
from fedglean.errors import ConfigError, UntrustedError, unknown
from fedglean.method import Method
from fedglean.models import NORMS
from fedglean.names import Names
from fedglean.schema import BESIDE, fields_of, read, setting, shown, values, write
from fedglean.sealed import digest_of_json

Layer = Mapping[str, Any]
#: What stands for None where TOML needs a value.
NONE = "none"


@dataclass(frozen=True)
class DataConfig:
    name: str = setting("digits", "the data set, one of `fedglean list data`", option="data")
    root: str | None = setting(None, "the folder or file with the data", option="data_root")
    allow_partial: bool = setting(False, "accept a published data set of which a part is missing")
    images: int | None = setting(None, "use only this many of the training images", low=1)
    image_size: int | None = setting(
        None, "bring all images in your own folders to this many pixels a side", low=1, high=4096
    )
    image_fit: str | None = setting(
        None,
        "how: cut out the centre (crop, the default), pad with black (pad) or distort (squash)",
        choices=FITS,
    )

    @property
    def title(self) -> str:
        """Its name for people: a user's own data goes by the name of its folder or file."""
        return Path(self.root).resolve().name if self.root and self.name in OWN else self.name

    @property
    def form(self) -> ImageForm:
        """What images in folders are brought to."""
        return ImageForm(self.image_size, self.image_fit or FITS[0])


@dataclass(frozen=True)
class SplitConfig:
    partition: str = setting("iid", "how images are spread over the clients, such as dirichlet:0.1")
    labels: str = setting("hub:20", "who has labels, such as hub:20 or fraction:0.1")
    clients: int = setting(20, "the number of clients", low=1)
    file: str | None = setting(
        None,
        "a split that `fedglean partition --save` wrote, instead of the three above",
        option="split_file",
    )


@dataclass(frozen=True)
class ModelConfig:
    name: str = setting("cnn", "the model, one of `fedglean list models`", option="model")
    norm: str = setting("static", "the model's normalisation, such as group")
    optimiser: str | None = setting(None, "an optimiser in the place of the method's, as adamw")
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
    aggregate: str | None = setting(None, "how uploads become one, in the place of their mean")
    lost: float | None = setting(
        None,
        "share of answers that get lost on their way, drawn anew each time; a quorum misses them",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class EngineConfig:
    executor: str = setting(
        "auto", "train clients one by one (loop), side by side (stack), or as is faster (auto)"
    )
    placement: str = setting(
        "here",
        "where clients train: in this process (here), one per core (workers), a cluster (ray)",
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
    """Everything that determines a run; `settings` has all of the method's, not only the chosen."""

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
    names: Names = field(default_factory=Names.of, repr=False, compare=False, metadata=BESIDE)

    @property
    def holders(self) -> str | None:
        """The file or folder that says who holds what, if it is not drawn at random."""
        return self.split.file or (self.data.root if self.data.name in OWN else None)


#: The tables of a configuration, and its keys outside of them.
SECTIONS = [name for name, (_, hint) in fields_of(Config).items() if is_dataclass(hint)]
TOP = [name for name in fields_of(Config) if name not in ("method", "settings", *SECTIONS)]
#: Keys that hold paths.
PATHS = ("use", "data.root", "split.file")
#: Keys that name something, and the table in which it is found.
NAMED: Mapping[str, str] = {
    "method": "METHODS",
    "data.name": "DATASETS",
    "model.name": "MODELS",
    "split.partition": "PARTITIONS",
    "split.labels": "LAYOUTS",
    "strong": "STRONG",
    "model.optimiser": "OPTIMISERS",
    "gate.aggregate": "AGGREGATES",
    "engine.executor": "EXECUTORS",
    "engine.placement": "PLACEMENTS",
}
NO_METHOD = "no method was named; name one, such as semifl ('fedglean list methods' shows them all)"
#: Stands for the faster executor, which is found out.
AUTO = "auto"


def _short_names() -> dict[str, str]:
    short = {key: key for key in TOP}
    for section in SECTIONS:
        for name, (each, _) in fields_of(fields_of(Config)[section][1]).items():
            short[each.metadata["option"] or name] = f"{section}.{name}"
    return short


#: Flat names of options and where they belong.
FLAT: Mapping[str, str] = _short_names()


def resolve(
    method: str | None, *layers: Layer, foreign: Layer | None = None, names: Names | None = None
) -> Config:
    """The configuration that the layers add up to, the last one strongest.

    `method` overrides that of a layer. `foreign` is the layer that somebody else may have written:
    code that it alone names runs only if it ran for this user before. `names` are known where the
    file that brings them was read.
    """
    if method is not None:
        layers = (*layers, {"method": method})
    names = _with_imports(names or _names_of(layers, foreign), layers, foreign)
    name = _method_name(layers, names)
    is_closed = names.is_closed_to("METHODS", name)  # its code may not run, and is not needed
    merged: Layer = {table: {} for table in ("settings", *SECTIONS)}
    if not is_closed:
        merged = _merge(merged, names.find("METHODS", name).defaults)
    for layer in layers:
        merged = _merge(merged, layer)
    _refuse_unknown(merged, [] if is_closed else settings_of(name, names))
    settings = merged["settings"]
    if not is_closed:
        _refuse_hidden(name, names)
        if method is None:
            name = _name_today(name, names, settings)
        kind = names.find("METHODS", name).method
        settings = values(kind, _without_retired(name, kind, settings), "settings", none=NONE)
    parts = {**merged, "method": name, "settings": settings, "use": names.use}
    config = replace(read(Config, parts, none=NONE), names=names)
    config = replace(config, data=_with_fit(config.data))
    _check_names(config)
    _check_engine(config.engine)
    if not is_closed:
        made = make_method(config)  # which may refuse settings
        if config.model.dropout and not made.drops:
            raise ConfigError(
                f"model.dropout = {config.model.dropout:g} has no effect with {name} as set here; "
                "set it to 0, or use fed-shvr with perturb = dropout"
            )
    return config


def configure(
    method: str | None = None,
    preset: str | None = None,
    file: Path | str | None = None,
    trust: bool = False,
    is_own: bool = True,
    **options: Any,
) -> Config:
    """A configuration from options: `data="digits"`, `rate=0.1`, `**{"split.labels": "all"}`.

    Options that are None count as not given; nested dictionaries are taken as they are. Code that
    only the file names runs if `trust` says so, or if this user has run it before; and so does
    what options name that are not the user's own.
    """
    written: Layer = {}
    if file is not None:
        written = _with_places(read_toml(Path(file)), Path(file).parent)
    options = {option: value for option, value in options.items() if value is not None}
    given: Layer = {} if method is None else {"method": method}
    for option, value in options.items():
        given = _merge(given, _nest(_key_of(option, value), value))
    given = _with_places(given, Path())
    foreign = None if trust else written if is_own else given
    names = _names_of([written, given], foreign)
    layers = [written, given]
    if preset is not None:
        found = names.find("PRESETS", preset)
        layers.insert(0, {**found.layer, "method": found.method})
    names = _with_imports(names, layers, foreign)
    name = _method_name(layers, names)
    if preset is not None and found.method != name:
        raise ConfigError(
            f"the preset '{preset}' is for {found.method}, not {name}; name one alone"
        )
    if written.get("settings") and written.get("method", name) != name:
        what = f"{file} has settings for {written['method']}, not for {name}"
        raise ConfigError(f"{what}; remove them, or leave out '{name}'")
    retired = names.find("METHODS", name).method.retired
    current = [option for option in options if option not in retired]
    _refuse_unknown_options(current, name, settings_of(name, names))
    config = resolve(name, *layers, foreign=foreign, names=names)
    _refuse_ignored(config, given)
    return config


def make_method(config: Config) -> Method:
    """The method with its settings; it may refuse some that do not go together."""
    names, chosen = config.names, config.model.optimiser
    method: Method = names.find("METHODS", config.method).method(**config.settings)
    if chosen is None:
        return method
    if method.needs_sgd and chosen != "sgd":
        what = f"{config.method} holds for steps of SGD alone and cannot train with '{chosen}'"
        raise ConfigError(f"{what}; leave out the optimiser")
    return replace(method, optimiser=names.find("OPTIMISERS", chosen).make)


#: What makes no difference to a result, and neither to whether a run can go on.
INDIFFERENT = ("engine.checkpoint_every", "engine.workers", "engine.placement")


def fingerprint(config: Config) -> str:
    """A name for the result: who shares it trains the same model and writes the same history.

    Where a published set lies does not matter, for its pixels are checked; a user's own images are
    known by their place alone. Code that is not the package's own counts by what it says, wherever
    it lies. What is not set is left out, and retired settings are put back, so that a later version
    does not rename the runs of before.
    """
    parts = write(config)
    if not config.names.is_closed_to("METHODS", config.method):
        for key, (value, _) in config.names.find("METHODS", config.method).method.retired.items():
            parts["settings"][key] = value
    del parts["use"]
    counts = [pair for pair in _chosen(config) if pair[0] != "PLACEMENTS"]
    if code := config.names.digests(counts):
        parts["use"] = code
    for path in INDIFFERENT:
        del parts["engine"][path.removeprefix("engine.")]
    parts["engine"]["placement"] = "here"  # as ever: runs of before keep their fingerprint
    if config.data.name in PUBLISHED:
        del parts["data"]["root"]
    for name in SECTIONS:
        parts[name] = {key: value for key, value in parts[name].items() if value is not None}
    return digest_of_json(parts, (",", ":"))


def to_toml(config: Config) -> str:
    """The whole configuration as text that `read_toml` and `resolve` turn into an equal one."""
    parts = write(config)
    tables = {name: parts.pop(name) for name in ("settings", *SECTIONS)}
    text = _toml_lines(parts)
    for name, table in tables.items():
        text += f"\n[{name}]\n"
        if name == "split" and config.holders:
            says = "file" if config.split.file else "data.root"
            text += f"# {says} says who holds what; partition, labels and clients do not\n"
        text += _toml_lines(table, with_none=name == "settings")
    return text


def read_toml(path: Path) -> dict[str, Any]:
    """The layer that a file holds; what its keys mean is checked by `resolve`."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _names_of(layers: Sequence[Layer], foreign: Layer | None) -> Names:
    """Those of the file that the strongest layer uses."""
    use, layer = _strongest("use", layers)
    if use is not None and not isinstance(use, str | Path):
        raise ConfigError(f"use must be text, not {shown(use)}")
    return Names.of(None if use == NONE else use, is_own=layer is not foreign)


def _with_imports(names: Names, layers: Sequence[Layer], foreign: Layer | None) -> Names:
    """With what is named by the module that holds it."""
    for key, table in NAMED.items():
        name, layer = _strongest(key, layers)
        if isinstance(name, str) and name != AUTO:
            names = names.importing(table, name, is_own=layer is not foreign)
    return names


def _strongest(key: str, layers: Sequence[Layer]) -> tuple[Any, Layer]:
    """What the strongest layer that has a key says, and which layer that is."""
    for layer in reversed(layers):
        value = _at(layer, key)
        if value is not None:
            return value, layer
    return None, {}


def _at(layer: Layer, key: str) -> Any:
    value: Any = layer
    for word in key.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def _with_places(layer: Layer, folder: Path) -> Layer:
    """Paths are meant from where they were written: a run that is resumed finds its data."""
    for key in PATHS:
        path = _at(layer, key)
        if isinstance(path, str | Path) and path != NONE:
            place = os.path.abspath(os.path.join(folder, os.path.expanduser(path)))
            layer = _merge(layer, _nest(key, place))
    return layer


def _chosen(config: Config) -> list[tuple[str, str]]:
    """All that it names, settings of its method included, each with its table."""
    found: list[tuple[str, str]] = []
    for key, table in NAMED.items():
        chosen = attrgetter(key)(config)
        if chosen is not None and chosen != AUTO:
            found.append((table, chosen))
    if not config.names.is_closed_to("METHODS", config.method):
        method = config.names.find("METHODS", config.method).method
        for each, _ in fields_of(method).values():
            if each.metadata.get("names"):
                found.append((each.metadata["names"], config.settings[each.name]))
    return found


def _method_name(layers: Sequence[Layer], names: Names) -> str:
    chosen, _ = _strongest("method", layers)
    if chosen is None:
        raise ConfigError(NO_METHOD)
    if not isinstance(chosen, str):
        how = "the file of one's own goes into `use`"
        raise ConfigError(f"a method is given by its name, not as {chosen!r}; {how}")
    known = names.tables["METHODS"]
    if chosen not in known and chosen not in names.aliases and names.closed is None:
        raise unknown("method", chosen, [*known, *names.aliases])
    return chosen if chosen in known else names.aliases.get(chosen, chosen)


def _refuse_ignored(config: Config, given: Layer) -> None:
    """Who holds what is not to be chosen where files say it."""
    for name in ("labels", "clients", "partition"):
        value = _at(given, f"split.{name}")
        if value is not None and config.holders:
            told = f"'{config.holders}' already says who holds what"
            raise ConfigError(f"{told}; leave out {name} = {value}")


def settings_of(method: str, names: Names) -> list[str]:
    """The names of a method's settings."""
    return list(fields_of(names.find("METHODS", method).method))


def _name_today(method: str, names: Names, settings: Layer) -> str:
    """What a stored method is called now: a retired setting's other values are other methods."""
    kind: type[Method] = names.find("METHODS", method).method
    for key, (value, other) in kind.retired.items():
        if settings.get(key, value) != value:
            return other
    return method


def _without_retired(method: str, kind: type[Method], settings: Layer) -> Layer:
    """The settings of today; those of before may have the one value that still holds."""
    for key, (value, other) in kind.retired.items():
        if settings.get(key, value) != value:
            raise ConfigError(
                f"{method} has no setting '{key}' any more and does what {key} = {value} did; for "
                f"another value take {other}"
            )
    return {key: value for key, value in settings.items() if key not in kind.retired}


def _refuse_hidden(method: str, names: Names) -> None:
    """A setting that has the name of an option could never be given."""
    taken = {*FLAT, *SECTIONS, "method", "preset", "file", "trust"}
    hidden = sorted({*settings_of(method, names)} & taken)
    if hidden:
        what = f"the setting '{hidden[0]}' of {method} has the same name as an option of every run"
        raise ConfigError(f"{what}; rename it")


def _key_of(option: str, value: Any) -> str:
    """The full key of an option; what is no key of every run is a setting of the method."""
    is_table = isinstance(value, Mapping) and option in ("settings", *SECTIONS)
    if "." in option or is_table:
        return option
    return FLAT.get(option, f"settings.{option}")


def _refuse_unknown_options(options: Iterable[str], method: str, settings: Sequence[str]) -> None:
    for option in options:
        if "." not in option and option not in (*FLAT, *settings, "settings", *SECTIONS):
            raise unknown(f"option of {method}", option, [*FLAT, *settings])


def _nest(key: str, value: Any) -> Layer:
    for word in reversed(key.split(".")):
        value = {word: value}
    return value  # type: ignore[no-any-return]


def _merge(weak: Layer, strong: Layer) -> Layer:
    merged = dict(weak)
    for key, value in strong.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _merge(below, value)
        merged[key] = value
    return merged


def _refuse_unknown(layer: Layer, settings: Sequence[str]) -> None:
    known = ("method", "settings", *SECTIONS, *TOP)
    places = {**FLAT, **{name: f"settings.{name}" for name in settings}}
    for key in layer:
        if key in places and key not in known:
            raise ConfigError(f"unknown key '{key}'; did you mean '{places[key]}'?")
        if key not in known:
            raise unknown("key", key, known)


def _check_names(config: Config) -> None:
    if config.model.norm not in NORMS:
        raise unknown("norm", config.model.norm, NORMS)
    for table, name in _chosen(config):
        with suppress(UntrustedError):  # whoever needs it says so
            found = config.names.find(table, name)
            if table == "PARTITIONS":
                dealer(name, found)


def _with_fit(data: DataConfig) -> DataConfig:
    """With the fit by name wherever images are brought to a size, so that it is on record."""
    if data.image_size is not None:
        return replace(data, image_fit=data.form.fit)
    if data.image_fit is not None:
        raise ConfigError("data.image_fit has no effect without a size; add --image-size 64")
    return data


def _check_engine(engine: EngineConfig) -> None:
    if engine.workers and engine.placement == "here":
        how = "add --placement workers, or leave it out"
        raise ConfigError(f"engine.workers has no effect in a single process; {how}")
    if engine.half and not engine.compile:
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

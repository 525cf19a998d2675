"""Options of commands, made from the fields of dataclasses: what a field says is also its help."""

import inspect
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, is_dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from fedglean.errors import ConfigError
from fedglean.names import Names
from fedglean.runs.config import FLAT, NAMED, Config
from fedglean.schema import fields_of, read

Parameter = inspect.Parameter

METHOD = "Method"
#: What chooses or changes a whole configuration, and is no field of it.
METHOD_HELP = (
    "A method from `fedglean list methods`; it may bring defaults of its own, which "
    "`fedglean config METHOD` shows."
)
PRESET_HELP = "A published setting from `fedglean list presets`."
FILE_HELP = "A configuration in TOML; flags override it."
TRUST_HELP = "Allow the code that the file of --config names, as it is now; read it before."
SET_HELP = "A setting of the method, such as rate=0.1, or any other key; repeat it for each."

#: Keys that --set does not take, and what does.
OUTSIDE = {
    "method": "name it as the argument",
    "preset": "use --preset",
    "file": "use --config",
    "use": "use --use",
}


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a configuration: it gets `options` for `configure`."""
    one_method = {
        "method": Annotated[
            str | None, typer.Argument(help=METHOD_HELP, autocompletion=complete("METHODS"))
        ],
        "preset": _option(str | None, PRESET_HELP, METHOD, table="PRESETS"),
        "file": _option(Path | None, FILE_HELP, METHOD, "--config"),
        "trust": _option(bool, TRUST_HELP, METHOD, "--trust"),
    }
    return _with_options(command, one_method)


def configured_for_all(command: Callable[..., None]) -> Callable[..., None]:
    """Those options that make sense for several methods at once."""
    return _with_options(command, {})


def _with_options(command: Callable[..., None], more: dict[str, Any]) -> Callable[..., None]:
    """Only what was given on the command line is among the `options`; all else is a default."""
    own = [one for name, one in inspect.signature(command).parameters.items() if name != "options"]
    more = {**more, "set": _option(list[str] | None, SET_HELP, METHOD)}
    shared = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in more.items()
    ]
    taken = {*more, *(one.name for one in own)}
    shared += [one for one in _parameters(Config) if one.name not in taken]

    @wraps(command)
    def wrapper(context: typer.Context, **given: Any) -> None:
        options: dict[str, Any] = {}
        for one in shared:
            value = given.pop(one.name)
            source = context.get_parameter_source(one.name)
            if source is not None and source.name != "DEFAULT":
                options[one.name] = value
        for text in options.pop("set", []):
            key, value = assignment(text)
            options[key] = value
        command(options=options, **given)

    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own]
    wrapper.__signature__ = inspect.Signature([context, *own, *shared])  # type: ignore[attr-defined]
    return wrapper


def with_fields(name: str, kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of a dataclass that has a help.

    The command gets them as one, by that name.
    """
    options = [
        _parameter(kind, each, each, "Options")
        for each, (field, _) in fields_of(kind).items()
        if "help" in field.metadata
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(**given: Any) -> None:
            values = {each.name: given.pop(each.name) for each in options}
            command(**{name: read(kind, values)}, **given)

        own = inspect.signature(command).parameters.values()
        others = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own if one.name != name]
        wrapper.__signature__ = inspect.Signature([*options, *others])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameters(kind: Any, section: str = "") -> Iterator[Parameter]:
    """An option for every field, in panels by section.

    A truth value gets a flag that turns it on; what is on by default, `--set` turns off.
    """
    short = {path: name for name, path in FLAT.items()}
    for name, (field, hint) in fields_of(kind).items():
        path = f"{section}.{name}" if section else name
        if is_dataclass(hint):
            yield from _parameters(hint, name)
        elif path in short and field.default is not True:
            panel = section.capitalize() or METHOD
            yield _parameter(kind, name, short[path], panel, NAMED.get(path))


def _parameter(
    kind: type, name: str, option: str, panel: str, table: str | None = None
) -> Parameter:
    """A field as typer takes it; without a name of its own, a flag would get one that denies it."""
    field, hint = fields_of(kind)[name]
    default = Parameter.empty if field.default is MISSING else field.default
    flag = f"--{option.replace('_', '-')}"
    annotation = _option(hint, help_of(kind, name), panel, flag, table=table)
    return Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def help_of(kind: type, name: str) -> str:
    """What a field says, as a sentence."""
    metadata = fields_of(kind)[name][0].metadata
    text: str = metadata["help"]
    if not all(choice in text for choice in metadata["choices"]):
        text += f": {', '.join(metadata['choices'])}"
    return f"{text[0].upper()}{text[1:]}."


def _option(hint: Any, text: str, panel: str, *names: str, table: str | None = None) -> Any:
    begun = complete(table) if table else None
    about = typer.Option(*names, help=text, rich_help_panel=panel, autocompletion=begun)
    return Annotated[hint, about]


def complete(*tables: str) -> Callable[[str], list[str]]:
    """What a shell offers for a name of these tables that was begun."""

    def begun(incomplete: str) -> list[str]:
        known = chain.from_iterable(Names.of().tables[table] for table in tables)
        # What has a colon is a form, such as classes:K, and no name that could be taken as it is.
        return [name for name in known if name.startswith(incomplete) and ":" not in name]

    return begun


def assignment(text: str) -> tuple[str, Any]:
    """`key=value`, the value as TOML reads it or else as text: most texts need no quotes."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"'--set {text}' is not an assignment; write '--set key=value'")
    if key in OUTSIDE:
        why = f"'--set {text}' cannot choose the {key}, which decides what settings there are"
        raise ConfigError(f"{why}; {OUTSIDE[key]}")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return key, parsed if isinstance(parsed, str | int | float) else value

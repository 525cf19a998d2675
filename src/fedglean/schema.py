"""One reader for everything that comes from outside: configurations, letters, options, splits.

What is allowed is said once, by the fields of dataclasses; `setting` adds bounds, choices and a
line for people. What is wrong is said in a sentence that names the key; what type of error it is,
the caller chooses. Recursion follows the fields' types, so data cannot be nested without bound.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fedglean.errors import ConfigError, plain, unknown

T = TypeVar("T")

#: Of a field that travels with the others, but is neither read nor written.
BESIDE: Mapping[str, Any] = {"is_beside": True}
#: Levels of what a field of type `Any` may hold.
DEEPEST = 16
#: Most values are of these, and of the very type that is wanted.
SIMPLE = (int, float, str)
WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    names: str | None = None,
    option: str | None = None,
) -> Any:
    """A field: its default (`MISSING`: none), a line for people, and which values are allowed.

    Bounds are included. Those of a list hold for each of its values. `names` is the table in which
    a value must be found, such as "VIEWS": what others add to it is allowed too. `option` is what
    it is called on the command line and as a keyword, where its own name would say too little.
    """
    about = {"help": help, "low": low, "high": high, "choices": tuple(choices)}
    return field(default=default, metadata={**about, "names": names, "option": option})


def read(
    kind: type[T],
    data: object,
    where: str = "",
    *,
    error: type[Exception] = ConfigError,
    none: str | None = None,
) -> T:
    """The dataclass that plain data describes; its own ConfigErrors become the caller's error too.

    `where` is the key under which the data was found, and `none` a text that stands for None, which
    TOML cannot write.
    """
    try:
        return kind(**values(kind, data, where, none=none))
    except ConfigError as problem:
        if error is ConfigError:
            raise
        raise error(str(problem)) from problem


def values(kind: type, data: object, where: str = "", *, none: str | None = None) -> dict[str, Any]:
    """The fields that `read` would hand to the dataclass, those that are not given included."""
    prefix = f"{where}." if where else ""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'the whole'} must be a table, not {shown(data)}")
    known = fields_of(kind)
    for key in data:
        if key not in known:
            raise unknown("key", f"{prefix}{plain(str(key)[:100])}", [prefix + k for k in known])
    result = {}
    for name, (each, hint) in known.items():
        if name in data:
            result[name] = _value(prefix + name, data[name], hint, each.metadata, none)
        elif each.default is not MISSING:
            result[name] = each.default
        elif each.default_factory is not MISSING:
            result[name] = each.default_factory()
        else:
            raise ConfigError(f"{prefix}{name} is missing")
    return result


def write(value: Any) -> Any:
    """Plain data, as JSON and TOML know it, from which `read` makes an equal value."""
    if is_dataclass(value):
        return {
            each.name: write(getattr(value, each.name))
            for each in fields(value)
            if _is_written(each)
        }
    if isinstance(value, Mapping):
        return {str(key): write(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [write(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def shown(value: object) -> str:
    """A wrong value in a sentence, never longer than a line."""
    if isinstance(value, str):
        return f"the text '{plain(value[:100])}'"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else str(value)[:100]


def _is_written(each: Field[Any]) -> bool:
    return each.init and not each.metadata.get("is_beside")


@cache
def fields_of(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    """The fields that can be given, each with its type."""
    hints = get_type_hints(kind)
    return {each.name: (each, hints[each.name]) for each in fields(kind) if _is_written(each)}


def _value(key: str, value: Any, hint: Any, limits: Mapping[str, Any], none: str | None) -> Any:
    """The value in its own type and within its limits."""
    kinds = _kinds(hint)
    if NoneType in kinds and (value is None or (none is not None and value == none)):
        return None
    if type(value) in SIMPLE and type(value) in kinds:
        return _check_limits(key, value, type(value), limits)
    for kind, form in kinds.items():
        if form is Any:
            _check_plain(key, value, DEEPEST)
            return value
        if not _has_form(value, form):
            continue
        is_object = is_dataclass(form)
        if is_object:
            return form(**values(form, value, key, none=none))
        if issubclass(form, Mapping):
            return _mapping(key, value, kind, limits, none)
        if issubclass(form, Sequence) and form is not str:
            return _sequence(key, value, kind, limits, none)
        return _check_limits(key, value, form, limits)
    expected = " or ".join(_word(form) for form in kinds.values() if form is not NoneType)
    raise ConfigError(f"{key} must be {expected}, not {shown(value)}")


@cache
def _kinds(hint: Any) -> dict[Any, Any]:
    """The types that a hint allows, each with its class: of `list[int]`, `list`."""
    kinds = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    return {kind: get_origin(kind) or kind for kind in kinds}


def _has_form(value: Any, form: type) -> bool:
    """Numbers of numpy are numbers, truth values are not; a path may be written as text."""
    if form is NoneType:
        return False
    if is_dataclass(form) or issubclass(form, Mapping):
        return isinstance(value, Mapping)
    if form is str or form is Path:
        return isinstance(value, str | Path)
    if issubclass(form, Sequence):
        return isinstance(value, list | tuple)
    if form is bool or isinstance(value, bool):
        return form is bool and isinstance(value, bool)
    return isinstance(value, Integral if form is int else Real)


def _word(form: Any) -> str:
    if form in WORDS:
        return WORDS[form]
    return "a table" if is_dataclass(form) or issubclass(form, Mapping) else "a list"


def _mapping(
    key: str, value: Mapping[Any, Any], hint: Any, limits: Mapping[str, Any], none: str | None
) -> dict[Any, Any]:
    name_kind, kind = get_args(hint)
    result: dict[Any, Any] = {}
    for name, each in value.items():
        place = f"{key}.{plain(str(name)[:100])}"
        if name_kind is int:  # JSON and TOML write numbers as text there
            if not str(name).isdecimal():
                raise ConfigError(f"{place} must be named by a whole number")
            name = int(name)
        elif not isinstance(name, str):
            raise ConfigError(f"{place} must be named by text")
        result[name] = _value(place, each, kind, limits, none)
    return result


def _sequence(
    key: str, value: Sequence[Any], hint: Any, limits: Mapping[str, Any], none: str | None
) -> Sequence[Any]:
    kinds = get_args(hint)
    if get_origin(hint) is tuple and kinds[-1] is not Ellipsis:
        if len(value) != len(kinds):
            raise ConfigError(f"{key} must have {len(kinds)} values, not {len(value)}")
    else:
        kinds = (kinds[0],) * len(value)
    result = []
    for at, each in enumerate(value):
        result.append(_value(f"{key}[{at}]", each, kinds[at], limits, none))
    return result if get_origin(hint) is list else tuple(result)


def _check_limits(key: str, value: Any, form: type, limits: Mapping[str, Any]) -> Any:
    try:
        value = form(value)
        is_finite = form is not float or math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ConfigError(f"{key} must be a finite number, not {shown(value)}")
    choices, low, high = limits.get("choices"), limits.get("low"), limits.get("high")
    if choices and value not in choices:
        raise unknown(key, plain(str(value)[:100]), choices)
    if (low is not None and value < low) or (high is not None and value > high):
        raise ConfigError(f"{key} must be {_bounds(low, high)}, not {shown(value)}")
    return value


def _bounds(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"from {low} to {high}"


def _check_plain(key: str, value: object, levels: int) -> None:
    """Of whatever JSON can hold: no bottomless nesting, and no number that is none."""
    if levels == 0:
        raise ConfigError(f"{key} is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} must be finite numbers, not {value}")
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    for each in parts:
        _check_plain(key, each, levels - 1)

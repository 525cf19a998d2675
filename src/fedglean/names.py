"""A user's own methods, models, data sets, partitions, label layouts and views, without touching
the package.

They are defined in a module with tables like the package's own, any of those in `TABLES`. A value
is what the package's table holds, or just the class or function, whose docstring's first line then
is the summary. An installed package is found by its entry point in the group "fedglean"; a file is
named by the configuration's key `use`, and only configurations that use it know its names: what a
configuration means never depends on what was read before.
"""

import ast
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from torch.nn import Module

from fedglean.data.labels import LAYOUTS, LabelLayout
from fedglean.data.partition import PARTITIONS, Partition
from fedglean.data.sources import DATASETS, Source
from fedglean.errors import ConfigError
from fedglean.inputs.views import STRONG, VIEWS, Strong, View
from fedglean.method import Method
from fedglean.methods import METHODS, Entry
from fedglean.models.nets import MODELS, WIDE, NetKind

GROUP = "fedglean"
PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Table:
    """One of the package's tables, and what it holds."""

    word: str
    known: dict[str, Any]
    row: type
    takes_values: bool = False


TABLES = {
    "METHODS": Table("method", METHODS, Entry),
    "MODELS": Table("model", MODELS, NetKind),
    "DATASETS": Table("data set", DATASETS, Source),
    "PARTITIONS": Table("partition", PARTITIONS, Partition, takes_values=True),
    "LAYOUTS": Table("label layout", LAYOUTS, LabelLayout, takes_values=True),
    "VIEWS": Table("view", VIEWS, View),
    "STRONG": Table("strong augmentation", STRONG, Strong),
}


@dataclass(frozen=True, eq=False)
class Addition:
    """A module that adds something: what sentences call it, its text, a digest, and its rows by
    table and name.
    """

    title: str
    text: bytes
    digest: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def brings(self, table: str, name: str) -> bool:
        return _kind(name) in map(_kind, self.rows.get(table, {}))

    def place(self, table: str, name: object = None) -> str:
        """Where it speaks of a name."""
        line = _line_of(self.text, table, name)
        return self.title if line is None else f"{self.title}, line {line}"


#: Files by path, as they were when they were read last: a run that goes on does not see what
#: becomes of its file.
_READ: dict[str, Addition] = {}
#: What the tables hold now beside the package's own.
_ENTERED: list[Addition] = []


def activate(use: str | None, again: bool = True) -> str | None:
    """Let the tables know the package's names, those of installed packages and those of this file;
    its full path.

    Without `again`, a file that was read before is taken as it was then.
    """
    path = None if use is None else Path(use).expanduser().resolve()
    wanted = [*installed(), *([] if path is None else [_read(path, again)])]
    for addition in [each for each in _ENTERED if each not in wanted]:
        _ENTERED.remove(addition)
        for table, rows in addition.rows.items():
            for name in rows:
                del TABLES[table].known[name]
    for addition in [each for each in wanted if each not in _ENTERED]:
        _enter(addition)
    return None if path is None else str(path)


def digests(use: str | None, names: Mapping[str, str]) -> list[str]:
    """Of what brought these names of the tables: packages, and the file in use as it was when it
    was read.
    """
    holders = [*installed(), *([] if use is None else [_read(Path(use), again=False)])]
    return sorted(
        {each.digest for each in holders if any(each.brings(*name) for name in names.items())}
    )


def brought_by(table: str, name: str) -> Addition | None:
    """Who added a name, where it is not the package's own."""
    return next((each for each in _ENTERED if each.brings(table, name)), None)


@cache
def installed() -> tuple[Addition, ...]:
    """What other packages add, by name of their entry points."""
    return tuple(
        _of_package(point)
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)
    )


def _enter(addition: Addition) -> None:
    """All of its rows, or none where a name is taken."""
    for table, rows in addition.rows.items():
        for name in rows:
            wide = table == "MODELS" and WIDE.fullmatch(name)
            if wide or _kind(name) in map(_kind, TABLES[table].known):
                holder = brought_by(table, name)
                raise ConfigError(
                    f"{addition.place(table, name)}: {holder.title if holder else 'fedglean'} "
                    "already has a "
                    f"{TABLES[table].word} '{name}'; choose another name"
                )
    for table, rows in addition.rows.items():
        TABLES[table].known.update(rows)
    _ENTERED.append(addition)


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _read(path: Path, again: bool) -> Addition:
    if str(path) in _READ and not again:
        return _READ[str(path)]
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the Python file {path}: {error.strerror}") from error
    _READ[str(path)] = _of_file(path, text)
    return _READ[str(path)]


@cache
def _of_file(path: Path, text: bytes) -> Addition:
    """Run once for each content, so that classes stay the same while configurations that use other
    files come by.
    """
    addition = Addition(str(path), text, hashlib.sha256(text).hexdigest())
    module = ModuleType(f"fedglean_use_{path.stem}_{addition.digest[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their annotations up there
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{_place_of(error, str(path))}: {_told(error)}") from error
    return _with_rows(addition, module)


def _of_package(point: EntryPoint) -> Addition:
    title = f"the package {point.dist.name}" if point.dist else f"the entry point {point.value}"
    try:
        module = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{title} cannot be loaded as {point.value}: {_told(error)}; repair or uninstall it"
        ) from error
    file = getattr(module, "__file__", None)
    text = Path(file).read_bytes() if file else b""
    version = point.dist.version if point.dist else ""
    return _with_rows(
        Addition(title, text, hashlib.sha256(version.encode() + b"\n" + text).hexdigest()), module
    )


def _with_rows(addition: Addition, module: object) -> Addition:
    for table, kind in TABLES.items():
        own = getattr(module, table, None)
        if own is None or own is kind.known:
            continue
        if not isinstance(own, Mapping):
            raise ConfigError(
                f"{addition.place(table)}: {table} must be a dictionary, not a {type(own).__name__}"
            )
        for name, thing in own.items():
            row = kind.row(thing, _summary(thing)) if callable(thing) else thing
            problem = _problem(kind, name, row, own)
            if problem is not None:
                raise ConfigError(f"{addition.place(table, name)}: {problem}")
            addition.rows.setdefault(table, {})[name] = row
    if not addition.rows:
        raise ConfigError(
            f"{addition.title} defines none of {', '.join(TABLES)}; add at least one of these "
            "dictionaries"
        )
    return addition


def _problem(table: Table, name: object, row: Any, own: Mapping[Any, Any]) -> str | None:
    """What is wrong with a row, if anything."""
    value = r"(:\S+)?" if table.takes_values else ""
    if not isinstance(name, str) or not re.fullmatch(rf"[A-Za-z0-9][\w.-]*{value}", name):
        return (
            f"{name!r} is not a valid name for a {table.word}; use letters, digits, '-', '_' and "
            "'.'"
        )
    if len([each for each in own if _kind(str(each)) == _kind(name)]) > 1:
        return f"there are two forms of the {table.word} '{_kind(name)}'; keep one"
    if not isinstance(row, table.row):
        what = "class" if table.row is Entry else "function"
        kinds = f"a {what} or its {table.row.__name__}"
        return f"the {table.word} '{name}' must be {kinds}, but is of type {type(row).__name__}"
    thing = getattr(row, fields(table.row)[0].name)
    if table.row is Entry:
        return _problem_of_method(name, thing)
    if not callable(thing):
        return (
            f"the {table.word} '{name}' must hold a function, but holds something of type "
            f"{type(thing).__name__}"
        )
    return _problem_of_net(name, thing) if table.row is NetKind else None


def _problem_of_net(name: str, net: Any) -> str | None:
    """A module of torch is what comes to mind first."""
    how = "give a function of layers and images; docs/tutorial-method.md has one"
    if inspect.isclass(net) or isinstance(net, Module):
        return (
            f"the model '{name}' is {'a class' if inspect.isclass(net) else 'a torch module'}; "
            f"{how}"
        )
    try:
        inspect.signature(net).bind("layers", "images")
    except TypeError as error:
        return f"the model '{name}' cannot be called with two arguments ({error}); {how}"
    return None


def _problem_of_method(name: str, kind: Any) -> str | None:
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        return f"the method '{name}' must be a subclass of fedglean.Method"
    lacking = sorted(kind.__abstractmethods__)
    if lacking:
        return f"{kind.__name__} does not define {' and '.join(lacking)}"
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:
        return f"{kind.__name__} is not a frozen dataclass; put @dataclass(frozen=True) above it"
    try:
        hints = get_type_hints(kind)
    except Exception as error:  # an annotation may be any text
        return f"the types of {kind.__name__}'s settings cannot be read: {_told(error)}"
    for each in fields(kind):
        if each.default is MISSING:
            return (
                f"setting '{each.name}' of {kind.__name__} has no default; write {each.name} = "
                "setting(DEFAULT, HELP)"
            )
        if not set(get_args(hints[each.name]) or [hints[each.name]]) <= set(PLAIN):
            return (
                f"setting '{each.name}' of {kind.__name__} must be a number, text, or true or false"
            )
    return None


def _summary(thing: Any) -> str:
    """The first line of the docstring, but not of the one that a dataclass writes for itself."""
    written = thing.__doc__ if inspect.isfunction(thing) or inspect.isclass(thing) else None
    line = inspect.cleandoc(written or "").partition("\n")[0]
    return "" if line.startswith(f"{getattr(thing, '__name__', '')}(") else line


def _line_of(text: bytes, table: str, name: object) -> int | None:
    """The line of a name in a table, or else of the table."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == table for target in targets):
            keys = getattr(getattr(node, "value", None), "keys", None)
            found = [
                key.lineno
                for key in keys or ()
                if isinstance(key, ast.Constant) and key.value == name
            ]
            return found[0] if found else node.lineno
    return None


def _place_of(error: BaseException, path: str) -> str:
    """Where in a file an error came up."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}, line {error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return f"{path}, line {lines[-1]}" if lines else path


def _told(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__

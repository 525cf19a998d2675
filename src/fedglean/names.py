"""What names mean: the package's own, those that installed packages bring, and a user's file.

A module brings them in tables like the package's, any of those in `TABLES`. A value is what the
package's table holds, or just the class or function, whose docstring's first line then is the
summary. An installed package is found by its entry point in the group "fedglean"; a file is named
by the configuration's key `use`. `module:Name` means what a module that can be imported holds.

`Names` is a value: made once for a configuration, with which it travels, so that what a name means
never depends on what was read before, nor on what becomes of the file.
"""

import ast
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fedglean.errors import ConfigError, UntrustedError
from fedglean.models.nets import WIDE, NetKind
from fedglean.tables import TABLES, Rows, Table, sentence_of
from fedglean.trust import PLACE, digest_of, digest_of_place, is_trusted, remember

GROUP = "fedglean"
#: Its own entry points are part of it: no code of somebody else's.
PACKAGE = "fedglean"


@dataclass(frozen=True, eq=False)
class Addition:
    """A module that adds rows by table and name; sentences call it by its title.

    The digest is "" for the package's own.
    """

    title: str
    text: bytes
    digest: str
    rows: Mapping[str, Rows] = field(default_factory=dict)

    def brings(self, table: str, name: str) -> bool:
        return _kind(name) in map(_kind, self.rows.get(table, {}))

    def place(self, table: str, name: object = None) -> str:
        """Where it speaks of a name."""
        line = _line_of(self.text, table, name)
        return self.title if line is None else f"{self.title}, line {line}"


@dataclass(frozen=True, eq=False, repr=False)
class Names:
    """All that can be named: rows by table and name. `use` is the full path of the user's file.

    `closed` is that file where it may not be run: whatever only it could bring is refused.
    `imported` lists the tables and names of what `importing` added.
    """

    use: str | None
    additions: tuple[Addition, ...]
    tables: Mapping[str, Rows]
    closed: Addition | None = None
    imported: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, use: Path | str | None = None, is_own: bool = True) -> "Names":
        """The names of the package, of installed packages and of a file.

        The file runs if whoever asks named it himself (`is_own`), which is remembered, or if it is
        one that he has run or allowed before.
        """
        if use is None:
            return cls(None, installed(), _merge(installed()))
        path = Path(use).expanduser().resolve()
        text = _text(path)
        digest = digest_of(text)
        if not is_own and not is_trusted(digest):
            closed = Addition(str(path), text, digest)
            return cls(str(path), installed(), _merge(installed()), closed)
        additions = (*installed(), _of_file(path, text))
        tables = _merge(additions)
        if is_own:
            remember(digest)
        return cls(str(path), additions, tables)

    def __reduce__(self) -> Any:
        """Other processes read the file themselves, and it must be the same."""
        ran = [each.digest for each in self.additions if each.title == self.use]
        return _restore, (self.use, ran, self.imported)

    def find(self, table: str, name: str) -> Any:
        """The row of a name, or of a form with its value."""
        try:
            return TABLES[table].row_of(name, self.tables[table])
        except ConfigError:
            if self.closed is None:
                raise
        raise UntrustedError(
            f"the {TABLES[table].word} '{name}' is in {self.closed.title}, which you have not run "
            "as it is now; read it, then allow it with --trust (in Python: trust=True)"
        )

    def is_closed_to(self, table: str, name: str) -> bool:
        """Whether a name means something that may not be run."""
        try:
            self.find(table, name)
        except UntrustedError:
            return True
        return False

    def net(self, name: str) -> NetKind:
        """What a model's name stands for: `Architecture` and files of models ask."""
        found: NetKind = self.find("MODELS", name)
        return found

    def holder(self, table: str, name: str) -> Addition | None:
        """Who brings a name, where it is not the package's own."""
        for addition in self.additions:
            if addition.brings(table, name):
                return addition
        return self.closed if self.is_closed_to(table, name) else None

    def digests(self, chosen: Iterable[tuple[str, str]]) -> list[str]:
        """Of what brings these names, each with its table, and of a model's file of weights."""
        found = set()
        for table, name in chosen:
            holder = self.holder(table, name)
            found.add(holder.digest if holder is not None else "")
            if table == "MODELS" and not self.is_closed_to(table, name):
                module = self.net(name).module
                found.add("" if module is None else module.weights_digest)
        return sorted(found - {""})

    @property
    def aliases(self) -> Mapping[str, str]:
        """Methods by what else people call them."""
        found: dict[str, str] = {}
        for name, entry in self.tables["METHODS"].items():
            found |= dict.fromkeys(entry.aliases, name)
        return found

    def importing(self, table: str, name: str, is_own: bool = True) -> "Names":
        """With what a name of the form `module:Name` stands for, if it is one."""
        named = PLACE.fullmatch(name)
        if named is None or TABLES[table].takes_values or name in self.tables[table]:
            return self
        allowed = digest_of_place(name)
        if not is_own and not is_trusted(allowed):
            raise UntrustedError(
                f"the {TABLES[table].word} '{name}' is code that somebody else names, and you have "
                "not named before; allow it with --trust (in Python: trust=True)"
            )
        additions = (*self.additions, _import(table, name, named[1], named[2]))
        if is_own:
            remember(allowed)
        imported = (*self.imported, (table, name))
        return replace(self, additions=additions, tables=_merge(additions), imported=imported)


def _restore(use: str | None, ran: list[str], imported: Iterable[tuple[str, str]]) -> Names:
    names = Names.of(use, is_own=bool(ran))
    if not set(ran) <= {each.digest for each in names.additions}:
        raise ConfigError(f"{use} was changed since this run started; restore it")
    for table, name in imported:
        names = names.importing(table, name)
    return names


@cache
def installed() -> tuple[Addition, ...]:
    """What other packages add, by name of their entry points."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return tuple(_of_package(point) for point in points)


def _merge(additions: Iterable[Addition]) -> Mapping[str, Rows]:
    """The package's tables with all that is added; a name that is taken is refused."""
    tables: dict[str, dict[str, Any]] = {name: dict(table.own) for name, table in TABLES.items()}
    holders: dict[tuple[str, str], str] = {}
    for addition in additions:
        for table, rows in addition.rows.items():
            taken = set(map(_kind, tables[table]))
            for name in rows:
                is_wide = table == "MODELS" and WIDE.fullmatch(name)
                if is_wide or _kind(name) in taken:
                    holder = holders.get((table, _kind(name)), "fedglean")
                    raise ConfigError(
                        f"{addition.place(table, name)}: {holder} already has a "
                        f"{TABLES[table].word} '{name}'; choose another name"
                    )
                holders[table, _kind(name)] = addition.title
            tables[table].update(rows)
    return tables


def _kind(name: str) -> str:
    """A form without its value; what is imported is known by its whole name."""
    return name if PLACE.fullmatch(name) and "." in name else name.partition(":")[0]


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the Python file {path}: {error.strerror}") from error


@cache
def _of_file(path: Path, text: bytes) -> Addition:
    """Run once for each content, so that classes stay the same for all configurations."""
    addition = Addition(str(path), text, digest_of(text))
    module = ModuleType(f"fedglean_use_{path.stem}_{addition.digest[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their annotations up there
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{_place_of(error, str(path))}: {sentence_of(error)}") from error
    return _with_rows(addition, module)


def _of_package(point: EntryPoint) -> Addition:
    title = f"the package {point.dist.name}" if point.dist else f"the entry point {point.value}"
    try:
        module = point.load()
    except (Exception, SystemExit) as error:
        why = sentence_of(error)
        raise ConfigError(
            f"{title} cannot be loaded as {point.value}: {why}; repair or uninstall it"
        ) from error
    text = _source_of(module)
    digest = ""
    if point.dist is None or point.dist.name != PACKAGE:
        version = point.dist.version if point.dist else ""
        digest = digest_of(version.encode() + b"\n" + text)
    return _with_rows(Addition(title, text, digest), module)


def _import(table: str, name: str, module_name: str, attribute: str) -> Addition:
    try:
        module = importlib.import_module(module_name)
        thing = getattr(module, attribute)
    except (Exception, SystemExit) as error:
        what = f"the {TABLES[table].word} '{name}'"
        raise ConfigError(f"{what} cannot be imported: {sentence_of(error)}") from error
    text = _source_of(module)
    row = _row(TABLES[table], thing)
    problem = TABLES[table].problem_of(name, row)
    if problem is not None:
        raise ConfigError(problem)
    return Addition(module_name, text, digest_of(text), {table: {name: row}})


def _source_of(module: object) -> bytes:
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file else b""


def _with_rows(addition: Addition, module: object) -> Addition:
    """The addition with what its module's tables hold, all of it looked at."""
    rows: dict[str, dict[str, Any]] = {}
    for table, kind in TABLES.items():
        own = getattr(module, table, None)
        if own is None or own is kind.own:
            continue
        if not isinstance(own, Mapping):
            raise ConfigError(
                f"{addition.place(table)}: {table} must be a dictionary, not a {type(own).__name__}"
            )
        rows[table] = {}
        for name, thing in own.items():
            row = _row(kind, thing)
            problem = _problem_of_name(kind, name, own) or kind.problem_of(name, row)
            if problem is not None:
                raise ConfigError(f"{addition.place(table, name)}: {problem}")
            rows[table][name] = row
    if not any(rows.values()):
        raise ConfigError(f"{addition.title} defines none of {', '.join(TABLES)}; add one")
    return replace(addition, rows=rows)


def _row(table: Table, thing: Any) -> Any:
    return table.row(thing, _summary(thing)) if callable(thing) else thing


def _problem_of_name(table: Table, name: object, own: Mapping[Any, Any]) -> str | None:
    if not isinstance(name, str) or not re.fullmatch(table.form, name):
        return (
            f"{name!r} is not a valid name for a {table.word}; use letters, digits, '-', '_' and "
            "'.'"
        )
    kinds = [_kind(str(each)) for each in own]
    if kinds.count(_kind(name)) > 1:
        return f"there are two forms of the {table.word} '{_kind(name)}'; keep one"
    return None


def _summary(thing: Any) -> str:
    """The first line of the docstring, but not of the one that a dataclass writes for itself."""
    written = thing.__doc__ if inspect.isfunction(thing) or inspect.isclass(thing) else None
    line = inspect.cleandoc(written or "").partition("\n")[0]
    return "" if line.startswith(f"{getattr(thing, '__name__', '')}(") else line


def _line_of(text: bytes, table: str, name: object) -> int | None:
    """The line of a name in a table, or else of the table."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(isinstance(target, ast.Name) and target.id == table for target in targets):
            continue
        for key in getattr(node.value, "keys", ()):
            if isinstance(key, ast.Constant) and key.value == name:
                return key.lineno
        return node.lineno
    return None


def _place_of(error: BaseException, path: str) -> str:
    """Where in a file an error came up."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}, line {error.lineno}"
    line: int | None = None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line = frame.lineno
    return path if line is None else f"{path}, line {line}"

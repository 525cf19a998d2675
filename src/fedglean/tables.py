"""What may be named: a table for each kind of thing, and what is wrong with a row that is added."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args, get_type_hints

from torch.nn import Module

from fedglean.data.labels import LAYOUTS, LabelLayout
from fedglean.data.partition import PARTITIONS, Partition, of_form
from fedglean.data.sources import DATASETS, Source, source_of
from fedglean.engine.executor import ExecutorKind
from fedglean.engine.kinds import EXECUTORS, PLACEMENTS
from fedglean.engine.placement import PlacementKind
from fedglean.errors import unknown
from fedglean.exchange.aggregate import AGGREGATES, AggregateKind
from fedglean.inputs.randaugment import STRONG, Strong
from fedglean.inputs.views import VIEWS, View
from fedglean.method import Method
from fedglean.methods import METHODS, Entry
from fedglean.models.nets import MODELS, NetKind, net_of
from fedglean.optimiser import OPTIMISERS, OptimiserKind
from fedglean.report.tracker import TRACKERS, TrackerKind
from fedglean.studies import Preset, Study

PLAIN = (str, int, float, bool, type(None))
NAME = r"[A-Za-z0-9][\w.-]*"
WITH_VALUE = rf"{NAME}(:\S+)?"

Rows = Mapping[str, Any]


def sentence_of(error: BaseException) -> str:
    """What went wrong in somebody's code, in a line."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__


def _function(word: str, name: str, thing: Any) -> str | None:
    """What is wrong with something that should be a function, if anything."""
    if callable(thing):
        return None
    kind = type(thing).__name__
    return f"the {word} '{name}' must hold a function, but holds something of type {kind}"


def _net(word: str, name: str, net: Any) -> str | None:
    """A module of torch is what comes to mind first."""
    how = "give a function of layers and images; docs/tutorial-method.md has one"
    if inspect.isclass(net):
        return f"the model '{name}' is a class; {how}"
    if isinstance(net, Module):
        return f"the model '{name}' is a torch module; {how}"
    if not callable(net):
        return _function(word, name, net)
    try:
        inspect.signature(net).bind("layers", "images")
    except TypeError as error:
        return f"the model '{name}' cannot be called with two arguments ({error}); {how}"
    return None


def _method(word: str, name: str, kind: Any) -> str | None:
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        return f"the method '{name}' must be a subclass of fedglean.Method"
    lacking = sorted(kind.__abstractmethods__)
    if lacking:
        return f"{kind.__name__} does not define {' and '.join(lacking)}"
    if "__dataclass_params__" not in vars(kind) or not vars(kind)["__dataclass_params__"].frozen:
        return f"{kind.__name__} is not a frozen dataclass; put @dataclass(frozen=True) above it"
    try:
        hints = get_type_hints(kind)
    except Exception as error:  # an annotation may be any text
        return f"the types of {kind.__name__}'s settings cannot be read: {sentence_of(error)}"
    for each in fields(kind):
        if each.metadata.get("is_beside"):
            continue
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


def _nothing_more(word: str, name: str, thing: Any) -> None:
    """Its type says enough."""
    return None


@dataclass(frozen=True)
class Table:
    """What may be named in one place.

    `row` is the type of its rows, `own` are the package's; `problem` says what is wrong with the
    first field of a row, `find` finds a name that is no key, and `form` is how names are written.
    """

    word: str
    row: type
    own: Rows
    problem: Callable[[str, str, Any], str | None] = _function
    find: Callable[[str, Rows], Any] | None = None
    form: str = NAME

    @property
    def takes_values(self) -> bool:
        """Whether names are forms, such as "classes:K"."""
        return self.form == WITH_VALUE

    def row_of(self, name: str, rows: Rows) -> Any:
        if name in rows:
            return rows[name]
        if self.takes_values:
            return of_form(self.word, name, rows)
        if self.find is None:
            raise unknown(self.word, name, rows)
        return self.find(name, rows)

    def problem_of(self, name: str, row: Any) -> str | None:
        """What is wrong with a row, if anything."""
        if not isinstance(row, self.row):
            what = "class" if self.row is Entry else "function"
            kinds = f"a {what} or its {self.row.__name__}"
            return f"the {self.word} '{name}' must be {kinds}, but is of type {type(row).__name__}"
        return self.problem(self.word, name, getattr(row, fields(self.row)[0].name))


TABLES: Mapping[str, Table] = {
    "METHODS": Table("method", Entry, METHODS, _method),
    "MODELS": Table("model", NetKind, MODELS, _net, net_of),
    "DATASETS": Table("data set", Source, DATASETS, find=source_of),
    "PARTITIONS": Table("partition", Partition, PARTITIONS, form=WITH_VALUE),
    "LAYOUTS": Table("label layout", LabelLayout, LAYOUTS, form=WITH_VALUE),
    "VIEWS": Table("view", View, VIEWS),
    "STRONG": Table("strong augmentation", Strong, STRONG),
    "PRESETS": Table("preset", Preset, {}, _nothing_more, form=r"[A-Za-z0-9][\w./-]*"),
    "OPTIMISERS": Table("optimiser", OptimiserKind, OPTIMISERS),
    "AGGREGATES": Table("aggregate", AggregateKind, AGGREGATES, form=WITH_VALUE),
    "EXECUTORS": Table("executor", ExecutorKind, EXECUTORS),
    "PLACEMENTS": Table("placement", PlacementKind, PLACEMENTS),
    "TRACKERS": Table("tracker", TrackerKind, TRACKERS),
    "STUDIES": Table("table, figure or theorem", Study, {}, _nothing_more),
}

"""The papers' tables, figures and theorems, each a study that `fedglean reproduce` runs by name."""

from importlib import import_module
from importlib.util import find_spec

from fedglean.reproduce.figures import FIGURES
from fedglean.reproduce.settings import SETTINGS
from fedglean.reproduce.study import Study
from fedglean.reproduce.tables import TABLES

_THERE = find_spec("fedglean.reproduce.theorems") is not None
_THEOREMS: dict[str, Study] = import_module("fedglean.reproduce.theorems").THEOREMS if _THERE else {}
_PAPERS = ("semifl", "fed-shvr", "hassle")


def _paper(name: str) -> int:
    return next(place for place, paper in enumerate((*_PAPERS, "")) if name.startswith(paper))


_ALL = {**dict(sorted({**TABLES, **SETTINGS}.items())), **FIGURES, **_THEOREMS}
#: By paper: its tables, then its figures, then its theorem.
STUDIES: dict[str, Study] = {name: _ALL[name] for name in sorted(_ALL, key=_paper)}

"""The papers' tables, figures and theorems, each a study that `fedglean reproduce` runs by name."""

from fedglean.studies import Study
from fedglean_papers.reproduce.figures import FIGURES
from fedglean_papers.reproduce.settings import SETTINGS
from fedglean_papers.reproduce.tables import TABLES
from fedglean_papers.reproduce.theorems import THEOREMS

_PAPERS = ("semifl", "fed-shvr", "hassle")


def _paper(name: str) -> int:
    return next(place for place, paper in enumerate(_PAPERS) if name.startswith(paper))


_ALL = {**dict(sorted({**TABLES, **SETTINGS}.items())), **FIGURES, **THEOREMS}
#: By paper: its tables, then its figures, then its theorem.
STUDIES: dict[str, Study] = {name: _ALL[name] for name in sorted(_ALL, key=_paper)}

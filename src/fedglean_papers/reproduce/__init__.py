"""The papers' tables, figures and theorems, each a study that `fedglean reproduce` runs by name."""

from fedglean.studies import Study
from fedglean_papers.reproduce import hassle_figures, semifl_figures, shvr_figures
from fedglean_papers.reproduce.settings import SETTINGS
from fedglean_papers.reproduce.tables import TABLES
from fedglean_papers.reproduce.theorems import THEOREMS

_PAPERS = ("semifl", "fed-shvr", "hassle")
_KINDS = ("table", "fig", "theorem")


def _place(name: str) -> tuple[int, int, int]:
    """By paper: its tables, then its figures, then its theorem."""
    kind = next(kind for kind in _KINDS if f"-{kind}" in name)
    paper, _, number = name.rpartition(f"-{kind}")
    return _PAPERS.index(paper), _KINDS.index(kind), int(number or 0)


_FIGURES = {**semifl_figures.FIGURES, **shvr_figures.FIGURES, **hassle_figures.FIGURES}
_ALL = {**TABLES, **SETTINGS, **_FIGURES, **THEOREMS}
STUDIES: dict[str, Study] = {name: _ALL[name] for name in sorted(_ALL, key=_place)}

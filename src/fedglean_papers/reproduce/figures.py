"""All figures of the three papers by name."""

from fedglean.studies import Study
from fedglean_papers.reproduce import hassle_figures, semifl_figures, shvr_figures

_ALL: dict[str, Study] = {
    **semifl_figures.FIGURES,
    **shvr_figures.FIGURES,
    **hassle_figures.FIGURES,
}


def _place(name: str) -> tuple[int, int]:
    paper, _, number = name.rpartition("-fig")
    return ("semifl", "fed-shvr", "hassle").index(paper), int(number)


FIGURES: dict[str, Study] = {name: _ALL[name] for name in sorted(_ALL, key=_place)}

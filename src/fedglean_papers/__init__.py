"""The three papers: presets, tables, figures and theorems, as a plug-in like anybody's."""

from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce import STUDIES

__all__ = ["PRESETS", "STUDIES"]

"""The three papers, as a plug-in like anybody's: presets, tables, figures and theorems, and methods
that only a table needs.
"""

from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce import STUDIES
from fedglean_papers.semifl_rows import METHODS

__all__ = ["METHODS", "PRESETS", "STUDIES"]

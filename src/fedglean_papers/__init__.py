"""The three papers as a plug-in: presets, studies, and the methods that only these need."""

from fedglean.methods import Entry
from fedglean_papers.hassle_release import HassleRelease
from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce import STUDIES
from fedglean_papers.semifl_rows import ROWS

__all__ = ["METHODS", "PRESETS", "STUDIES"]

METHODS = {
    **ROWS,
    "hassle-release": Entry(
        HassleRelease, "HASSLE as its released code has it where that differs from the paper (2023)"
    ),
}

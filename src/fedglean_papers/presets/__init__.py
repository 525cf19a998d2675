"""A preset for every cell of the three papers' tables, and for what their figures need.

Each is a layer of a configuration (see `config`) that states all settings of its method: what a
method brings along for a laptop must not leak into a paper's experiment. Where a data set lies is
left to the user. The numbers that SemiFL printed are of the best round, by its released code.
HASSLE does not say of which round its are, nor SemiFL of which those are that it quotes from
others: they are compared with our best and our last.

A paper says less of its baselines than of its method. What it leaves open is the baseline's own
default, and the summary says whose settings these are.
"""

from collections.abc import Mapping

from fedglean.studies import Preset
from fedglean_papers.presets import fed_shvr, hassle, semifl

__all__ = ["PRESETS", "Preset"]

PRESETS: Mapping[str, Preset] = dict([*semifl.cells(), *hassle.cells(), *fed_shvr.cells()])

"""Claim to be tested: for a tiny model a round costs fedglean a third of pfl's CPU and a tenth of
Flower's; for a CNN at most 5 % above a loop written by hand. docs/benchmarks.md says how far the
last recorded run bears it out.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/peers.py S1 S2

Two published shapes, played in turns by fedglean and its peers in one run (`peers/` holds a small
worker for each). Prints a table and writes `results/peers.json`. The first run makes a virtual
environment for each peer; see docs/benchmarks.md.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_suffix("")), run_name="__main__")

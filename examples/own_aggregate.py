"""A trimmed mean (Yin et al. 2018): `--use own_aggregate.py --aggregate trimmed:0.3`."""

from dataclasses import dataclass

import torch

from fedglean.doors import Combined
from fedglean.errors import ConfigError


@dataclass(frozen=True)
class Trimmed:
    """The mean of each number without its lowest and highest values, a share of the weight each."""

    share: float
    # It cannot give uploads one by one, for a method that collects "all".
    serves: tuple[str, ...] = ("sum",)

    # What it keeps are all uploads, by name a list of [row, weight]: a tree, which can travel.

    def start(self):
        return {}

    def add(self, kept, upload):
        for name, row in upload.rows.items():
            kept.setdefault(name, []).append([row, upload.weights[name]])
        return kept

    def merge(self, kept, other):
        for name, uploads in other.items():
            kept[name] = kept.get(name, []) + uploads
        return kept

    def combine(self, kept):
        return {name: self.of_uploads(uploads) for name, uploads in kept.items()}

    def of_uploads(self, uploads):
        rows = torch.stack([row.double() for row, _ in uploads])  # K uploads x N numbers
        weights = torch.stack([torch.ones_like(rows[0]) * weight for _, weight in uploads])  # K x N
        rows, order = rows.sort(dim=0, stable=True)
        ends = weights.gather(0, order).cumsum(0)
        begins = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        whole = ends[-1]
        low, high = self.share * whole, (1 - self.share) * whole
        inside = (torch.minimum(ends, high) - torch.maximum(begins, low)).clamp(min=0.0)
        mean = (rows * inside).sum(0) / inside.sum(0).clamp(min=1e-300)
        # A sum of as much weight as there was: methods also use sums.
        return Combined(mean * whole, whole, len(uploads))


def trimmed(share: str) -> Trimmed:
    """the mean of each number without this share of the weight at both ends"""
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not 0 <= value < 0.5:
        raise ConfigError(f"'trimmed:{share}' needs a share from 0 to below 0.5")
    return Trimmed(value)


AGGREGATES = {"trimmed:SHARE": trimmed}

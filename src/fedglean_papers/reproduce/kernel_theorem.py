"""SemiFL's Theorem 1, measured: the kernel classifier of its appendix D where (A1)-(A7) hold.

The world is a grid on [0, 1]. With u = 2x - 1 in (-1, 1), P(Y = 1) = m(x) has the margin b = 2m - 1
= sign(u) |u|^q, so the Bayes classifier is the sign of u. The assumptions hold by construction:

(A1) confident unlabelled points: P_u(min(m, 1 - m) <= delta) = (2 delta)^s, half on each side;
(A2) an unlabelled point x becomes, where it is transmitted, a harder point x' (|b(x')| <= |b(x)|)
     with density in proportion to p_l(x') (1 + b(x') / b(x)): then the mean of b(x) given x' is
     b(x'), as (A2) wants;
(A3) a point with e = min(m, 1 - m) is transmitted with probability (2 e)^v, else stays;
(A4) P_l(|m - 1/2| <= t) grows like t^alpha near the boundary;
(A5) m is Hoelder-continuous with exponent q.

P_l has four times as many points left of the boundary as right of it. Where both sides are alike,
the smoothing of a kernel estimate moves the boundary nowhere and risks fall faster than any upper
bound says; here it moves by a fixed part of the bandwidth, and the bound is attained.

A sample on a grid is a table of counts: it is drawn at once however large it is, the box kernel is
a difference of running sums, and the excess risk is a sum over the grid, not an estimate.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

INNER, MIDDLE, LEAN = 0.4, 0.8, 4.0


@dataclass(frozen=True)
class World:
    """The exponents of the assumptions, and the masses on the grid that follow from them."""

    s: float = 1.0
    v: float = 1.0
    alpha: float = 1.0
    q: float = 1.0
    cells: int = 1 << 14

    @cached_property
    def u(self) -> Array:
        return (np.arange(self.cells) + 0.5) * 2 / self.cells - 1

    @cached_property
    def margin(self) -> Array:
        """b = 2m - 1."""
        margin: Array = np.sign(self.u) * np.abs(self.u) ** self.q
        return margin

    @cached_property
    def doubt(self) -> Array:
        """min(m, 1 - m)."""
        doubt: Array = (1 - np.abs(self.margin)) / 2
        return doubt

    @cached_property
    def labelled(self) -> Array:
        """P_l leans to the left near the boundary, and to the right further out: E_l(b) is 0."""
        edges = np.abs(np.linspace(-1, 1, self.cells + 1)) ** (self.alpha * self.q)
        mass, far = np.abs(np.diff(edges)), np.abs(self.u)
        inner, middle = far < INNER, (far >= INNER) & (far < MIDDLE)
        weight = mass * np.abs(self.margin)
        back = 1 + (LEAN - 1) * weight[inner].sum() / weight[middle].sum()
        mass[inner & (self.u < 0)] *= LEAN
        mass[middle & (self.u > 0)] *= back
        return mass / float(mass.sum())

    @cached_property
    def unlabelled(self) -> Array:
        """P_u: 2 min(m, 1 - m) to the power s is uniform."""
        edges = np.abs(np.linspace(-1, 1, self.cells + 1)) ** self.q
        mass: Array = np.abs(np.diff((1 - edges) ** self.s))
        return mass / float(mass.sum())

    @property
    def rate(self) -> float:
        """The theorem's exponent of n_u."""
        return self.q * (self.alpha + 1) / self._size(self.v + self.s)

    @property
    def labelled_rate(self) -> float:
        """The exponent of n_l without unlabelled data."""
        return self.q * (self.alpha + 1) / self._size(0)

    @property
    def critical(self) -> float:
        """Eq. (14): with n_l = n_u^zeta labels, unlabelled data help for smaller zeta than this."""
        return self._size(0) / self._size(self.v + self.s)

    @property
    def enough(self) -> float:
        """(A7): with n_u to this power labels the first classifier is sure of too few points."""
        return (2 * self.q + 1) / self._size(self.v + self.s)

    def bandwidth(self, unlabelled: float) -> float:
        return 0.4 * float(unlabelled ** (-1 / self._size(self.v + self.s)))

    def labelled_bandwidth(self, labels: float) -> float:
        return 0.4 * float(labels ** (-1 / self._size(0)))

    def first_bandwidth(self, labels: float) -> float:
        """For the first classifier: the rate that is best for an estimate of m."""
        return 0.5 * float(labels ** (-1 / (2 * self.q + 1)))

    def _size(self, inadequacy: float) -> float:
        return self.q * (self.alpha + 3 + inadequacy) + 1

    def risk(self, positive: NDArray[np.bool_]) -> float:
        """Eq. (8): how much more often than the Bayes classifier a classifier errs."""
        wrong = positive != (self.u > 0)
        return float((self.labelled * np.abs(self.margin))[wrong].sum())

    def draw_labelled(self, count: int, draw: np.random.Generator) -> Array:
        """Counts of labels 0 and 1 by cell, 2 x cells."""
        positive = self.labelled * (1 + self.margin) / 2
        masses = np.concatenate([self.labelled - positive, positive])
        return draw.multinomial(count, masses / masses.sum()).reshape(2, -1).astype(np.float64)

    def draw_augmented(
        self,
        count: int,
        first: Array,
        delta: float,
        draw: np.random.Generator,
        balanced: bool = True,
    ) -> Array:
        """Steps 1 and 2: counts of pseudo-labels by cell, of augmented points that `first` knows.

        `balanced` keeps as many moved points of one pseudo-label as of the other. The proof takes
        for granted that the labels of augmented points follow m; they do not if the first
        classifier is sure more often on one side.
        """
        masses = np.concatenate(self.augment(first, delta))  # labels of what stays, then moves
        shares = masses.sum(1)
        picked = draw.multinomial(count, [*shares, max(0.0, 1 - shares.sum())])[:4]
        if balanced:
            picked[2:] = picked[2:].min()
        counts = np.zeros((2, self.cells))
        for row, (number, mass) in enumerate(zip(picked, masses, strict=True)):
            if number:
                counts[row % 2] += draw.multinomial(number, mass / mass.sum())
        return counts

    def augment(self, first: Array, delta: float) -> tuple[Array, Array]:
        """Masses of points that stay and of points that move, pseudo-labels x cells."""
        sure = np.minimum(first, 1 - first) <= delta
        sent = (2 * self.doubt) ** self.v
        stay, move = np.zeros((2, self.cells)), np.zeros((2, self.cells))
        for label in (0, 1):
            chosen = np.where(sure & ((first > 0.5) == label), self.unlabelled, 0.0)
            stay[label] = chosen * (1 - sent)
            move[label] = self.transmit(chosen * sent)
        return stay, move

    def transmit(self, sources: Array) -> Array:
        """From each side to all points that are not easier, with density p_l (1 + b' / b)."""
        half = self.cells // 2
        arrived = np.zeros(self.cells)
        for side, source in ((1, sources[half:]), (-1, sources[:half][::-1])):
            strength = np.abs(self.margin[half:])
            right, left = self.labelled[half:], self.labelled[:half][::-1]
            density = np.cumsum(right + left)
            density += side * np.cumsum((right - left) * strength) / strength
            share = source / density
            even = np.cumsum(share[::-1])[::-1]
            tilt = side * strength * np.cumsum((share / strength)[::-1])[::-1]
            # Rounding must not make a mass negative.
            arrived[half:] += right * np.maximum(even + tilt, 0)
            arrived[:half] += (left * np.maximum(even - tilt, 0))[::-1]
        return arrived


def estimate(counts: Array, bandwidth: float, unknown: float = 0.0) -> Array:
    """Eq. (10): the share of label 1 within the bandwidth; `unknown` where there are no points."""
    cells = counts.shape[1]
    reach = int(bandwidth * cells)
    sums = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, 1)], 1)
    place = np.arange(cells)
    near = sums[:, np.minimum(place + reach + 1, cells)] - sums[:, np.maximum(place - reach, 0)]
    total = near.sum(0)
    share: Array = np.divide(near[1], total, out=np.full(cells, unknown), where=total > 0)
    return share


def supervised_risk(world: World, labels: int, draw: np.random.Generator) -> float:
    """Without unlabelled data: all labels, at the bandwidth that is right for them."""
    counts = world.draw_labelled(labels, draw)
    return world.risk(estimate(counts, world.labelled_bandwidth(labels)) > 0.5)


def semi_supervised_risk(
    world: World, unlabelled: int, labels: int, draw: np.random.Generator, balanced: bool = True
) -> float:
    """Steps 1-3; each classifier has half of the labels, for the second has to be unbiased."""
    half = labels // 2
    first = estimate(world.draw_labelled(half, draw), world.first_bandwidth(half), unknown=0.5)
    bandwidth = world.bandwidth(unlabelled)
    delta = min(0.25, bandwidth**world.q)
    counts = world.draw_labelled(labels - half, draw)
    counts += world.draw_augmented(unlabelled, first, delta, draw, balanced)
    return world.risk(estimate(counts, bandwidth) > 0.5)

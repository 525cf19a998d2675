"""How images are spread over clients: iid, few classes each, Dirichlet, and Dirichlet with
near-equal sizes.

Every image is dealt, and a client's images come shuffled, so that their order tells nothing about
classes that it may not see. Three things differ from the papers' codes on purpose: iid deals the
leftovers too (sizes differ by at most one), the images of a class are shuffled before they are cut,
and a Dirichlet draw with too small clients is repeated a bounded number of times and then mended,
where the codes may loop for ever.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedglean.errors import ConfigError, unknown
from fedglean.randomness import fold_int, generator

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]
Groups = list[Indices]
Dealer = Callable[[Groups, int, np.random.Generator], Groups]
Thing = TypeVar("Thing")

REDRAWS = 1000
LEAST = 10
SPREAD = 0.2
BLOCK = 9


def as_it_is(text: str, spec: str) -> str:
    """The value of a spec as text, for a user's own function to read."""
    return text


@dataclass(frozen=True)
class Partition:
    """How images are spread, under a form such as "classes:K".

    `deal` gets the images by class, the number of clients, a generator to draw from and, where the
    form has one, the value that `read` made of its text; it gives back every client's images.
    """

    deal: Callable[..., Groups]
    summary: str
    read: Callable[[str, str], Any] = as_it_is


@dataclass(frozen=True)
class Split:
    """Who holds which training images: int64 indices; a client's labelled and unlabelled images are
    disjoint.

    `data` is the digest of the data set that the indices belong to, once the split was found to fit
    one.
    """

    hub: Tensor
    labelled: tuple[Tensor, ...]
    unlabelled: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    data: str = ""


def dealer(partition: str, kind: Partition | None = None) -> Dealer:
    """The spec as a function of the images by class, the number of clients and a generator; `kind`
    is what it names, by default the package's.
    """
    kind = kind or of_form("partition", partition, PARTITIONS)
    text = partition.partition(":")[2]
    if not text:
        return kind.deal
    value = kind.read(text, partition)
    return lambda groups, clients, draw: kind.deal(groups, clients, draw, value)


def deal(how: Dealer, truth: Indices, images: Indices, clients: int, key: int) -> Groups:
    """Every image to one of the clients; a pure function of the key."""
    if clients > len(images):
        raise ConfigError(
            f"{clients} clients cannot share {len(images)} images; use at most {len(images)} "
            "clients, or fewer labels"
        )
    groups = by_class(truth, images, np.unique(truth[images]).tolist(), fold_int(key, "classes"))
    parts = how(groups, clients, generator(fold_int(key, "deal")))
    if not isinstance(parts, list):
        raise ConfigError(
            f"the partition gave a {type(parts).__name__}; it must give a list with a part a client"
        )
    if len(parts) != clients:
        raise ConfigError(
            f"the partition made {len(parts)} parts for {clients} clients; it must make one for "
            "each"
        )
    shuffle = generator(fold_int(key, "shuffle"))
    return [shuffle.permutation(part) for part in parts]


def of_form(what: str, spec: str, forms: Mapping[str, Thing]) -> Thing:
    """The table's entry for a spec, which must have a value if and only if the form has one."""
    kinds = {form.partition(":")[0]: form for form in forms}
    kind, colon, value = spec.partition(":")
    if kind not in kinds:
        raise unknown(what, kind, kinds)
    if (":" in kinds[kind]) != bool(value) or (colon and not value):
        raise ConfigError(f"'{spec}' is not a valid {what}; write it as '{kinds[kind]}'")
    return forms[kinds[kind]]


def whole(text: str, spec: str) -> int:
    """A positive whole number of a spec."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"'{spec}' needs a whole number of at least 1, not '{text}'")
    return int(text)


def real(text: str, spec: str, low: float, high: float) -> float:
    """A number of a spec between two bounds."""
    plain = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)?", text, re.ASCII)
    value = float(text) if plain else -1.0
    if not low <= value <= high:
        raise ConfigError(f"'{spec}' needs a number from {low:g} to {high:g}, not '{text}'")
    return value


def by_class(truth: Indices, images: Indices, kinds: Iterable[int], key: int) -> Groups:
    """The images of each class, shuffled."""
    shuffled = generator(key).permutation(images)
    return [shuffled[truth[shuffled] == kind] for kind in kinds]


def cut(groups: Groups, counts: Indices) -> Groups:
    """Row k of `counts` (clients x classes) gets that many of each class, from the front; the rest
    stays out.
    """
    ends = np.cumsum(counts, axis=0)
    rows = zip(ends - counts, ends, strict=True)
    return [np.concatenate([g[a:b] for g, a, b in zip(groups, *row, strict=True)]) for row in rows]


def apportion(weights: Weights | Indices, total: int) -> Indices:
    """Whole numbers in the ratio of the weights that sum to `total`: the largest remainders are
    rounded up.
    """
    exact = weights * (total / weights.sum())
    counts: Indices = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def fill(weights: Weights, stock: Indices, size: int) -> Indices:
    """Take up to `size` images by class weights; when all weighted classes are empty, of the
    fullest class.
    """
    taken, size = np.zeros_like(stock), min(size, int(stock.sum()))
    # Every turn but the last empties a class, so this ends.
    while (missing := size - int(taken.sum())) > 0:
        left = stock - taken
        wish = np.where(left > 0, weights, 0.0)
        if wish.sum() < 1e-12:
            wish = (np.arange(len(left)) == left.argmax()).astype(np.float64)
        taken += np.minimum(apportion(wish, missing), left)
    return taken


def _iid(groups: Groups, clients: int, draw: np.random.Generator) -> Groups:
    return np.array_split(draw.permutation(np.concatenate(groups)), clients)


def _few_classes(groups: Groups, clients: int, draw: np.random.Generator, share: int) -> Groups:
    """As many shards of every class as the others, give or take one; a client may be dealt two
    shards of one class.
    """
    if clients * share < len(groups):
        need = -(-len(groups) // clients)
        raise ConfigError(
            f"{clients} clients with {share} of {len(groups)} classes each leave some out; use "
            f"classes:{need} or more"
        )
    shards = np.full(len(groups), clients * share // len(groups))
    shards[draw.permutation(len(groups))[: clients * share % len(groups)]] += 1
    stacks = [
        [parts[i] for i in draw.permutation(n)]
        for n, parts in zip(shards, _shards(groups, shards), strict=True)
    ]
    hands = draw.permutation(np.repeat(np.arange(len(groups)), shards)).reshape(clients, share)
    return [np.concatenate([stacks[kind].pop() for kind in hand]) for hand in hands]


def _shards(groups: Groups, shards: Indices) -> list[Groups]:
    return [np.array_split(group, n) for group, n in zip(groups, shards, strict=True)]


def _dirichlet(
    groups: Groups, clients: int, draw: np.random.Generator, spread: float, least: float = LEAST
) -> Groups:
    """SemiFL's draw, again until all have `least` images; or half of the mean, if that is less, but
    at least one.
    """
    sizes = np.array([len(group) for group in groups])
    mean = sizes.sum() / clients
    least = int(min(least, mean / 2))
    best = _capped_draw(sizes, clients, spread, draw)
    for _ in range(REDRAWS):
        if best.sum(1).min() >= least:
            break
        again = _capped_draw(sizes, clients, spread, draw)
        best = max(best, again, key=lambda counts: int(counts.sum(1).min()))
    return cut(groups, _mended(best, max(least, int(min(1, mean)))))


def _capped_draw(sizes: Indices, clients: int, spread: float, draw: np.random.Generator) -> Indices:
    """Class by class; a client that has its fair share already gets no more."""
    counts, fair = np.zeros((clients, len(sizes)), np.int64), sizes.sum() / clients
    held = np.zeros(clients, np.int64)
    for kind, size in enumerate(sizes):
        hungry = held < fair
        shares = draw.dirichlet(np.full(clients, spread)) * hungry
        # All weight may fall on clients that have enough: then the hungry ones share equally.
        shares = shares / shares.sum() if shares.sum() > 0 else hungry / max(1, hungry.sum())
        ends = np.floor(np.cumsum(shares) * size).astype(np.int64)
        ends[-1] = size
        counts[:, kind] = np.diff(ends, prepend=0)
        held += counts[:, kind]
    return counts


def _mended(counts: Indices, least: int) -> Indices:
    """Move images from the largest client to the smallest until all have `least`, at most half of
    the mean or one.
    """
    counts = counts.copy()
    while (held := counts.sum(1)).min() < least:
        rich, poor = held.argmax(), held.argmin()
        kind = counts[rich].argmax()
        moved = min(least - held[poor], held[rich] - least, counts[rich, kind])
        counts[rich, kind] -= moved
        counts[poor, kind] += moved
    return counts


def _recut(groups: Groups, clients: int, draw: np.random.Generator, spread: float) -> Groups:
    """In blocks of nine clients and a rest, as the release does; neighbours share classes where the
    last cuts fall.
    """
    mean, parts = sum(len(group) for group in groups) / clients, Groups()
    for first in range(0, clients, BLOCK):
        members = range(first, min(first + BLOCK, clients))
        ends = (members.start / clients, members.stop / clients)
        block = [
            group[round(ends[0] * len(group)) : round(ends[1] * len(group))] for group in groups
        ]
        parts += _dirichlet(block, len(members), draw, spread, mean / 2)
    return np.array_split(np.concatenate(parts), clients)


def _balanced(groups: Groups, clients: int, draw: np.random.Generator, spread: float) -> Groups:
    """Clients in random order take their mix from what is left, so the last ones take what the
    others did not want.
    """
    left = np.array([len(group) for group in groups])
    sizes = _near_equal(int(left.sum()), clients, draw)
    counts = np.zeros((clients, len(groups)), np.int64)
    for client in draw.permutation(clients):
        counts[client] = fill(draw.dirichlet(np.full(len(groups), spread)), left, sizes[client])
        left = left - counts[client]
    return cut(groups, counts)


def _near_equal(total: int, clients: int, draw: np.random.Generator) -> Indices:
    """Sizes within SPREAD of the mean, for rounding never more than the next whole number
    beyond.
    """
    offset = draw.uniform(-1, 1, clients)
    offset -= offset.mean()
    return apportion(1 + SPREAD * offset / max(1.0, float(np.abs(offset).max())), total)


def _concentration(text: str, spec: str) -> float:
    return real(text, spec, 1e-4, 1e6)


PARTITIONS: Mapping[str, Partition] = {
    "iid": Partition(_iid, "shuffled and dealt; sizes differ by at most one"),
    "classes:K": Partition(
        _few_classes,
        "at most K classes per client, equal shards of each class (SemiFL's K = 2)",
        whole,
    ),
    "dirichlet:BETA": Partition(
        _dirichlet,
        "each class shared out by Dirichlet(BETA), sizes differ widely (SemiFL)",
        _concentration,
    ),
    "balanced-dirichlet:ALPHA": Partition(
        _balanced,
        "each client a Dirichlet(ALPHA) mix of classes, sizes within 20 % of equal (Fed-SHVR)",
        _concentration,
    ),
    "hassle-dirichlet:ALPHA": Partition(
        _recut,
        "each class shared out by Dirichlet(ALPHA), then cut again into equal sizes (HASSLE)",
        _concentration,
    ),
}

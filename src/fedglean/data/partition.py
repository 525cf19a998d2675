"""How images are spread over clients: iid, few classes each, or by Dirichlet draws.

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


@dataclass(frozen=True)
class Partition:
    """How images are spread, under a form such as "classes:K".

    `deal` gets the images by class, the number of clients, a generator to draw from and, where the
    form has one, the value: its text, or what `read` makes of it. It gives back every client's
    images.
    """

    deal: Callable[..., Groups]
    summary: str
    read: Callable[[str, str], Any] | None = None


@dataclass(frozen=True)
class Split:
    """Who holds which training images: int64 indices, each in one place.

    `data` is the digest of the data set that the split was found to fit.
    """

    hub: Tensor
    labelled: tuple[Tensor, ...]
    unlabelled: tuple[Tensor, ...]
    names: tuple[str, ...] = ()
    data: str = ""


def dealer(partition: str, kind: Partition | None = None) -> Dealer:
    """How a spec deals; `kind` is what it names, by default the package's."""
    kind = kind or of_form("partition", partition, PARTITIONS)
    text = partition.partition(":")[2]
    if not text:
        return kind.deal
    value = text if kind.read is None else kind.read(text, partition)
    return lambda groups, clients, draw: kind.deal(groups, clients, draw, value)


def deal(how: Dealer, truth: Indices, images: Indices, clients: int, key: int) -> Groups:
    """Every image to one of the clients; a pure function of the key."""
    if clients > len(images):
        raise ConfigError(f"{clients} clients cannot share {len(images)} images; use fewer clients")
    groups = by_class(truth, images, np.unique(truth[images]).tolist(), fold_int(key, "classes"))
    parts = how(groups, clients, generator(fold_int(key, "deal")))
    if not isinstance(parts, list):
        raise ConfigError(f"the partition gave a {type(parts).__name__}, not a list of parts")
    if len(parts) != clients:
        raise ConfigError(f"the partition made {len(parts)} parts for {clients} clients")
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


def class_ranks(labels: Indices) -> Indices:
    """How many images of the same class come before each image."""
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], labels[order])
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(labels)) - first
    return ranks


def cut(groups: Groups, counts: Indices) -> Groups:
    """From the front of each class so many as a row of `counts` (clients x classes) says."""
    parts = []
    ends = np.cumsum(counts, axis=0)
    for row, end in zip(counts, ends, strict=True):
        begin = end - row
        pieces = [group[begin[k] : end[k]] for k, group in enumerate(groups)]
        parts.append(np.concatenate(pieces))
    return parts


def apportion(weights: Weights | Indices, total: int) -> Indices:
    """Whole numbers in the ratio of the weights, summing to `total`: by largest remainder."""
    exact = weights * (total / weights.sum())
    counts: Indices = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def fill(weights: Weights, stock: Indices, size: int) -> Indices:
    """Up to `size` images by class weights; where these have none left, of the fullest class."""
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
    """As many shards of every class, give or take one; a client may get two of one class."""
    if clients * share < len(groups):
        need = -(-len(groups) // clients)
        raise ConfigError(
            f"{clients} clients with {share} of {len(groups)} classes each leave some out; use "
            f"classes:{need} or more"
        )
    shards = np.full(len(groups), clients * share // len(groups))
    shards[draw.permutation(len(groups))[: clients * share % len(groups)]] += 1
    stacks = []
    for group, count in zip(groups, shards, strict=True):
        cuts = np.array_split(group, count)
        stacks.append([cuts[place] for place in draw.permutation(count)])
    hands = draw.permutation(np.repeat(np.arange(len(groups)), shards)).reshape(clients, share)
    parts = []
    for hand in hands:
        parts.append(np.concatenate([stacks[kind].pop() for kind in hand]))
    return parts


def _dirichlet(
    groups: Groups, clients: int, draw: np.random.Generator, spread: float, least: float = LEAST
) -> Groups:
    """SemiFL's draw, again until all have `least` images or half of the mean, but at least one."""
    sizes = np.array([len(group) for group in groups])
    mean = sizes.sum() / clients
    least = int(min(least, mean / 2))
    best = _capped_draw(sizes, clients, spread, draw)
    for _ in range(REDRAWS):
        if best.sum(1).min() >= least:
            break
        again = _capped_draw(sizes, clients, spread, draw)
        if again.sum(1).min() > best.sum(1).min():
            best = again
    _mend(best, max(least, int(min(1, mean))))
    return cut(groups, best)


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


def _mend(counts: Indices, least: int) -> None:
    """Move images from the largest client to the smallest until all have `least`."""
    while (held := counts.sum(1)).min() < least:
        rich, poor = held.argmax(), held.argmin()
        kind = counts[rich].argmax()
        moved = min(least - held[poor], held[rich] - least, counts[rich, kind])
        counts[rich, kind] -= moved
        counts[poor, kind] += moved


def _recut(groups: Groups, clients: int, draw: np.random.Generator, spread: float) -> Groups:
    """Blocks of nine clients and a rest, as the release has them; neighbours may share classes."""
    mean = sum(map(len, groups)) / clients
    parts: Groups = []
    for first in range(0, clients, BLOCK):
        last = min(first + BLOCK, clients)
        block = []
        for group in groups:
            begin, end = first / clients * len(group), last / clients * len(group)
            block.append(group[round(begin) : round(end)])
        parts += _dirichlet(block, last - first, draw, spread, mean / 2)
    return np.array_split(np.concatenate(parts), clients)


def _balance(groups: Groups, clients: int, draw: np.random.Generator, spread: float) -> Groups:
    """In random order clients take their mix; the last ones take what the others did not want."""
    left = np.array([len(group) for group in groups])
    sizes = _near_equal_sizes(int(left.sum()), clients, draw)
    counts = np.zeros((clients, len(groups)), np.int64)
    for client in draw.permutation(clients):
        counts[client] = fill(draw.dirichlet(np.full(len(groups), spread)), left, sizes[client])
        left = left - counts[client]
    return cut(groups, counts)


def _near_equal_sizes(total: int, clients: int, draw: np.random.Generator) -> Indices:
    """Sizes within SPREAD of the mean, or for rounding at most the next whole number beyond."""
    offset = draw.uniform(-1, 1, clients)
    offset -= offset.mean()
    return apportion(1 + SPREAD * offset / max(1.0, float(np.abs(offset).max())), total)


def _concentration(text: str, spec: str) -> float:
    return real(text, spec, 1e-4, 1e6)


PARTITIONS: Mapping[str, Partition] = {
    "iid": Partition(_iid, "shuffled and dealt; sizes differ by at most one"),
    "classes:K": Partition(_few_classes, "at most K classes a client, in shards (SemiFL)", whole),
    "dirichlet:BETA": Partition(
        _dirichlet,
        "each class shared out by Dirichlet(BETA), sizes differ widely (SemiFL)",
        _concentration,
    ),
    "balanced-dirichlet:ALPHA": Partition(
        _balance,
        "each client a Dirichlet(ALPHA) mix of classes, sizes within 20 % of equal (Fed-SHVR)",
        _concentration,
    ),
    "hassle-dirichlet:ALPHA": Partition(
        _recut,
        "each class shared out by Dirichlet(ALPHA), then cut again into equal sizes (HASSLE)",
        _concentration,
    ),
}

"""Who has labels: the hub, every client, HASSLE's layouts, Fed-SHVR's mismatch of classes.

A layout says who has labels and a partition how images are spread; any goes with any. Where a
layout has groups of clients (fully, partially, not labelled; numbered in this order) the partition
is applied inside each group, labelled and unlabelled images apart, as HASSLE's release does it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedglean.data.partition import (
    Dealer,
    Groups,
    Indices,
    Partition,
    Split,
    apportion,
    by_class,
    class_ranks,
    cut,
    deal,
    dealer,
    fill,
    of_form,
    real,
    whole,
)
from fedglean.errors import ConfigError, DataError
from fedglean.randomness import fold_int, generator

Holdings = tuple[Indices, Groups, Groups]

_NONE: Indices = np.empty(0, np.int64)


@dataclass(frozen=True)
class Pool:
    """All training images with their true classes, and how to deal and draw."""

    truth: Indices
    classes: int
    clients: int
    how: Dealer
    key: int

    def all(self) -> Indices:
        return np.arange(len(self.truth))

    def deal(self, images: Indices, clients: int, name: str) -> Groups:
        return deal(self.how, self.truth, images, clients, fold_int(self.key, name))

    def by_class(self, images: Indices, name: str) -> Groups:
        key = fold_int(self.key, "by class", name)
        return by_class(self.truth, images, range(self.classes), key)

    def draw(self, name: str, number: int = 0) -> np.random.Generator:
        return generator(fold_int(self.key, name, number))


@dataclass(frozen=True)
class LabelLayout:
    """Who has labels, under a form such as "hub:N".

    `give` gets the pool, the whole spec and its value, and gives back the hub's images, and every
    client's labelled and unlabelled ones.
    """

    give: Callable[[Pool, str, str], Holdings]
    summary: str


def make_split(
    labels: Tensor,
    classes: int,
    clients: int,
    partition: str,
    who: str,
    seed: int,
    kind: Partition | None = None,
    layout: LabelLayout | None = None,
) -> Split:
    """Deal the images: `partition` is a form of PARTITIONS, `who` of LAYOUTS.

    `kind` and `layout` are what they name, where it is not the package's. Labels must be known for
    all images, else nobody could spread classes: a real federation has its split by nature.
    """
    layout = layout or of_form("label layout", who, LAYOUTS)
    how = dealer(partition, kind)
    truth = labels.to("cpu", torch.int64).numpy()
    if truth.ndim != 1 or not len(truth) or not 0 <= truth.min() <= truth.max() < classes:
        raise DataError(f"a split needs one label from 0 to {classes - 1} for every image")
    most = len(truth)
    if not 1 <= clients <= most:
        raise ConfigError(f"{clients} clients cannot share {most} images; use from 1 to {most}")
    pool = Pool(truth, classes, clients, how, fold_int(seed, "split"))
    given = layout.give(pool, who, who.partition(":")[2])
    if not isinstance(given, tuple) or len(given) != 3:
        raise ConfigError(f"'{who}' must return the hub's, the labelled and the unlabelled images")
    hub, labelled, unlabelled = given
    if (len(labelled), len(unlabelled)) != (clients, clients):
        raise ConfigError(
            f"'{who}' made {len(labelled)} labelled and {len(unlabelled)} unlabelled parts for "
            f"{clients} clients; it must make one of each per client"
        )
    return Split(_tensor(hub), tuple(map(_tensor, labelled)), tuple(map(_tensor, unlabelled)))


def _tensor(images: Indices) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.int64))


def _hub(pool: Pool, who: str, value: str) -> Holdings:
    count, classes = whole(value, who), pool.classes
    have = np.bincount(pool.truth, minlength=classes)
    if (most := int(have.min()) * classes) < count:
        few = f"class {have.argmin()} has only {have.min()}"
        advice = f"use at most hub:{most}" if most else "every class needs some"
        raise ConfigError(
            f"'{who}' needs {-(-count // classes)} images of every class, but {few}; {advice}"
        )
    if count % classes:
        low = count - count % classes
        near = f"hub:{low} or hub:{low + classes}" if low else f"hub:{classes}"
        raise ConfigError(f"'{who}' cannot be divided equally among {classes} classes; use {near}")
    # Sorted by class as in SemiFL's code: its batch-norm statistics depend on the order.
    groups = pool.by_class(pool.all(), "hub")
    hub = np.concatenate([group[: count // classes] for group in groups])
    rest = np.setdiff1d(pool.all(), hub)
    return hub, [_NONE] * pool.clients, pool.deal(rest, pool.clients, "unlabelled")


def _all_hub(pool: Pool, who: str, value: str) -> Holdings:
    nothing = [_NONE] * pool.clients
    return np.argsort(pool.truth, kind="stable"), nothing, nothing


def _each(pool: Pool, who: str, value: str) -> Holdings:
    count = whole(value, who)
    held = pool.deal(pool.all(), pool.clients, "images")
    least = min(map(len, held))
    if least < count:
        advice = f"use at most each:{least}" if least else "use fewer clients or another partition"
        raise ConfigError(
            f"'{who}' needs {count} images at every client, but one has only {least}; {advice}"
        )
    labelled, unlabelled = [], []
    for client, images in enumerate(held):
        chosen = _in_turn(pool, images, client)[:count]
        labelled.append(images[chosen])
        unlabelled.append(np.delete(images, chosen))
    return _NONE, labelled, unlabelled


def _in_turn(pool: Pool, images: Indices, client: int) -> Indices:
    """Places of one image of every class, then of a second one; which class is first is random."""
    kinds = pool.draw("turns", client).permutation(pool.classes)[pool.truth[images]]
    return np.lexsort((kinds, class_ranks(kinds)))


def _fraction(pool: Pool, who: str, value: str) -> Holdings:
    shares = [real(text, who, 0, 1) for text in value.split(",")]
    if len(shares) > pool.clients:
        raise ConfigError(f"'{who}' has more shares than there are clients; give fewer")
    labelled, unlabelled = [], []
    for client, images in enumerate(pool.deal(pool.all(), pool.clients, "images")):
        count = int(shares[client % len(shares)] * len(images) + 0.5)
        labelled.append(images[:count])
        unlabelled.append(images[count:])
    return _NONE, labelled, unlabelled


def _all(pool: Pool, who: str, value: str) -> Holdings:
    return _NONE, pool.deal(pool.all(), pool.clients, "images"), [_NONE] * pool.clients


def _hassle(pool: Pool, who: str, value: str) -> Holdings:
    """Where clients are fully and others partially labelled, either kind has half of the labels."""
    if not value.endswith("%"):
        raise ConfigError(f"'{who}' needs a percentage; write it as '{who.removesuffix(value)}10%'")
    share = real(value[:-1], who, 0, 100) / 100
    full, partial, none = _members(who, pool.clients, share)
    marked, rest = _stratify(pool, pool.all(), round(share * len(pool.truth)), "labelled")
    if len(marked) < (2 * max(full, partial) if full and partial else full + partial):
        raise ConfigError(
            f"'{who}' makes too few labels ({len(marked)}) for {full + partial} clients; use a "
            "larger percentage"
        )
    at_full, at_partial = _halves(pool, marked, full, partial)
    count = _unlabelled_at_partial(pool, who, len(at_partial), len(rest), partial, none)
    beside, others = _stratify(pool, rest, count, "unlabelled")
    labelled = _deal(pool, at_full, full, "full") + _deal(pool, at_partial, partial, "partial")
    unlabelled = _deal(pool, beside, partial, "partial-rest")
    unlabelled += _deal(pool, others, none, "unlabelled")
    return _NONE, labelled + [_NONE] * none, [_NONE] * full + unlabelled


def _members(who: str, clients: int, share: float) -> tuple[int, int, int]:
    """How many clients are fully, partially and not labelled: the paper's 20 clients, scaled."""
    layout = who.partition(":")[0]
    one, half = max(1, round(clients / 20)), clients // 2
    # Below 10 % HASSLE's ALL has as few partially as fully labelled clients: of 20 one and one.
    partial = one if share < 0.1 else max(1, round(clients * 9 / 20))
    full = min(max(1, round(share * clients)), clients - 1)
    members = {
        "PL": (0, clients, 0),
        "LPL": (one, clients - one, 0),
        "UPL": (0, clients - half, half),
        "LU": (full, 0, clients - full),
        "ALL": (one, partial, clients - one - partial),
    }[layout]
    kinds = {"PL": 1, "ALL": 3}.get(layout, 2)
    if clients < kinds:
        raise ConfigError(f"'{who}' has {kinds} kinds of clients; {clients} clients are too few")
    return members


def _unlabelled_at_partial(
    pool: Pool, who: str, labels: int, rest: int, partial: int, none: int
) -> int:
    """So many that these clients are as large as the mean, but at most half of what is left."""
    if not partial or not none:
        return rest if partial else 0
    # The release gives 40 % of all images to the nine of 20 clients, however many labels they have.
    counted = min(labels, len(pool.truth) // 20) if who.startswith("ALL") else labels
    return min(max(round(partial * len(pool.truth) / pool.clients) - counted, 0), rest // 2)


def _stratify(pool: Pool, images: Indices, count: int, name: str) -> tuple[Indices, Indices]:
    """`count` images with every class in its share, and the others."""
    if count == 0:
        return images[:0], images
    groups = pool.by_class(images, name)
    taken = cut(groups, apportion(np.array([len(group) for group in groups]), count)[None])[0]
    return taken, np.setdiff1d(images, taken)


def _halves(pool: Pool, marked: Indices, full: int, partial: int) -> Groups:
    """Dealt as to two clients, so that they are as skewed as any, but of the same size."""
    if full and partial:
        return np.array_split(np.concatenate(pool.deal(marked, 2, "halves")), 2)
    return [marked, _NONE] if full else [_NONE, marked]


def _deal(pool: Pool, images: Indices, clients: int, name: str) -> Groups:
    return pool.deal(images, clients, name) if len(images) else [_NONE] * clients


def _two_classes(pool: Pool, who: str, value: str) -> Holdings:
    wanted = _draw_known(pool, who, whole(value, who), 2)
    labelled = cut(pool.by_class(pool.all(), "labels"), wanted)
    rest = np.setdiff1d(pool.all(), np.concatenate(labelled))
    return _NONE, labelled, pool.deal(rest, pool.clients, "unlabelled")


def _draw_known(pool: Pool, who: str, count: int, share: int) -> Indices:
    """Labels by client and class: `share` classes each, every class as often, give or take one."""
    have, draw = np.bincount(pool.truth, minlength=pool.classes), pool.draw("known classes")
    if not 1 <= share <= min(count, pool.classes):
        raise ConfigError(
            f"'{who}' needs at least {max(2, share)} classes and {max(1, share)} labels per client"
        )
    wanted = np.zeros((pool.clients, pool.classes), np.int64)
    for row in wanted:
        known = np.lexsort((draw.random(pool.classes), (wanted > 0).sum(0)))[:share]
        row[draw.permutation(known)] = apportion(np.ones(share), count)
    total = wanted.sum(0)
    kind = (have - total).argmin()
    if have[kind] < total[kind]:
        raise ConfigError(
            f"'{who}' needs {total[kind]} images of class {kind}, but there are {have[kind]}; use "
            "fewer labels or clients"
        )
    return wanted


def _mismatch(pool: Pool, who: str, value: str) -> Holdings:
    """The partition's plan, bent as little as needed for the ratio; some images may stay out."""
    count, comma, ratio_text = value.partition(",")
    if not comma:
        raise ConfigError(f"'{who}' is not a valid label layout; write it as 'mismatch:N,RATIO'")
    ratio = real(ratio_text, who, 0, 1)
    share = min(max(1, round(0.6 * pool.classes)), pool.classes - 1)
    wanted = _draw_known(pool, who, whole(count, who), share)
    groups = pool.by_class(pool.all(), "labels")
    labelled = cut(groups, wanted)
    rest = np.setdiff1d(pool.all(), np.concatenate(labelled))
    parts = pool.deal(rest, pool.clients, "unlabelled")
    plan = np.stack([np.bincount(pool.truth[part], minlength=pool.classes) for part in parts])
    foreign, own = _bend(plan, wanted > 0, ratio, pool.draw("places"))
    found = cut(groups, np.concatenate([wanted, foreign, own]))[pool.clients :]
    unlabelled = []
    for client in range(pool.clients):
        mixed = np.concatenate([found[client], found[client + pool.clients]])
        unlabelled.append(pool.draw("mixed", client).permutation(mixed))
    return _NONE, labelled, unlabelled


def _bend(
    plan: Indices, known: NDArray[np.bool_], ratio: float, draw: np.random.Generator
) -> tuple[Indices, Indices]:
    """Counts of unknown and of known classes a client, all of them clients x classes.

    Iterative proportional fitting, then rounded row by row.
    """
    sizes, stock = plan.sum(1), plan.sum(0)
    unknown = np.rint(ratio * sizes).astype(np.int64)
    rows, allowed = np.concatenate([unknown, sizes - unknown]), np.concatenate([~known, known])
    table = np.where(allowed, np.concatenate([plan, plan]) + 1e-3 * plan.mean(), 0)
    for _ in range(200):
        table *= stock / np.maximum(table.sum(0), 1e-9)
        table *= (rows / np.maximum(table.sum(1), 1e-9))[:, None]
    counts = np.zeros_like(rows, shape=table.shape)
    for row in draw.permutation(len(rows)):
        counts[row] = fill(table[row], np.where(allowed[row], stock, 0), rows[row])
        stock = stock - counts[row]
    foreign, own = counts[: len(plan)], counts[len(plan) :]
    _trim(foreign, own, sizes, ratio)
    return foreign, own


def _trim(foreign: Indices, own: Indices, sizes: Indices, ratio: float) -> None:
    """Where one side found too few images the other gives some up, so that the ratio holds."""
    sides = [(foreign, ratio), (own, 1 - ratio)]
    for k in np.flatnonzero(foreign.sum(1) + own.sum(1) < sizes):
        total = min(side[k].sum() / share for side, share in sides if share)
        for side, share in sides:
            if side[k].any():
                side[k] = apportion(side[k], min(int(side[k].sum()), round(total * share)))


def _of_hassle(clients: str) -> LabelLayout:
    return LabelLayout(_hassle, f"HASSLE, P % of all images labelled: {clients}")


LAYOUTS: Mapping[str, LabelLayout] = {
    "hub:N": LabelLayout(_hub, "N labels at the hub, equally many a class; clients have the rest"),
    "all-hub": LabelLayout(_all_hub, "all images and labels at the hub (the centralised ceiling)"),
    "each:N": LabelLayout(_each, "every client has N labels, as equal over classes as it can"),
    "fraction:F": LabelLayout(
        _fraction,
        "a share F of every client's images is labelled; a list F1,F2,... is cycled over the "
        "clients",
    ),
    "all": LabelLayout(_all, "every client has labels for all its images"),
    "PL:P%": _of_hassle("every client is partially labelled"),
    "LPL:P%": _of_hassle("fully and partially labelled clients"),
    "UPL:P%": _of_hassle("partially labelled and unlabelled clients"),
    "LU:P%": _of_hassle("fully labelled and unlabelled clients"),
    "ALL:P%": _of_hassle("fully labelled, partially labelled and unlabelled clients"),
    "mismatch-digits:N": LabelLayout(
        _two_classes,
        "Fed-SHVR: every client has N labels of two classes; its other images are of any class",
    ),
    "mismatch:N,RATIO": LabelLayout(
        _mismatch,
        "Fed-SHVR: N labels of 60 % of the classes; a share RATIO of the rest is of the others",
    ),
}

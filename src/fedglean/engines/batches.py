"""From `Train` requests to their batches: which image at which step, in which view.

Every index and every augmentation is a function of the request's key and of (stream, epoch, position, view), so any
executor may cut the work as it likes. Views are made for many steps and lanes at once: on small batches that is most of
the speed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean import tree
from fedglean.augment import Recipe, view
from fedglean.method import Batch, Sample, Stream, Train
from fedglean.randomness import bits, fold, fold_int, order


@dataclass(frozen=True)
class Setting:
    """What an executor needs to know beside the request. `compile` and `half` (bf16 autocast) are for CUDA alone."""

    recipe: Recipe
    dtype: torch.dtype = torch.float32
    images_at_once: int = 4096
    compile: bool = False
    half: bool = False


@dataclass(frozen=True)
class Lane:
    """A training request with the key of its draws; an idle one only fills a place."""

    train: Train
    key: int
    idle: bool = False

    @property
    def length(self) -> int:
        return 0 if self.idle else self.train.length

    @property
    def device(self) -> torch.device:
        return next(iter(self.train.streams.values())).images.index.device

    @property
    def images_a_step(self) -> int:
        return sum(stream.batch * len(stream.views) for stream in self.train.streams.values())


def batches(train: Train, key: int, setting: Setting) -> Iterator[Batch]:
    """One request's batches, step by step."""
    lane = Lane(train, key)
    stride = max(1, setting.images_at_once // lane.images_a_step)
    for begin in range(0, train.length, stride):
        steps = range(begin, min(begin + stride, train.length))
        made = chunk([lane], setting, steps)
        for place in range(len(steps)):
            yield at(made, place, 0)


def at(made: Batch, *place: int) -> Batch:
    """The batch of one step, or of one step and lane."""
    batch: Batch = tree.map(lambda leaf: leaf[place], made)
    return batch


def chunk(lanes: Sequence[Lane], setting: Setting, steps: range) -> Batch:
    """The batches of several steps (first axis) and lanes (second); a lane that is done repeats its last step.

    All lanes have streams of the same names, views and batch sizes.
    """
    names = lanes[0].train.streams
    streams = {name: _sample(name, lanes, setting, steps) for name in names}
    first = next(iter(names))
    number = torch.stack([_numbers(lane, steps) for lane in lanes], 1)
    lengths = [epoch_length(lane.train.streams[first]) for lane in lanes]
    epoch = number // torch.tensor(lengths, device=number.device)
    keys = torch.stack([_tensor(fold(fold_int(lane.key, "step"), _numbers(lane, steps))) for lane in lanes], 1)
    rates = [lane.train.learning_rate for lane in lanes]
    rate = torch.tensor(rates, dtype=torch.float64, device=number.device).expand(len(steps), len(lanes))
    return Batch(streams, number, epoch, rate, keys)


def epoch_length(stream: Stream) -> int:
    """Steps in which a stream is seen once; the last batch is filled up."""
    return -(-len(stream.images) // stream.batch)


def _numbers(lane: Lane, steps: range) -> Tensor:
    return torch.arange(steps.start, steps.stop, device=lane.device).clamp(max=max(0, lane.length - 1))


def _sample(name: str, lanes: Sequence[Lane], setting: Setting, steps: range) -> Sample:
    """One stream's samples of all steps and lanes."""
    drawn = [_draw(lane, name, steps) for lane in lanes]
    streams = [lane.train.streams[name] for lane in lanes]
    pixels = torch.stack([stream.images.pixels(index) for stream, (index, _) in zip(streams, drawn, strict=True)], 1)
    views = []
    for which, kind in enumerate(streams[0].views):
        keys = torch.stack([keys[which] for _, keys in drawn], 1)
        made = view(kind, pixels.flatten(0, 2), keys.flatten(), setting.recipe, setting.dtype)
        views.append(made.reshape(*keys.shape, *made.shape[1:]))
    index = torch.stack([index for index, _ in drawn], 1)
    if streams[0].images.label is None:
        return Sample(tuple(views), index)
    known = [stream.images.label[index] for stream, (index, _) in zip(streams, drawn, strict=True)]  # type: ignore[index]
    return Sample(tuple(views), index, torch.stack(known, 1))


def _draw(lane: Lane, name: str, steps: range) -> tuple[Tensor, list[Tensor]]:
    """Which images of a stream, and the keys of each view: both of shape steps x batch."""
    stream, key = lane.train.streams[name], fold_int(lane.key, name)
    number, length = _numbers(lane, steps)[:, None], epoch_length(stream)
    epoch, place = number // length, number % length
    position = place * stream.batch + torch.arange(stream.batch, device=number.device)
    keys = [_tensor(fold(fold_int(key, "view", which), epoch, position)) for which in range(len(stream.views))]
    count = len(stream.images)
    if stream.draw == "with-replacement":
        return torch.remainder(bits(fold(fold_int(key, "draw"), epoch, position)), count), keys
    if stream.draw != "shuffled":
        raise ValueError(f"a stream is drawn 'shuffled' or 'with-replacement', not '{stream.draw}'")
    last = max(0, lane.length - 1)
    epochs = range(min(steps.start, last) // length, min(steps.stop - 1, last) // length + 1)
    orders = order(fold(fold_int(key, "order"), torch.arange(epochs.start, epochs.stop, device=number.device)), count)
    return orders[epoch - epochs.start, position % count], keys


def _tensor(key: int | Tensor) -> Tensor:
    assert isinstance(key, Tensor)
    return key

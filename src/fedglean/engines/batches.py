"""From a `Train` request to its batches: which image at which step, in which view.

Every index and every augmentation is a function of the request's key and of (stream, epoch, position, view), so any
executor may cut the work as it likes. Views are made for many steps at once: on small batches that is most of the
speed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglean.augment import Recipe, view
from fedglean.method import Batch, Sample, Stream, Train
from fedglean.randomness import bits, fold, fold_int, order


@dataclass(frozen=True)
class Setting:
    """What an executor needs to know beside the request."""

    recipe: Recipe
    dtype: torch.dtype = torch.float32
    images_at_once: int = 4096


def batches(train: Train, key: int, setting: Setting) -> Iterator[Batch]:
    """The request's batches, step by step."""
    per_step = sum(stream.batch * len(stream.views) for stream in train.streams.values())
    stride = max(1, setting.images_at_once // per_step)
    for begin in range(0, train.length, stride):
        yield from _chunk(train, key, setting, range(begin, min(begin + stride, train.length)))


def _chunk(train: Train, key: int, setting: Setting, steps: range) -> Iterator[Batch]:
    samples = {name: _samples(stream, fold_int(key, name), setting, steps) for name, stream in train.streams.items()}
    first = next(iter(train.streams.values()))
    device = first.images.index.device
    number = torch.arange(steps.start, steps.stop, device=device)
    epoch = number // epoch_length(first)
    keys = fold(fold_int(key, "step"), number)
    rate = torch.tensor(train.learning_rate, dtype=torch.float64, device=device)
    for place in range(len(steps)):
        streams = {name: _at(sample, place) for name, sample in samples.items()}
        yield Batch(streams, number[place], epoch[place], rate, keys[place])  # type: ignore[index]


def _at(sample: Sample, place: int) -> Sample:
    label = None if sample.label is None else sample.label[place]
    return Sample(tuple(view[place] for view in sample.views), sample.index[place], label)


def epoch_length(stream: Stream) -> int:
    """Steps in which a stream is seen once; the last batch is filled up."""
    return -(-len(stream.images) // stream.batch)


def _samples(stream: Stream, key: int, setting: Setting, steps: range) -> Sample:
    """The stream's samples of several steps, stacked along a leading axis."""
    device = stream.images.index.device
    number = torch.arange(steps.start, steps.stop, device=device)[:, None]
    epoch, place = number // epoch_length(stream), number % epoch_length(stream)
    position = place * stream.batch + torch.arange(stream.batch, device=device)
    index = _draw(stream, key, epoch, position)
    pixels = stream.images.pixels(index)
    made = tuple(
        _view(name, pixels, fold(fold_int(key, "view", which), epoch, position), setting)  # type: ignore[arg-type]
        for which, name in enumerate(stream.views)
    )
    label = stream.images.label
    return Sample(made, index, None if label is None else label[index])  # type: ignore[arg-type]


def _draw(stream: Stream, key: int, epoch: Tensor, position: Tensor) -> Tensor:
    count = len(stream.images)
    if stream.draw == "with-replacement":
        word = bits(fold(fold_int(key, "draw"), epoch, position))
        return torch.remainder(word, count)
    if stream.draw != "shuffled":
        raise ValueError(f"a stream is drawn 'shuffled' or 'with-replacement', not '{stream.draw}'")
    first = int(epoch[0, 0])
    epochs = torch.arange(first, int(epoch[-1, 0]) + 1, device=epoch.device)
    orders = order(fold(fold_int(key, "order"), epochs), count)
    return orders[epoch - first, position % count]


def _view(name: str, pixels: Tensor, keys: Tensor, setting: Setting) -> Tensor:
    made = view(name, pixels.flatten(0, 1), keys.flatten(), setting.recipe, setting.dtype)
    return made.reshape(*keys.shape, *made.shape[1:])

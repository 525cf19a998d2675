"""From `Train` requests to their batches: which image at which step, in which view.

Every index and every augmentation is a function of the request's key and of (stream, epoch,
position, view), so any executor may cut the work as it likes. Views are made for many steps and
lanes at once: on small batches that is most of the speed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from fedglean import tree
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe, view
from fedglean.method import Batch, Sample, Train
from fedglean.randomness import bits, fold, fold_int


@dataclass(frozen=True)
class Setting:
    """What an executor needs beside requests; `compile` and `half` (bf16) are for CUDA only."""

    recipe: Recipe
    dtype: torch.dtype = torch.float32
    images_at_once: int = 4096
    compile: bool = False
    half: bool = False
    # Steps until one is recorded: for a small one, that takes as long as so many gain by it.
    record_after: int = 50


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
        streams = self.train.streams.values()
        return sum(stream.batch * len(stream.views) for stream in streams)


def batches(train: Train, key: int, setting: Setting) -> Iterator[Batch]:
    """One request's batches, step by step."""
    batcher = Batcher([Lane(train, key)], setting)
    for steps in batcher.cut(range(train.length), width=1):
        chunk = batcher.chunk(steps)
        for place in range(len(steps)):
            yield at(chunk, place, 0)


def at(chunk: Batch, *place: int) -> Batch:
    """The batch of one step, or of one step and lane, out of those that were made at once."""
    batch: Batch = tree.map(lambda leaf: leaf[place], chunk)
    return batch


class Batcher:
    """Makes the batches of lanes whose streams agree in name, views, batch size, draw, store."""

    def __init__(self, lanes: Sequence[Lane], setting: Setting) -> None:
        self.device, self.images_a_step = lanes[0].device, lanes[0].images_a_step
        self.images_at_once = setting.images_at_once
        self.last = self._each([max(0, lane.length - 1) for lane in lanes])
        self.keys = self._each([fold_int(lane.key, "step") for lane in lanes])
        self.rates = self._each([lane.train.learning_rate for lane in lanes], torch.float64)
        self.samplers = {
            name: StreamSampler(name, lanes, setting) for name in lanes[0].train.streams
        }

    def _each(self, values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device, non_blocking=True)

    def steps_at_once(self, width: int) -> int:
        return max(1, self.images_at_once // (width * self.images_a_step))

    def cut(self, steps: range, width: int) -> Iterator[range]:
        """The steps, as many together as their batches are made at once."""
        most = self.steps_at_once(width)
        for begin in range(0, len(steps), most):
            yield steps[begin : begin + most]

    def chunk(self, steps: range, width: int | None = None) -> Batch:
        """The batches of several steps (first axis) and of the first lanes (second).

        A lane that is done repeats its last. Epochs are those of the first stream.
        """
        last = self.last[:width]  # lanes
        step = torch.arange(steps.start, steps.stop, device=self.device)  # steps
        number = step[:, None].minimum(last)  # steps x lanes
        streams = {name: sampler.sample(number, steps) for name, sampler in self.samplers.items()}
        first_stream = next(iter(self.samplers.values()))
        epoch = number // first_stream.length[: len(last)]  # steps x lanes
        rates = self.rates[:width].expand(len(steps), len(last))  # steps x lanes
        keys = _tensor(fold(self.keys[:width], number))  # steps x lanes
        return Batch(streams, number, epoch, rates, keys)


class StreamSampler:
    """One stream of all lanes, whose images lie in one row; sampling never waits for the device.

    `counts`, `lengths` and `lasts` are on the host, to plan by; `count`, `length`, `start` and the
    keys are on the device, to compute with.
    """

    def __init__(self, name: str, lanes: Sequence[Lane], setting: Setting) -> None:
        streams = [lane.train.streams[name] for lane in lanes]
        self.stream, self.setting = streams[0], setting
        if self.stream.draw not in ("shuffled", "with-replacement"):
            raise ValueError(
                f"a stream is drawn 'shuffled' or 'with-replacement', not '{self.stream.draw}'"
            )
        self.index, self.label = _in_one_row([stream.images for stream in streams])
        self.counts = [len(stream.images) for stream in streams]
        self.lengths = torch.tensor([stream.epoch for stream in streams])
        self.lasts = torch.tensor([max(0, lane.length - 1) for lane in lanes])
        starts = [0, *accumulate(self.counts)][:-1]
        keys = [fold_int(lane.key, name) for lane in lanes]
        purpose = "order" if self.stream.draw == "shuffled" else "draw"
        draw_keys = [fold_int(key, purpose) for key in keys]
        table = [self.counts, self.lengths.tolist(), starts, draw_keys]
        for number in range(len(self.stream.views)):
            table.append([fold_int(key, "view", number) for key in keys])
        rows = torch.tensor(table).to(self.index.device, non_blocking=True)  # rows x lanes
        self.count, self.length, self.start, self.draw_key, *self.view_keys = rows.unbind()

    def sample(self, number: Tensor, steps: range) -> Sample:
        """The samples of steps x lanes; `number` is the step that each of them takes."""
        width = number.shape[1]
        length = self.length[:width]  # lanes
        epoch = number // length  # steps x lanes
        begin = (number - epoch * length) * self.stream.batch  # steps x lanes
        within = torch.arange(self.stream.batch, device=number.device)  # batch
        position = begin[..., None] + within  # steps x lanes x batch
        epoch = epoch[..., None]  # steps x lanes x 1
        index = self._draw(epoch, position, steps)  # steps x lanes x batch
        in_row = index + self.start[:width, None]  # steps x lanes x batch
        pixels = self.stream.images.store[self.index[in_row]].flatten(0, 2)  # images first
        views = []
        for kind, key in zip(self.stream.views, self.view_keys, strict=True):
            views.append(self._view(kind, key[:width, None], epoch, position, pixels))
        if self.label is None:
            return Sample(tuple(views), index)
        return Sample(tuple(views), index, self.label[in_row])

    def _view(
        self, kind: str, key: Tensor, epoch: Tensor, position: Tensor, pixels: Tensor
    ) -> Tensor:
        # A plain view draws nothing: any integers do for its keys.
        keys = position if kind == "plain" else _tensor(fold(key, epoch, position))
        made = view(kind, pixels, keys.flatten(), self.setting.recipe, self.setting.dtype)
        return made.reshape(*position.shape, *made.shape[1:])  # steps x lanes x batch x image

    def _draw(self, epoch: Tensor, position: Tensor, steps: range) -> Tensor:
        """Which of its images each lane takes: steps x lanes x batch.

        Orders are made of the epochs that these steps lie in, from each lane's first one on.
        """
        width = position.shape[1]
        count = self.count[:width, None]  # lanes x 1
        key = self.draw_key[:width, None]  # lanes x 1
        if self.stream.draw == "with-replacement":
            return torch.remainder(bits(fold(key, epoch, position)), count)
        first = self._epochs_at(steps.start)[:width, None]  # lanes x 1
        last = self._epochs_at(steps.stop - 1)[:width, None]  # lanes x 1
        most = int((last - first).max()) + 1
        first = first.to(count.device, non_blocking=True)
        epochs = first + torch.arange(most, device=count.device)  # lanes x epochs
        orders = self._orders(_tensor(fold(key, epochs)), count)  # lanes x epochs x images
        lane = torch.arange(width, device=count.device)[:, None]  # lanes x 1
        return orders[lane, epoch - first, position % count]

    def _epochs_at(self, step: int) -> Tensor:
        """The epoch that each lane is in at a step, on the host: to know it, nothing waits."""
        return self.lasts.clamp(max=step) // self.lengths  # lanes

    def _orders(self, keys: Tensor, count: Tensor) -> Tensor:
        """`order` for lanes x epochs; in a shorter lane, places that are no image come last."""
        counts = self.counts[: len(keys)]
        longest = max(counts)
        numbers = bits(keys, (longest,))  # lanes x epochs x images
        if min(counts) < longest:
            outside = torch.arange(longest, device=keys.device) >= count  # lanes x images
            numbers = numbers.masked_fill(outside[:, None], torch.iinfo(torch.int64).max)
        return torch.argsort(numbers, dim=-1, stable=True)


def _in_one_row(images: Sequence[Images]) -> tuple[Tensor, Tensor | None]:
    """All images of one store, and their labels where they have some."""
    if len(images) == 1:
        return images[0].index, images[0].label
    index = torch.cat([each.index for each in images])
    labels = [each.label for each in images if each.label is not None]
    return index, torch.cat(labels) if labels else None


def _tensor(key: int | Tensor) -> Tensor:
    assert isinstance(key, Tensor)
    return key

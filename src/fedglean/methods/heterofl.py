"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021): weak clients train a narrow corner of the model.

A client of width r gets, trains and sends the leading r of every layer's channels. An element of
the global model becomes the mean over the clients that have it; one that nobody has stays as it
was. Two tricks go with it: a narrow model's layers are divided by its width while it trains, so
that its activations are as large as the wide one's, and a client neither trains nor averages the
outputs of classes that it has no label of.

Only clients with labels train, on their labelled images, all with the same weight; other images
and clients count for nothing but the test statistics of static batch norm.

SemiFL's table has a row of this name in which all are of full width: that is `heterofl-semifl`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import cross_entropy, one_hot
from fedglean.method import (
    Ask,
    Batch,
    Expect,
    Hub,
    MakeModel,
    Me,
    Method,
    Reply,
    Stream,
    Train,
    Upload,
)
from fedglean.methods import settings
from fedglean.methods.common import with_statistics
from fedglean.methods.settings import SKEWED, WithSGD, needs_labels_at_clients, on_a_laptop, setting
from fedglean.models import Model
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class HeteroFL(WithSGD, Method):
    """Algorithm 1 with the defaults of the released code."""

    defaults = on_a_laptop(
        20,
        SKEWED,
        active=0.4,
        epochs=2,
        batch=32,
        rate=0.1,
        view="plain",
        widths="1,0.5,0.25",
        staircase=False,
    )
    check = needs_labels_at_clients("HeteroFL")

    widths: str = setting("1,0.5,0.25,0.125,0.0625", "shares of channels, dealt to clients in turn")
    dynamic: bool = setting(False, "draw every client's width anew in every round")
    scaler: bool = setting(True, "divide a narrow model's layers by its width while it trains")
    mask: bool = setting(True, "leave out the outputs of classes that a client has no labels of")
    active: float = settings.active(0.1)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = settings.rate(0.1)
    staircase: bool = setting(True, "rate / 10 after 3/8 of the rounds, / 100 after 5/8")
    momentum: float = settings.momentum(0.9)
    decay: float = settings.decay(5e-4)
    clip: float = settings.clip(1.0)
    view: str = settings.view("weak")

    def __post_init__(self) -> None:
        if not all(0 < share <= 1 for share in self.shares):
            raise ConfigError(
                "widths must be numbers above 0 and up to 1, separated by commas, not "
                f"'{self.widths}'"
            )

    @property
    def shares(self) -> tuple[float, ...]:
        texts = [text.strip() for text in self.widths.split(",")]
        return tuple(float(text) if text.replace(".", "", 1).isdecimal() else 0.0 for text in texts)

    def start(self, make: MakeModel) -> Record:
        model = make("model")
        for share in self.shares:
            narrow(model, share)  # a net that cannot be so narrow is refused before the first round
        return Record(model=model)

    async def round(self, hub: Hub, state: Record) -> Record:
        to = hub.sample(self.active)
        parts = {share: narrow(state.model, share) for share in self.shares}
        each = {}
        for client in to:
            width = self.shares[self.turn(hub, client) % len(self.shares)]
            each[client] = {"width": width, _part(width): parts[width]}
        bias = state.model.parameters[state.model.architecture.head[1]]
        classes = Expect(torch.zeros_like(bias), bound=1.0, low=0)
        expect = {_classes(share): classes for share in parts}
        once = [*expect, *map(_part, parts)]
        reply = await Ask(self.client, to, {"rate": self.rate_of(hub)}, each, expect, once)
        return Record(model=await with_statistics(combine(state.model, parts, reply), hub))

    def turn(self, hub: Hub, client: int) -> int:
        return fold_int(hub.key, "width", client) if self.dynamic else client

    def rate_of(self, hub: Hub) -> float:
        falls = sum(hub.progress >= place for place in (3 / 8, 5 / 8)) if self.staircase else 0
        return self.rate * 0.1**falls

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not me.labelled:
            return None
        name, rate = _part(message.width), message.rate
        part: Model = message[name]
        bias = part.parameters[part.architecture.head[1]]
        known = one_hot(me.labelled.label, bias).amax(0)  # type: ignore[arg-type]
        known = known if self.mask else torch.ones_like(known)
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        frozen = {"known": known}
        trained = await Train(
            part, streams, self.loss, self.sgd, epochs=self.epochs, frozen=frozen, rate=rate
        )
        trees = {name: trained.model, _classes(message.width): known}
        return Upload(weight={name: owners(part, 1, known)}, report=trained.metrics, **trees)

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Cross-entropy in which the classes that the client does not know have output 0."""
        logits = (scale(model) if self.scaler else model)(batch.labelled.images)
        return cross_entropy(logits * frozen["known"], batch.labelled.label)


def narrow(model: Model, share: float) -> Model:
    """The leading channels of every layer, dense ones too: images are flattened by channel.

    They lie in memory as they would after being sent: a layer's last bits depend on that.
    """
    architecture = replace(model.architecture, width=share)
    plan, old = architecture.plan, model.for_training()
    parameters = {
        name: _corner(old.parameters[name], shape).contiguous()
        for name, (shape, *_) in plan.parameters.items()
    }
    statistics = {
        name: value[: plan.channels[_layer(name)]] for name, value in old.statistics.items()
    }
    return Model(architecture, parameters, statistics)


def scale(model: Model) -> Model:
    """Hidden layers' weights, and so their outputs ahead of any norm, divided by the width."""
    it = model.architecture
    others = (it.plan.head, *it.plan.channels)
    hidden = [name for name in model.parameters if _layer(name) not in others]
    divided = {name: model.parameters[name] / it.width for name in hidden}
    return Model(it, model.parameters | divided, model.statistics)


def owners(part: Model, count: int, known: Tensor) -> dict[str, Tensor]:
    """How many of `count` clients have each element: of an output, those that know its class."""
    having = {name: torch.full_like(leaf, count) for name, leaf in tree.named(part).items()}
    weight, bias = part.architecture.head
    having[weight] = known[:, None].expand_as(having[weight])
    having[bias] = known.expand_as(having[bias])
    return having


def combine(model: Model, parts: dict[float, Model], reply: Reply) -> Model:
    """The mean of every element over the clients that have it."""
    old = tree.named(model.for_training())
    total = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in old.items()}
    count = tree.zeros(total)
    for share, part in parts.items():
        if not reply.has(_part(share)):
            continue
        having = owners(part, reply.count(_part(share)), reply.sum(_classes(share)))
        for name, leaf in tree.named(reply.sum(_part(share))).items():
            _corner(total[name], leaf.shape).add_(leaf)
            _corner(count[name], leaf.shape).add_(having[name])
    mean = {}
    for name, leaf in old.items():
        found = total[name] / count[name].clamp(min=1)
        mean[name] = torch.where(count[name] > 0, found, leaf).to(leaf.dtype)
    return tree.rebuild(model.for_training(), mean)  # type: ignore[no-any-return]


def _corner(values: Tensor, shape: Sequence[int]) -> Tensor:
    return values[tuple(slice(size) for size in shape)]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _part(share: float) -> str:
    return f"model of width {share:g}"


def _classes(share: float) -> str:
    return f"classes at width {share:g}"

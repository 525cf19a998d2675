"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021): weak clients train a narrow corner of the one global
model.

A client of width r gets, trains and sends the leading r of every layer's channels. An element of
the global model becomes the mean over the clients that have it; one that nobody has stays as it
was. Two tricks go with it: a narrow model's layers are divided by its width while it trains, so
that its activations are as large as the wide one's, and a client neither trains nor averages the
outputs of classes that it has no label of.

Only clients with labels train, on their labelled images, all with the same weight; a partially
labelled client's other images and an unlabelled client count for nothing but the test statistics of
static batch norm.

SemiFL's table has a row of this name in which all are of full width: that is `heterofl-semifl`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError
from fedglean.losses import cross_entropy, one_hot
from fedglean.method import (
    Ask,
    Batch,
    Declared,
    Expect,
    Hub,
    Me,
    Method,
    Stream,
    Train,
    Upload,
    setting,
)
from fedglean.methods.common import need_labels_at_clients, with_statistics
from fedglean.models import Model
from fedglean.randomness import fold_int
from fedglean.tree import Record, Tree


@dataclass(frozen=True)
class HeteroFL(Method):
    """Algorithm 1 with the defaults of the released code."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "rounds": 20,
        "split": {"partition": "dirichlet:0.1", "labels": "all", "clients": 10},
        "settings": {
            "active": 0.4,
            "epochs": 2,
            "batch": 32,
            "rate": 0.1,
            "view": "plain",
            "widths": "1,0.5,0.25",
            "staircase": False,
        },
    }

    widths: str = setting(
        "1,0.5,0.25,0.125,0.0625", "shares of the channels, dealt out to the clients in turn"
    )
    dynamic: bool = setting(False, "draw every client's width anew in every round")
    scaler: bool = setting(True, "divide a narrow model's layers by its width while it trains")
    mask: bool = setting(True, "leave out the outputs of classes that a client has no labels of")
    active: float = setting(0.1, "share of the clients that take part in a round", low=0, high=1)
    epochs: int = setting(5, "local epochs", low=1)
    batch: int = setting(10, "batch size", low=1)
    rate: float = setting(0.1, "learning rate", low=0)
    staircase: bool = setting(
        True, "a tenth of the rate after 3/8 of the rounds, a hundredth after 5/8"
    )
    momentum: float = setting(0.9, "momentum, reset at every visit", low=0, high=0.999)
    decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(1.0, "largest norm of a gradient", low=1e-6)
    view: str = setting("weak", "how images are seen in training", names="VIEWS")

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

    def check(self, clients: Sequence[Declared], hub_labels: int) -> None:
        need_labels_at_clients("HeteroFL", clients)

    def start(self, make: Callable[..., Model]) -> Record:
        model = make("model")
        for share in self.shares:
            narrowed(
                model, share
            )  # a net that cannot be so narrow is refused here, before the first round
        return Record(model=model)

    async def round(self, hub: Hub, state: Record) -> Record:
        to, parts = (
            hub.sample(self.active),
            {share: narrowed(state.model, share) for share in self.shares},
        )
        width = {client: self.shares[self.turn(hub, client) % len(self.shares)] for client in to}
        each = {
            client: {"width": width[client], _part(width[client]): parts[width[client]]}
            for client in to
        }
        classes = Expect(torch.zeros_like(state.model.parameters["output.bias"]), bound=1.0, low=0)
        expect = {_classes(share): classes for share in parts}
        once = [*expect, *map(_part, parts)]
        reply = await Ask(self.client, to, {"rate": self.rate_of(hub)}, each, expect, once)
        models = await with_statistics(
            {"model": combined(state.model, parts, reply)}, hub, "everyone"
        )
        return Record(model=models["model"])

    def turn(self, hub: Hub, client: int) -> int:
        return fold_int(hub.key, "width", client) if self.dynamic else client

    def rate_of(self, hub: Hub) -> float:
        falls = sum(hub.progress >= place for place in (3 / 8, 5 / 8)) if self.staircase else 0
        return self.rate * 0.1**falls

    async def client(self, me: Me, message: Record) -> Upload | None:
        if not len(me.labelled):
            return None
        part: Model = message[_part(message.width)]
        known = one_hot(me.labelled.label, part.parameters["output.bias"]).amax(0)  # type: ignore[arg-type]
        known = known if self.mask else torch.ones_like(known)
        streams = {"labelled": Stream(me.labelled, view=self.view, batch=self.batch)}
        sgd = self.optimiser(self.rate, self.momentum, decay=self.decay, clip=self.clip)
        trained = await Train(
            part,
            streams,
            self.loss,
            sgd,
            epochs=self.epochs,
            frozen={"known": known},
            rate=message.rate,
        )
        trees = {_part(message.width): trained.model, _classes(message.width): known}
        return Upload(
            weight={_part(message.width): owners(part, 1, known)}, report=trained.metrics, **trees
        )

    def loss(self, model: Model, batch: Batch, frozen: Tree) -> Tensor:
        """Cross-entropy in which the classes that the client does not know have output 0."""
        logits = (scaled(model) if self.scaler else model)(batch.labelled.images)
        return cross_entropy(logits * frozen["known"], batch.labelled.label)


def narrowed(model: Model, share: float) -> Model:
    """The leading channels of every layer. Images are flattened channel by channel, so those of a
    dense layer too.

    They lie in memory as they would after being sent: a layer's last bits depend on that.
    """
    architecture = replace(model.architecture, width=share)
    plan, old = architecture.plan, model.for_training()
    sizes = {name: shape for name, (shape, *_) in plan.parameters.items()}
    parameters = {
        name: _corner(old.parameters[name], size).contiguous() for name, size in sizes.items()
    }
    statistics = {
        name: value[: plan.channels[_layer(name)]] for name, value in old.statistics.items()
    }
    return Model(architecture, parameters, statistics)


def scaled(model: Model) -> Model:
    """The model with its hidden layers' outputs divided by its width, ahead of any norm: through
    their weights.
    """
    it = model.architecture
    hidden = [
        name for name in model.parameters if _layer(name) not in ("output", *it.plan.channels)
    ]
    divided = {name: model.parameters[name] / it.width for name in hidden}
    return Model(it, model.parameters | divided, model.statistics)


def owners(part: Model, count: int, known: Tensor) -> dict[str, Tensor]:
    """How many of `count` clients have each element: all of them, but an output only those that
    know its class.
    """
    having = {name: torch.full_like(leaf, count) for name, leaf in tree.named(part).items()}
    weight, bias = having["output.weight"], having["output.bias"]
    return having | {
        "output.weight": known[:, None].expand_as(weight),
        "output.bias": known.expand_as(bias),
    }


def combined(model: Model, parts: dict[float, Model], reply: Any) -> Model:
    """The mean of every element over the clients that have it."""
    old = tree.named(model.for_training())
    total, count = (
        tree.map(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), old) for _ in range(2)
    )
    for share, part in parts.items():
        if not reply.has(_part(share)):
            continue
        having = owners(part, reply.count(_part(share)), reply.sum(_classes(share)))
        for name, leaf in tree.named(reply.sum(_part(share))).items():
            _corner(total[name], leaf.shape).add_(leaf)
            _corner(count[name], leaf.shape).add_(having[name])
    mean = tree.map(
        lambda t, n, leaf: torch.where(n > 0, t / n.clamp(min=1), leaf).to(leaf.dtype),
        total,
        count,
        old,
    )
    return tree.rebuild(model.for_training(), mean)  # type: ignore[no-any-return]


def _corner(values: Tensor, shape: Sequence[int]) -> Tensor:
    return values[tuple(slice(size) for size in shape)]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _part(share: float) -> str:
    return f"model of width {share:g}"


def _classes(share: float) -> str:
    return f"classes at width {share:g}"

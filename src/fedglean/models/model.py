"""A model is a value: an architecture, its parameters and its batch-norm statistics.

`Model` is a pytree node whose leaves are the tensors, so `torch.func.grad`, `torch.func.vmap` and
`tree_map` take it as they take a dict. A forward is pure but for one thing: with `norm="running"` a
training forward replaces the entries of the model's own `statistics` dict, so that two forwards in
one loss move the averages twice, in order, and a step reads them off afterwards. Inside an inner
`vmap` it must be a copy made there (`for_training`), or a lane's tensors get out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean.errors import ConfigError, StorageError, unknown
from fedglean.models import norm as norms
from fedglean.models.layers import Layers, NetPlan, plan_of
from fedglean.models.module import FROZEN, ModuleNet
from fedglean.models.nets import MODELS, NetKind, net_of
from fedglean.randomness import Key, fold_int

#: The norm of a run that names none.
DEFAULT_NORM = "static"
_FIELDS = ("name", "shape", "classes", "width", "norm", "dropout")


def _check_numbers(it: "Architecture", kind: NetKind) -> None:
    if it.norm not in norms.NORMS:
        raise unknown("norm", it.norm, norms.NORMS)
    if it.classes < 2:
        raise ConfigError(f"a classifier needs at least 2 classes, not {it.classes}")
    if not 0 < it.width < math.inf:
        raise ConfigError(
            f"width is a share of the channels, so it must be above 0, not {it.width}; 1 is the "
            "full model"
        )
    if not 0 <= it.dropout < 1:
        raise ConfigError(
            "dropout is a share of the units, so it must be at least 0 and below 1, not "
            f"{it.dropout}"
        )
    if it.dropout > 0 and not kind.dropout:
        having = [name for name, kind in MODELS.items() if kind.dropout]
        raise ConfigError(
            f"{it.name} has no dropout layer; use {' or '.join(having)}, or set dropout to 0"
        )


def _check_size(it: "Architecture", smallest: int) -> None:
    whole = isinstance(it.shape, tuple) and all(
        isinstance(side, int) and side > 0 for side in it.shape
    )
    if not whole or len(it.shape) != 3:
        raise ConfigError(
            "an image's shape must be three positive integers (channels, height, width), not "
            f"{it.shape}"
        )
    if min(it.shape[1:]) < smallest:
        sides = f"{it.shape[1]} x {it.shape[2]}"
        raise ConfigError(
            f"{it.name} needs images of at least {smallest} x {smallest} pixels, not {sides}; cnn "
            "takes 4 x 4, mlp any"
        )


def _check_output(it: "Architecture") -> None:
    if it.plan.output != (it.plan.images, it.classes):
        made = " x ".join(["n", *map(str, it.plan.output[1:])]) if it.plan.output else "no tensor"
        raise ConfigError(
            f"the model '{it.name}' returns {made} for n images; expected n x {it.classes}, one "
            "number per class"
        )


def _check_groups(it: "Architecture") -> None:
    for name, channels in it.plan.channels.items():
        count = norms.groups(it.norm, channels)
        if count and channels // count * it.plan.positions[name] < 2:
            raise ConfigError(
                f"norm '{it.norm}' would see a single number per group at {name} of {it.name}; "
                "use larger images or norm 'layer'"
            )


def _norm_of(it: "Architecture", module: ModuleNet) -> str:
    """A module that has a norm of its own goes before what is the default."""
    if module.norm is None or module.norm == FROZEN or it.norm == module.norm:
        return it.norm
    if it.norm != DEFAULT_NORM:
        raise ConfigError(
            f"the model '{it.name}' is made with norm '{module.norm}', but the run says "
            f"'{it.norm}'; leave out one of them"
        )
    return module.norm


def _plan_of(it: "Architecture") -> NetPlan:
    if it.kind.module is None:
        return plan_of(it.kind.net, it.shape, it.classes, it.width)
    if it.width != 1:
        raise ConfigError(
            f"the model '{it.name}' is a torch module, whose width is always 1, not {it.width:g}"
        )
    try:
        return it.kind.module.plan(it.shape, it.classes)
    except ConfigError as error:
        raise ConfigError(f"the model '{it.name}': {error}") from error


@dataclass(frozen=True)
class Architecture:
    """Everything about a model but its numbers, as a hashable value. `kind` is what `name` stands
    for, by default the package's net; files have the name alone.

    `shape` is channels, height, width of an image; `width` the share of the channels; `dropout` the
    share of its hidden units that `mlp` drops (cnn13 has its own 0.5, whatever is said here). Only
    a forward with a key drops, and of all methods Fed-SHVR with `perturb="dropout"` alone gives
    one: in the other methods and in all presets cnn13 drops none.
    """

    name: str
    shape: tuple[int, int, int]
    classes: int
    width: float = 1.0
    norm: str = "static"
    dropout: float = 0.0
    kind: NetKind = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    plan: NetPlan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind = self.kind or net_of(self.name)
        object.__setattr__(self, "kind", kind)
        if kind.module is not None:
            object.__setattr__(self, "norm", _norm_of(self, kind.module))
        _check_numbers(self, kind)
        _check_size(self, kind.smallest)
        object.__setattr__(self, "plan", _plan_of(self))
        _check_output(self)
        _check_groups(self)

    @property
    def drops(self) -> bool:
        """Whether a training forward with a key drops anything."""
        return self.dropout > 0 or self.plan.drops or self.name == "cnn13"

    @property
    def head(self) -> tuple[str, str]:
        """What the last layer's weight and bias are called, for methods that look into it."""
        weight, bias = f"{self.plan.head}.weight", f"{self.plan.head}.bias"
        if weight not in self.plan.parameters or bias not in self.plan.parameters:
            raise ConfigError(
                f"this method looks into a model's last layer, but '{self.name}' has none that is "
                "linear, has a bias and trains"
            )
        return weight, bias

    def with_classes(self, classes: int) -> "Architecture":
        """The same net for another number of classes. A module takes a last layer of any size as
        it is.
        """
        return self if self.kind.module is not None else replace(self, classes=classes)

    def initial(
        self, key: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> "Model":
        """A model whose parameters are drawn by name, on the CPU: the same on every device."""
        statistics = self._first_statistics(dtype, device)
        module = self.kind.module
        if module is None:
            parameters = {
                name: init(fold_int(key, name), shape, fan_in).to(device, dtype)
                for name, (shape, init, fan_in) in self.plan.parameters.items()
            }
            return Model(self, parameters, statistics)
        drawn, own = module.initial(self.classes, key)
        parameters = {name: value.to(device, dtype) for name, value in drawn.items()}
        given = {name: own[name].to(device, dtype) for name in statistics if name in own}
        return Model(self, parameters, statistics | given)

    def _first_statistics(
        self, dtype: torch.dtype, device: torch.device | str
    ) -> dict[str, Tensor]:
        if self.norm != "running":
            return {}
        statistics = {}
        for name, channels in self.plan.channels.items():
            statistics[f"{name}.mean"] = torch.zeros(channels, dtype=dtype, device=device)
            statistics[f"{name}.variance"] = torch.ones(channels, dtype=dtype, device=device)
        return statistics

    def to_json(self) -> dict[str, Any]:
        """A plain dict of the fields; of a net that has frozen weights with their digest."""
        written = {name: getattr(self, name) for name in _FIELDS} | {"shape": list(self.shape)}
        return written | ({"frozen": self._frozen} if self._frozen else {})

    @property
    def _frozen(self) -> str | None:
        return None if self.kind.module is None else self.kind.module.template(self.classes).digest

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], net: Callable[[str], NetKind] = net_of) -> Self:
        """The architecture that `to_json` came from; `net` says what its name stands for."""
        fields = dict(fields)
        frozen = fields.pop("frozen", None)
        for name in fields:
            if name not in _FIELDS:
                raise unknown("field of an architecture", name, _FIELDS)
        missing = [name for name in _FIELDS[:3] if name not in fields]
        if missing:
            raise ConfigError(
                f"an architecture needs name, shape and classes, but {missing[0]} is missing"
            )
        shape, kind = tuple(fields["shape"]), net(fields["name"])
        made = cls(**{**fields, "shape": shape, "kind": kind})
        if frozen != made._frozen:
            raise StorageError(
                f"the model '{made.name}' has other frozen weights here than where it was trained; "
                "its module and its file of weights must be the same"
            )
        return made


@dataclass(frozen=True, eq=False)
class Model:
    """Parameters and statistics by name. Not checked: `vmap` builds models of integers to say which
    axis is whose.
    """

    architecture: Architecture
    parameters: dict[str, Tensor]
    statistics: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, images: Tensor, key: Key | None = None) -> Tensor:
        """Logits in training: normalised by the batch, dropout by `key` (None: none), running
        averages moved on.
        """
        return self._run(images, norms.in_training(self.architecture.norm, self.statistics), key)

    def evaluate(self, images: Tensor) -> Tensor:
        """Logits in a test: normalised by the statistics; a static model that has none yet uses the
        batch's own.
        """
        return self._run(images, norms.in_evaluation(self.architecture.norm, self.statistics))

    def record(self, images: Tensor) -> dict[str, Tensor]:
        """Batch-norm sums of one batch, to be added up over batches and clients for
        `with_statistics`.

        The forward is that of training. Variances are unbiased, so a batch of one image may give
        NaN: leave it out.
        """
        sums = {
            "images": torch.tensor(
                float(images.shape[0]), dtype=torch.float64, device=images.device
            )
        }
        if self.architecture.norm in ("static", "running"):
            self._run(images, partial(norms.recorded, sums))
        return sums

    def empty_sums(self) -> dict[str, Tensor]:
        """What `record` gives, of no image."""
        return norms.empty_sums(self._batch_norms(), next(iter(self.parameters.values())).device)

    @property
    def needs_statistics(self) -> bool:
        """Whether a test of this model wants statistics that training does not leave behind."""
        return self.architecture.norm == "static" and bool(self.architecture.plan.channels)

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> "Model":
        """The same model with other weights; a static model drops its statistics, which belonged to
        the old ones.
        """
        return Model(
            self.architecture, {name: parameters[name] for name in self.parameters}, self._kept()
        )

    def with_statistics(self, sums: Mapping[str, Tensor], formula: str = "cumulative") -> "Model":
        """The same model with the test statistics of recorded sums, by the released or the printed
        formula.
        """
        like = next(iter(self.parameters.values()))
        statistics = norms.statistics_of(sums, self._batch_norms(), formula)
        return Model(
            self.architecture,
            self.parameters,
            {name: value.to(like) for name, value in statistics.items()},
        )

    def for_training(self) -> "Model":
        """A copy whose statistics can be replaced without the original noticing; none, if the model
        is static.
        """
        return Model(self.architecture, self.parameters, self._kept())

    def size(self) -> int:
        """The number of parameters."""
        return sum(value.numel() for value in self.parameters.values())

    def __repr__(self) -> str:
        return f"Model({self.architecture})"

    def _run(self, images: Tensor, normalise: norms.Normaliser, key: Key | None = None) -> Tensor:
        it, parameters = self.architecture, self.parameters
        layers = Layers(
            it.classes, it.width, it.dropout, lambda name, *_: parameters[name], normalise, key
        )
        return it.kind.net(layers, images)

    def _kept(self) -> dict[str, Tensor]:
        return {} if self.architecture.norm == "static" else dict(self.statistics)

    def _batch_norms(self) -> dict[str, int]:
        return (
            self.architecture.plan.channels
            if self.architecture.norm in ("static", "running")
            else {}
        )


def bring_frozen(models: Any) -> None:
    """Have the frozen parts of all models in a tree where their parameters are: in a step that is
    compiled it would be too late.
    """
    for node in pytree.tree_leaves(models, is_leaf=lambda node: isinstance(node, Model)):
        if isinstance(node, Model) and node.architecture.kind.module is not None:
            template = node.architecture.kind.module.template(node.architecture.classes)
            like = next(iter(node.parameters.values()))
            template.frozen_on(like.device, like.dtype)


def _flatten(model: Model) -> tuple[list[Any], Architecture]:
    return [model.parameters, model.statistics], model.architecture


def _flatten_with_keys(model: Model) -> tuple[list[tuple[Any, Any]], Architecture]:
    parts = [
        (pytree.GetAttrKey("parameters"), model.parameters),
        (pytree.GetAttrKey("statistics"), model.statistics),
    ]
    return parts, model.architecture


def _unflatten(children: Any, architecture: Architecture) -> Model:
    return Model(architecture, *children)


pytree.register_pytree_node(
    Model,
    _flatten,
    _unflatten,
    serialized_type_name="fedglean.Model",
    flatten_with_keys_fn=_flatten_with_keys,
)

"""Any torch module as a net.

The module is built once and kept in eval mode; batch norms and dropouts in it are stood in for. A
forward puts the tensors of one model in the place of the module's own for as long as it lasts. Of
these, what trains comes from the model, so that it alone has a lane, is sent, averaged and stored.
All else belongs to the net, and is there once for all lanes.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedglean.errors import ConfigError
from fedglean.models.layers import Layers, NetPlan, zeros
from fedglean.models.stand_ins import CurrentRun, ModuleDropout, ModuleNorm, put_stand_ins
from fedglean.models.weights import digest_of_file, digest_of_tensors, load_weights

Build = Callable[[int], nn.Module]
T = TypeVar("T")
#: Words of `train`: all that requires a gradient, and the last layer.
ALL, HEAD = "all", "head"
#: A pattern names parameters, or layers with all that is in them.
ENDS = ("", ".*")
#: The `norm` of a module whose batch norms all keep the statistics that they came with.
FROZEN = "frozen"
#: The seed of what does not train and is in no file of weights.
FIXED_SEED = 0
#: What torch says of an operation that cannot be lifted.
NOT_LIFTED = "vmap: "
#: So many names are told where one is not found.
TOLD = 3


class ModuleNet:
    """A net of what `build(classes)` returns: a function of layers and images like any other.

    `weights` is a file that its tensors begin with, `train` says which of them train.
    """

    def __init__(self, build: Build, weights: Path | None, train: str, norm: str | None) -> None:
        self.build, self.weights, self.train, self.norm = build, weights, train, norm
        self._templates: dict[int, ModuleTemplate] = {}
        self._plans: dict[tuple[int, ...], NetPlan] = {}
        _known[_key(build, weights, train, norm)] = self

    def __reduce__(self) -> Any:
        return _known_or_new, (self.build, self.weights, self.train, self.norm)

    def __call__(self, layers: Layers, images: Tensor) -> Tensor:
        return self.template(layers.classes)(layers, images)

    @property
    def weights_digest(self) -> str:
        return "" if self.weights is None else digest_of_file(self.weights)

    def template(self, classes: int) -> "ModuleTemplate":
        if classes not in self._templates:
            self._templates[classes] = _apart(lambda: ModuleTemplate(self, classes))
        return self._templates[classes]

    def plan(self, shape: tuple[int, ...], classes: int) -> NetPlan:
        """What trains, and the norms that the run decides on."""
        key = (*shape, classes)
        if key not in self._plans:
            template = self.template(classes)
            self._plans[key] = _apart(lambda: template.plan(shape))
        return self._plans[key]

    def initial(self, classes: int, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What trains, and the statistics of the norms that the run decides on."""
        template = self.template(classes)
        return _apart(lambda: template.initial(seed))

    def built(self, classes: int, seed: int) -> nn.Module:
        """A new module, drawn from the seed, with the file's weights if there is one; torch's
        global generator is put back.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % 2**63)
            module: object = self.build(classes)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"it builds something of type {type(module).__name__}, no module")
        if not list(module.parameters()):
            raise ConfigError("its module has no parameters, so there is nothing to train")
        if self.weights is not None:
            load_weights(module, self.weights, head_of(module, classes))
        return module.eval()


class ModuleTemplate:
    """The module for so many classes with stand-ins in it, and where its tensors go."""

    def __init__(self, net: ModuleNet, classes: int) -> None:
        self.net, self.classes, self.current = net, classes, CurrentRun()
        module = net.built(classes, FIXED_SEED)
        self.head = head_of(module, classes)
        self.trained = names_that_train(module, net.train, self.head)
        put_stand_ins(module, self.current)
        self.module, parts = module, list(module.modules())
        self.norms = [part for part in parts if isinstance(part, ModuleNorm)]
        self.drops = any(isinstance(part, ModuleDropout) for part in parts)
        for norm in self.norms:
            norm.is_frozen = self._is_frozen(norm)
        self.places = list(_places(module))
        self.own = {place.name: place.holder[place.key] for place in self.places}
        self.recurrent = [part for part in parts if isinstance(part, nn.RNNBase)]
        self.frozen = {
            name: value.detach() for name, value in self.own.items() if name not in self.trained
        }
        self.is_written: set[str] = set()
        self.writes_images = False
        self.attends = any(isinstance(part, nn.MultiheadAttention) for part in parts)
        self._frozen_on: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}

    def _is_frozen(self, norm: ModuleNorm) -> bool:
        """A norm trains with its weight or bias; one that has none trains where all does."""
        if self.net.norm == FROZEN:
            return True
        own = [name for name, _ in norm.named_parameters()]
        trains = any(f"{norm.name}.{each}" in self.trained for each in own)
        return not trains if own else self.net.train != ALL

    def __call__(self, layers: Layers, images: Tensor) -> Tensor:
        frozen = self.frozen_on(images.device, images.dtype)
        if self.is_written:
            frozen = frozen | {name: frozen[name].clone() for name in self.is_written}
        if self.writes_images:
            images = images.clone()
        return self._run(layers, images, frozen)

    def plan(self, shape: tuple[int, ...]) -> NetPlan:
        """Learnt in a run on two images: many modules take no empty batch."""
        images = torch.zeros(2, *shape)
        seen = NetPlan(images=2, head=self.head, drops=self.drops)
        layers = Layers(self.classes, 1.0, 0.0, lambda name, *_: self.own[name], seen.see)
        frozen = {name: value.clone() for name, value in self.frozen.items()}
        watch = AttentionWatch()
        try:
            with torch.no_grad(), watch:
                logits: object = self._run(layers, images, frozen)
        except Exception as error:  # whatever a module of somebody's raises
            first_line = str(error).partition("\n")[0]
            raise ConfigError(
                f"its module cannot take images of {' x '.join(map(str, shape))} "
                f"({type(error).__name__}: {first_line})"
            ) from error
        self.is_written |= {name for name, value in frozen.items() if value._version}
        self.writes_images |= images._version > 0
        self.attends |= watch.found
        for name in self.trained:
            seen.parameters[name] = (tuple(self.own[name].shape), zeros, 1)
        output = tuple(logits.shape) if isinstance(logits, Tensor) else ()
        return replace(seen, output=output)

    def initial(self, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        module = self.net.built(self.classes, seed)
        drawn = dict(module.named_parameters())
        parameters = {name: drawn[name].detach() for name in self.trained}
        statistics: dict[str, Tensor] = {}
        for norm in self.norms:
            part = module.get_submodule(norm.name)
            if not norm.is_frozen and part.running_mean is not None:
                statistics[f"{norm.name}.mean"] = part.get_buffer("running_mean")
                statistics[f"{norm.name}.variance"] = part.get_buffer("running_var")
        return parameters, statistics

    @cached_property
    def digest(self) -> str | None:
        """Of what is frozen, if anything is that a file could change."""
        kept = {f"{norm.name}.running_{part}" for norm in self.norms for part in ("mean", "var")}
        parameters = {name for name, _ in self.module.named_parameters()} | kept
        frozen = {name: value for name, value in self.frozen.items() if name in parameters}
        return digest_of_tensors(frozen) if frozen else None

    def frozen_on(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """What does not train, there and in that precision."""
        key = (device, dtype)
        if key not in self._frozen_on:
            self._frozen_on[key] = _apart(lambda: _moved(self.frozen, device, dtype))
        return self._frozen_on[key]

    def _run(self, layers: Layers, images: Tensor, frozen: Mapping[str, Tensor]) -> Tensor:
        values = dict(frozen)
        for name in self.trained:
            values[name] = layers.parameter(name, (), zeros, 1)
        self._put(values)
        self.current.layers = layers
        try:
            with sdpa_kernel(SDPBackend.MATH) if self.attends else nullcontext():
                output = self.module(images)
        except RuntimeError as error:
            if NOT_LIFTED not in str(error):
                raise
            raise ConfigError(self._refusal(error)) from error
        finally:
            self.current.layers = None
            self._put(self.own)
        logits: Tensor = getattr(output, "logits", output)
        return logits

    def _refusal(self, error: RuntimeError) -> str:
        """Which layer, in which line, has no rule under `vmap`."""
        forwards = {}
        for name, part in self.module.named_modules():
            layer = f"the layer '{name}'" if name else "the module"
            forwards[getattr(part.forward, "__code__", None)] = f"{layer}, a {type(part).__name__},"
        where = "the module"
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code in forwards:
                line = f"{frame.f_code.co_filename}, line {number}"
                where = f"{forwards[frame.f_code]} in {line}"
        return (
            f"{where}: this cannot be done for several clients at once; it looks at numbers, by "
            "`if`, .item() or a boolean mask, or torch has no rule for it; change it, or train "
            "with --executor loop"
        )

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for holder, key, name in self.places:
            holder[key] = values[name]
        for part in self.recurrent:
            part._flat_weights = [part._parameters[name] for name in part._flat_weights_names]


class AttentionWatch(TorchFunctionMode):
    """Sees whether attention is computed by torch's function for it."""

    found = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            self.found = True
        return function(*args, **(kwargs or {}))


class Place(NamedTuple):
    """Where a module holds a tensor, and what the tensor is called; tied ones have one name."""

    holder: dict[str, Any]
    key: str
    name: str


def _places(module: nn.Module) -> Iterator[Place]:
    named: dict[int, str] = {}
    for prefix, part in module.named_modules():
        unused = isinstance(part, ModuleNorm) and not part.is_frozen
        for holder in (part._parameters, {} if unused else part._buffers):
            for key, value in holder.items():
                if value is not None:
                    own = f"{prefix}.{key}" if prefix else key
                    yield Place(holder, key, named.setdefault(id(value), own))


def head_of(module: nn.Module, classes: int) -> str:
    """The name of the last linear layer with a row for each class, if there is one."""
    found = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == classes
    ]
    return found[-1] if found else ""


def names_that_train(module: nn.Module, train: str, head: str) -> tuple[str, ...]:
    """The parameters that `train` means, in the module's order."""
    parameters = dict(module.named_parameters())
    if train == ALL:
        names = tuple(name for name, value in parameters.items() if value.requires_grad)
        if not names:
            raise ConfigError("no parameter of its module requires a gradient")
        return names
    chosen = set()
    for pattern in train.split(","):
        pattern = pattern.strip()
        if pattern == HEAD and not head:
            raise ConfigError(
                f"train '{HEAD}': its module has no linear layer with a row for each class; name "
                "the parameters by a pattern"
            )
        wanted = head if pattern == HEAD else pattern
        found = [
            name for name in parameters if any(fnmatchcase(name, f"{wanted}{end}") for end in ENDS)
        ]
        if not found:
            told = ", ".join(list(parameters)[-TOLD:])
            raise ConfigError(
                f"train '{pattern}': no parameter is called so; there are {len(parameters)}, the "
                f"last of them {told}"
            )
        chosen |= set(found)
    return tuple(name for name in parameters if name in chosen)


def _moved(
    tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    moved = {
        name: value.to(device, dtype if value.is_floating_point() else None)
        for name, value in tensors.items()
    }
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # whoever asked may compute in another stream
    return moved


def _apart(function: Callable[[], T]) -> T:
    """In a thread of its own, where no `vmap`, `grad`, recording or mode is going on."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        return pool.submit(function).result()


_known: dict[Any, ModuleNet] = {}


def _known_or_new(build: Build, weights: Path | None, train: str, norm: str | None) -> ModuleNet:
    """The net of these in this process: what was learnt of it is not learnt anew."""
    known = _known.get(_key(build, weights, train, norm))
    return known or ModuleNet(build, weights, train, norm)


def _key(build: Build, *others: Any) -> Any:
    """A function by its name and code, for a pickle may bring a copy of it."""
    if not isinstance(build, FunctionType) or build.__closure__ or build.__defaults__:
        return build, *others
    return build.__module__, build.__qualname__, build.__code__, *others

"""Files of weights: tensors by the names that a module's `state_dict` gives them."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedglean.errors import ConfigError

#: So many names are told of those that do not fit.
TOLD = 3
_HOW = "save a module's state_dict() as safetensors, or with torch.save"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name. Nothing in it is run: of a pickle only weights are read."""
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(
            f"the weights {path} cannot be read: {error.strerror or error}"
        ) from error
    except Exception as error:  # of many kinds, by what it is that was taken for weights
        raise ConfigError(f"{path} is not a file of weights alone; {_HOW}") from error
    if not isinstance(tensors, Mapping) or not tensors:
        raise ConfigError(f"{path} holds no tensors by name; {_HOW}")
    others = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if others:
        raise ConfigError(
            f"{path} holds something beside tensors, {_told(others)}; {_HOW}, and nothing else"
        )
    return dict(tensors)


def load_weights(module: nn.Module, path: Path, head: str) -> None:
    """Put a file's tensors into a module. All of its parameters and batch-norm statistics must be
    there and finite; only the last layer may lack or be of other classes, and stays as it is.
    """
    found = read_weights(path)
    there = {name: tuple(value.shape) for name, value in found.items()}
    state = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    of_head = {name for name in (f"{head}.weight", f"{head}.bias") if name in state}
    is_other_head = any(there.get(name) != state[name] for name in of_head)
    needed = {name for name in _needed(module) if not (is_other_head and name in of_head)}
    if lacking := [name for name in state if name in needed and name not in there]:
        strange = [name for name in there if name not in state]
        instead = f", and has {_told(strange)}" if strange else ""
        raise ConfigError(f"{path} does not fit the module: it lacks {_told(lacking)}{instead}")
    if other := [name for name in state if name in needed and there[name] != state[name]]:
        sizes = [f"{name} ({_size(there[name])}, not {_size(state[name])})" for name in other]
        raise ConfigError(f"{path} does not fit the module: the shape of {_told(sizes)} is another")
    kept = of_head if is_other_head else set()
    used = {
        name: value
        for name, value in found.items()
        if name not in kept and state.get(name) == there[name]
    }
    if bad := [name for name, value in used.items() if not bool(torch.isfinite(value).all())]:
        raise ConfigError(f"{path} has numbers that are not finite in {_told(bad)}")
    module.load_state_dict(used, strict=False)


def _needed(module: nn.Module) -> set[str]:
    """What a file must have, of tied tensors under one name."""
    needed = {name for name, _ in module.named_parameters()}
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.running_mean is not None:
            needed |= {f"{name}.running_mean", f"{name}.running_var"}
    return needed


def digest_of_file(path: Path) -> str:
    """Of what a file holds; read once for each time that it was written."""
    try:
        about = path.stat()
        return _digest(path, about.st_mtime_ns, about.st_size)
    except OSError as error:
        raise ConfigError(f"the weights {path} cannot be read: {error.strerror}") from error


@cache
def _digest(path: Path, written: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Of names, dtypes, shapes and numbers."""
    total = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _told(names: list[str]) -> str:
    more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
    return ", ".join(names[:TOLD]) + more


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"

"""`from_module`: what a model's name stands for, of any torch module."""

from os import PathLike, fspath
from pathlib import Path

from fedglean.errors import ConfigError, unknown
from fedglean.models.module import ALL, FROZEN, Build, ModuleNet
from fedglean.models.nets import NetKind
from fedglean.models.norm import NORMS


def from_module(
    build: Build,
    weights: PathLike[str] | str | None = None,
    train: str = ALL,
    norm: str | None = None,
) -> NetKind:
    """A model of the torch module that `build(classes)` returns, for a file's table: `MODELS =
    {"mine": from_module(build)}`.

    `weights` is a file of its tensors (.safetensors, or .pt with weights alone). What trains is
    "all" that requires a gradient, the "head" (the last linear layer), or parameters and layers by
    name, such as "head,blocks.11": only that is sent, averaged and stored. Batch norms become
    `norm`, by default that of the run; with "frozen" all keep the statistics that they came with,
    and so do in any case those whose weights do not train.
    """
    if not callable(build):
        raise ConfigError(
            f"from_module takes a function of the number of classes, not a {type(build).__name__}; "
            "write from_module(lambda classes: ...)"
        )
    if norm is not None and norm not in (*NORMS, FROZEN):
        raise unknown("norm", norm, (*NORMS, FROZEN))
    path = None if weights is None else Path(fspath(weights)).expanduser().resolve()
    name = getattr(build, "__name__", type(build).__name__)
    return NetKind(ModuleNet(build, path, train, norm), f"the torch module of {name}")

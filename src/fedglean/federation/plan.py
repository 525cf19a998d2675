"""All of a run that a branch must know to answer, and how client functions are named to it."""

import importlib
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Self

import torch

from fedglean.data.dataset import Dataset
from fedglean.engine.batches import Setting
from fedglean.inputs.views import Recipe
from fedglean.method import ClientFunction, Method
from fedglean.names import Names
from fedglean.runs.config import Config, make_method, resolve


class Unable(Exception):
    """Why a branch cannot answer, in words that tell nothing of its files: the hub reads them."""


@dataclass(frozen=True)
class RunPlan:
    method: str
    settings: dict[str, Any]
    strong: str
    dtype: str
    threads: int
    deterministic: bool
    classes: list[str]
    mean: list[float]
    std: list[float]
    flip: bool
    pad: int
    additions: list[str]

    @classmethod
    def of(cls, config: Config, dataset: Dataset) -> Self:
        return cls(
            method=config.method,
            settings=dict(config.settings),
            strong=config.strong,
            dtype=config.engine.dtype,
            threads=config.engine.threads,
            deterministic=config.engine.deterministic,
            classes=list(dataset.classes),
            mean=list(dataset.mean),
            std=list(dataset.std),
            flip=bool(dataset.flip),
            pad=int(dataset.pad),
            additions=_additions(config),
        )

    def make_method(self, names: Names) -> Method:
        """The method, its settings checked as those of a user are.

        Code is never sent: the names are those of this side.
        """
        layer = {"settings": self.settings, "strong": self.strong}
        config = resolve(self.method, layer, names=names)
        if not set(self.additions) <= set(_additions(config)):
            raise Unable(
                f"the --use file or package that defines '{self.method}' is not the hub's; copy "
                "the hub's here"
            )
        return make_method(config)

    def setting(self, names: Names) -> Setting:
        recipe = Recipe(
            tuple(self.mean),
            tuple(self.std),
            self.flip,
            self.pad,
            self.strong,
            names.tables["VIEWS"],
            names.tables["STRONG"],
        )
        return Setting(recipe, {"float32": torch.float32, "float64": torch.float64}[self.dtype])


def _additions(config: Config) -> list[str]:
    """Digests of the code from elsewhere that the run needs."""
    return config.names.digests([("METHODS", config.method), ("STRONG", config.strong)])


def function_name(client: ClientFunction, method: Method) -> str:
    """The client's side of an exchange by name: one of the method's own functions, or one that
    methods share.
    """
    if getattr(client, "__self__", None) is method:
        return client.__name__
    name = f"{client.__module__}:{client.__qualname__}"
    if _shared(name) is not client:
        raise TypeError(
            f"{name} cannot be named to a branch: it is neither the method's own nor one of its "
            "package"
        )
    return name


def function_of(name: str, method: Method) -> ClientFunction:
    found: Any = None
    if ":" in name:
        found = _shared(name)
    elif isinstance(getattr(type(method), name, None), FunctionType) and name[0] != "_":
        found = getattr(method, name)
    if found is None:
        raise Unable(f"there is no client function '{name[:100]}' in {type(method).__name__}")
    return found  # type: ignore[no-any-return]


def _shared(name: str) -> FunctionType | None:
    """A function of the methods' package and of no other."""
    module, _, own = name.partition(":")
    if not module.startswith("fedglean.methods."):
        return None
    found = getattr(importlib.import_module(module), own, None)
    return found if isinstance(found, FunctionType) and found.__module__ == module else None

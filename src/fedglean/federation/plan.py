"""All of a run that a branch must know to answer, and how client functions are named to it."""

import importlib
import sys
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from types import FunctionType
from typing import Any, Self

import torch

from fedglean.data.dataset import Dataset
from fedglean.data.photos import ImageForm
from fedglean.engine.batches import Setting
from fedglean.inputs.views import Recipe
from fedglean.method import ClientFunction, Method
from fedglean.names import Names
from fedglean.runs.config import Config, EngineConfig, make_method, resolve


class Unable(Exception):
    """Why a branch cannot answer, in words that tell nothing of its files: the hub reads them."""


@dataclass(frozen=True)
class RunPlan:
    method: str
    settings: dict[str, Any]
    strong: str
    engine: EngineConfig
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    pad: int
    additions: list[str]
    form: ImageForm

    @classmethod
    def of(cls, config: Config, dataset: Dataset) -> Self:
        return cls(
            config.method,
            dict(config.settings),
            config.strong,
            config.engine,
            dataset.classes,
            dataset.mean,
            dataset.std,
            bool(dataset.flip),
            int(dataset.pad),
            _additions(config),
            form_of(config, dataset),
        )

    def make_method(self, names: Names) -> Method:
        """The method by this side's names, its settings checked as a user's; no code is sent."""
        layer = {"settings": self.settings, "strong": self.strong}
        config = resolve(self.method, layer, names=names)
        if not set(self.additions) <= set(_additions(config)):
            raise Unable(
                f"the --use file or package that defines '{self.method}' is not the hub's; copy "
                "the hub's here"
            )
        return make_method(config)

    def setting(self, names: Names) -> Setting:
        look, tables = (self.mean, self.std, self.flip, self.pad), names.tables
        recipe = Recipe(*look, self.strong, tables["VIEWS"], tables["STRONG"])
        return Setting(recipe, getattr(torch, self.engine.dtype))


def form_of(config: Config, dataset: Dataset) -> ImageForm:
    """That of the hub's images, to which every branch brings its own."""
    return replace(config.data.form, channels=dataset.test_images.shape[1])


def _additions(config: Config) -> list[str]:
    """Digests of the code from elsewhere that the run needs."""
    return config.names.digests([("METHODS", config.method), ("STRONG", config.strong)])


def function_name(client: ClientFunction, method: Method) -> str:
    """How a branch is told which client function to run.

    NAME is a function of the method's class, :NAME one of the module that defines the class, and
    MODULE:NAME one that methods of the package share.
    """
    if getattr(client, "__self__", None) is method:
        return client.__name__
    for name in (f":{client.__name__}", f"{client.__module__}:{client.__name__}"):
        if _find(name, method) is client:
            return name
    raise TypeError(
        f"{client.__module__}:{client.__qualname__} cannot be named to a branch: it is no function "
        "of the method's class, of the module that defines the class, or of the methods' package"
    )


def function_of(name: str, method: Method) -> ClientFunction:
    """The client function of that name, of this side's own code."""
    found = _find(name, method)
    if found is None:
        raise Unable(f"there is no client function '{name[:100]}' in {type(method).__name__}")
    return found


def _find(name: str, method: Method) -> ClientFunction | None:
    module, is_beside_class, own = name.rpartition(":")
    if not is_beside_class:
        is_public = not name.startswith("_")
        is_function = isinstance(getattr(type(method), name, None), FunctionType)
        return getattr(method, name) if is_public and is_function else None
    modules = [kind.__module__ for kind in type(method).__mro__]
    if module.startswith("fedglean.methods."):
        modules = [importlib.import_module(module).__name__]
    elif module:
        modules = []
    for where in modules:
        found = getattr(sys.modules.get(where), own, None)
        # Of a module only what can be a client function, and is of the same package.
        if iscoroutinefunction(found) and _package(found.__module__) == _package(where):
            return found
    return None


def _package(module: str) -> str:
    return module.partition(".")[0]

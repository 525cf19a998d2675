"""What hub and branches tell each other, as bytes: tensors in safetensors, all else in JSON, a
checksum over both.

| letter        | from   | holds                                                              |
|---------------|--------|--------------------------------------------------------------------|
| `Question`    | hub    | who are you? with the classes                                      |
| `Declaration` | branch | its number, its images' count and shape, two sums a channel        |
| `Order`       | hub    | an `Ask` for one branch, with what only this one is told           |
| `Broadcast`   | hub    | what all are sent, beside the order                                |
| `Answer`      | branch | trees, weights, report, counts of pseudo-labels; or why nothing    |

Nothing is ever unpickled, nothing that a branch sends chooses code or architecture at the hub, and
whatever cannot be read is `Malformed`, with the reason. Every letter names the code that wrote it,
and is read by the same code alone: two versions that understand each other by chance may still
train differently.
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedglean import tree
from fedglean.data.dataset import Dataset
from fedglean.engine.batches import Setting
from fedglean.errors import FedgleanError
from fedglean.inputs.views import Recipe
from fedglean.method import Method, Talk, Upload
from fedglean.names import digests
from fedglean.runs.config import Config, make_method, resolve
from fedglean.sealed import pack, unpack
from fedglean.tree import Record, Tree
from fedglean.version import __version__

T = TypeVar("T")

#: Of a letter without tensors.
SMALL = 1 << 20
#: One message of Flower's; the hub is trusted with as much.
LARGEST = (1 << 31) - 1


class Malformed(Exception):
    """A letter that cannot be read, in a sentence."""


class Unable(Exception):
    """Why a branch cannot answer, in words that tell nothing of its files: the hub reads them."""


@dataclass(frozen=True)
class Plan:
    """All of a run that a branch must know, so that it can be asked without having been told
    anything before.
    """

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
        engine = config.engine
        return cls(
            config.method,
            dict(config.settings),
            config.strong,
            engine.dtype,
            engine.threads,
            engine.deterministic,
            list(dataset.classes),
            list(dataset.mean),
            list(dataset.std),
            bool(dataset.flip),
            int(dataset.pad),
            digests(config.use, {"METHODS": config.method, "STRONG": config.strong}),
        )

    def make_method(self, use: str | None = None) -> Method:
        """The method, its settings checked as those of a user are. Code is never sent: `use` is a
        file of this side.
        """
        own = {} if use is None else {"use": use}
        config = resolve(self.method, {"settings": self.settings, "strong": self.strong, **own})
        if not set(self.additions) <= set(
            digests(config.use, {"METHODS": config.method, "STRONG": config.strong})
        ):
            raise Unable(
                f"the --use file or package that defines '{self.method}' is not the hub's; copy "
                "the hub's here"
            )
        return make_method(config)

    def setting(self) -> Setting:
        recipe = Recipe(tuple(self.mean), tuple(self.std), self.flip, self.pad, self.strong)
        return Setting(recipe, {"float32": torch.float32, "float64": torch.float64}[self.dtype])


@dataclass(frozen=True)
class Question:
    classes: list[str]


@dataclass(frozen=True)
class Declaration:
    """`sums` and `squares` are of all pixels in 0..255, a whole number a channel."""

    number: int
    name: str
    labelled: int
    unlabelled: int
    shape: list[int]
    sums: list[int]
    squares: list[int]


@dataclass(frozen=True)
class Order:
    """`version` is the state that the branch goes on from, `settled` the one that the hub may still
    go back to.
    """

    run: str
    round: int
    ask: int
    client: int
    key: int
    function: str
    labelled: int
    unlabelled: int
    plan: Plan
    version: str = ""
    settled: str = ""


@dataclass(frozen=True)
class Broadcast:
    """What all who are asked are sent: a letter of its own, so that Flower takes it once."""

    round: int


@dataclass(frozen=True)
class Answer:
    """An upload, or none: the branch had nothing to say, or could not (`error`).

    `version` is the new state that it keeps. `seen` and `trusted` count its pseudo-labels.
    """

    round: int
    ask: int
    client: int
    version: str = ""
    seen: int = 0
    trusted: int = 0
    uploads: bool = False
    report: dict[str, Any] | None = None
    error: str = ""


@cache
def own_version() -> str:
    """Of the package, with a digest of its code: between two releases the number alone would say
    nothing.
    """
    code = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        code.update(b"\n".join([name.encode(), *path.read_bytes().splitlines()]))
    return f"{__version__} (code {code.hexdigest()[:8]})"


#: Letters in which there may be models: what branches send chooses none at the hub.
FROM_HUB = (Order, Broadcast)


def written(letter: Any, content: Tree = None) -> bytes:
    return pack(content, **{type(letter).__name__: asdict(letter), "version": own_version()})


def read(kind: type[T], content: bytes, limit: int = SMALL) -> tuple[T, Tree]:
    """A letter of that kind and the tree that came with it."""
    if len(content) > limit:
        raise Malformed(f"{len(content)} bytes, but at most {limit} were expected")
    try:
        if kind not in FROM_HUB:
            _check_no_models(content)
        body, notes = unpack(content, Path("it"))
        writer = str(notes.get("version", "without a version"))[:60]
        if writer != own_version():
            raise ValueError(
                f"it comes from fedglean {writer}, and this is fedglean {own_version()}; install "
                "the same on the hub "
                "and on every branch"
            )
        return _letter(kind, notes[kind.__name__]), body
    except Exception as error:  # whatever a hostile letter trips over
        raise Malformed(_sentence(error)) from error


def read_answer(content: bytes, limit: int) -> tuple[Answer, Upload | None]:
    """A branch's answer. It holds tensors by name and no model: what those mean, the hub knows from
    what it asked.
    """
    answer, body = read(Answer, content, limit)
    if not answer.uploads:
        return answer, None
    try:
        trees, weights = dict(body["trees"]), dict(body["weights"])
        for part in (*trees.values(), *weights.values()):
            _check_flat(part)
        keep = Record(version=answer.version) if answer.version else None
        return answer, Upload(weight=weights, keep=keep, report=answer.report, **trees)
    except Exception as error:
        raise Malformed(_sentence(error)) from error


def trees_of(upload: Upload) -> Tree:
    """What of an upload is sent: tensors by name, and weights that are numbers or such trees
    too.
    """
    trees = {name: tree.named(part) for name, part in upload.trees.items()}
    weights = {name: upload.weight(name) for name in upload.trees}
    plain = {
        name: each if isinstance(each, int | float) else tree.named(each)
        for name, each in weights.items()
    }
    return {"trees": trees, "weights": plain}


def function_name(client: Callable[..., Talk], method: Method) -> str:
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


def function_of(name: str, method: Method) -> Callable[..., Talk]:
    if ":" in name:
        found: Any = _shared(name)
    else:
        own = isinstance(getattr(type(method), name, None), FunctionType) and not name.startswith(
            "_"
        )
        found = getattr(method, name) if own else None
    if found is None:
        raise Malformed(f"there is no client function '{name}' in {type(method).__name__}")
    return found  # type: ignore[no-any-return]


def _shared(name: str) -> FunctionType | None:
    """A function of the methods' package and of no other."""
    module, _, own = name.partition(":")
    if not module.startswith("fedglean.methods."):
        return None
    found = getattr(importlib.import_module(module), own, None)
    return found if isinstance(found, FunctionType) and found.__module__ == module else None


def _check_no_models(content: bytes) -> None:
    """Before anything is made of the letter: a model is as large as its few words say."""

    def check(node: dict[str, Any]) -> None:
        if "model" in node:
            raise ValueError("a model, but tensors were expected")

    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    json.loads(json.loads(header["__metadata__"]["fedglean"])["tree"], object_hook=check)


def _check_flat(part: Tree) -> None:
    """What is nested deeply enough ends whoever walks through it."""
    leaves = part.values() if isinstance(part, dict) else [part]
    if not all(isinstance(leaf, Tensor | int | float) for leaf in leaves):
        raise ValueError("expected numbers, or tensors by name, and no trees in trees")


def _letter(kind: type[T], notes: Any) -> T:
    hints = get_type_hints(kind)
    if not isinstance(notes, Mapping) or notes.keys() != hints.keys():
        raise ValueError(f"{kind.__name__} has fields {', '.join(hints)}")
    for name, value in notes.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} is not of type {hints[name]}")
    nested = {each.name: Plan for each in fields(kind) if hints[each.name] is Plan}  # type: ignore[arg-type]
    return kind(
        **{name: _letter(Plan, value) if name in nested else value for name, value in notes.items()}
    )


def _fits(value: Any, hint: Any) -> bool:
    if hint is Plan:
        return isinstance(value, Mapping)
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict)
    if get_args(hint):  # a union
        return any(_fits(value, each) for each in get_args(hint))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _sentence(error: Exception) -> str:
    text = (
        str(error)
        if isinstance(error, FedgleanError | ValueError)
        else f"{type(error).__name__}: {error}"
    )
    return " ".join(text.split())[:300]

"""What hub and branches tell each other, as bytes: safetensors and JSON under a checksum.

| letter        | from   | holds                                                              |
|---------------|--------|--------------------------------------------------------------------|
| `Question`    | hub    | who are you? with the classes and the images' form                 |
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
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedglean import schema, tree
from fedglean.data.photos import AS_THEY_ARE, ImageForm
from fedglean.errors import FedgleanError
from fedglean.federation.plan import RunPlan
from fedglean.method import Declared, Upload
from fedglean.models.nets import NetKind, net_of
from fedglean.sealed import pack, unpack
from fedglean.tree import Record, Tree
from fedglean.version import __version__

T = TypeVar("T")

#: Bytes of a letter without tensors.
SMALL = 1 << 20
#: Bytes of one message of Flower's; the hub is trusted with as much.
LARGEST = (1 << 31) - 1


class Malformed(Exception):
    """A letter that cannot be read, in a sentence."""


@dataclass(frozen=True)
class Question:
    """`form` is that of the hub's images, to which a branch brings its own."""

    classes: list[str]
    form: ImageForm = AS_THEY_ARE


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

    @property
    def declared(self) -> Declared:
        return Declared(self.labelled, self.unlabelled)


@dataclass(frozen=True)
class Order:
    """An `Ask` for one branch.

    `version` is the state that the branch goes on from, `settled` the one that the hub may still go
    back to.
    """

    run: str
    round: int
    ask: int
    client: int
    key: int
    function: str
    labelled: int
    unlabelled: int
    plan: RunPlan
    version: str = ""
    settled: str = ""


@dataclass(frozen=True)
class Broadcast:
    """What all who are asked are sent: a letter of its own, so that it is carried once."""

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


#: Letters in which there may be models: what branches send chooses none at the hub.
FROM_HUB = (Order, Broadcast)


@cache
def own_version() -> str:
    """Of the package, with a digest of its code: between two releases a number says nothing."""
    code = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        code.update(b"\n".join([name.encode(), *path.read_bytes().splitlines()]))
    return f"{__version__} (code {code.hexdigest()[:8]})"


def write(letter: Any, content: Tree = None) -> bytes:
    notes = {type(letter).__name__: schema.write(letter), "version": own_version()}
    return pack(content, **notes)


def read(
    kind: type[T], content: bytes, limit: int = SMALL, net: Callable[[str], NetKind] = net_of
) -> tuple[T, Tree]:
    """A letter of that kind and the tree that came with it; `net` is what models' names mean."""
    if len(content) > limit:
        raise Malformed(f"{len(content)} bytes, but at most {limit} were expected")
    try:
        if kind not in FROM_HUB:
            _check_no_models(content)
        body, notes = unpack(content, Path("it"), net)
        _check_version(str(notes.get("version", "without a version"))[:60])
        if kind.__name__ not in notes:
            raise ValueError(f"a letter of another kind than {kind.__name__}")
        return schema.read(kind, notes[kind.__name__], kind.__name__), body
    except Exception as error:  # whatever a hostile letter trips over
        raise Malformed(_sentence(error)) from error


def read_answer(content: bytes, limit: int) -> tuple[Answer, Upload | None]:
    """A branch's answer: tensors by name and no model; what they mean, the hub has asked for."""
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


def write_answer(answer: Answer, upload: Upload | None) -> bytes:
    """Of an upload tensors by name are sent, and weights that are numbers or such trees too."""
    if upload is None:
        return write(answer)
    trees, weights = {}, {}
    for name, part in upload.trees.items():
        weight = upload.weight(name)
        trees[name] = tree.named(part)
        weights[name] = weight if isinstance(weight, int | float) else tree.named(weight)
    return write(answer, {"trees": trees, "weights": weights})


def _check_version(writer: str) -> None:
    if writer != own_version():
        raise ValueError(
            f"it comes from fedglean {writer}, and this is fedglean {own_version()}; install the "
            "same on the hub and on every branch"
        )


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


def _sentence(error: Exception) -> str:
    text = str(error)
    if not isinstance(error, FedgleanError | ValueError):
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]

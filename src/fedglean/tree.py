"""Trees: models, tensors and numbers in dictionaries and lists; what methods send, keep and train.

`named` and `rebuild` turn a tree into named tensors and back, for the gate and for sums; `encode`
and `decode` do so without a template, for files and messages: JSON for the shape, tensors by name,
never pickle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedglean.errors import ConfigError, StorageError
from fedglean.models import Architecture, Model
from fedglean.models.nets import NetKind, net_of

Tree = Any


class Record(dict[str, Any]):
    """A dictionary whose entries read as attributes: `state.model`, `message.rate`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "nothing"
            raise AttributeError(f"no '{name}' here; there is {known}") from None


pytree.register_pytree_node(
    Record,
    lambda record: (list(record.values()), tuple(record)),
    lambda values, names: Record(zip(names, values, strict=True)),
    serialized_type_name="fedglean.Record",
)


class State:
    """Base of what the hub of a method goes on from, where that is more than one model.

    Subclasses are frozen dataclasses of trees, and trees themselves, stored by the fields' names.
    """

    def __init_subclass__(cls) -> None:
        pytree.register_pytree_node(
            cls,
            lambda state: (list(_fields(state).values()), tuple(_fields(state))),
            lambda values, names: cls(**dict(zip(names, values, strict=True))),
        )


def _fields(state: State) -> dict[str, Tree]:
    return {each.name: getattr(state, each.name) for each in fields(state)}  # type: ignore[arg-type]


def restore(stored: Tree, like: Tree) -> Tree:
    """A state as it is read from a file, in the classes of another one of the same method."""
    if not isinstance(stored, Mapping) or not isinstance(like, State | Mapping):
        return stored
    forms = _fields(like) if isinstance(like, State) else like
    parts = {name: restore(part, forms.get(name)) for name, part in stored.items()}
    if isinstance(like, State) and isinstance(stored, Record):
        return type(like)(**parts)
    return type(stored)(parts)  # type: ignore[call-arg]


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """`function` at every leaf; further trees have the same shape."""
    return pytree.tree_map(function, tree, *others)


def zeros(tree: Tree) -> Tree:
    return map(torch.zeros_like, tree)


def add(a: Tree, b: Tree) -> Tree:
    return map(torch.add, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    return map(torch.sub, a, b)


def select(condition: Tensor, yes: Tree, no: Tree) -> Tree:
    """`yes` where the scalar condition holds, else `no`: an `if` that can be lifted."""
    return map(lambda a, b: torch.where(condition, a, b), yes, no)


def norm(tree: Tree) -> Tensor:
    """Euclidean length of all leaves together."""
    squares = [leaf.square().sum() for leaf in pytree.tree_leaves(tree)]
    return torch.sqrt(sum(squares, torch.zeros(())))


def to_device(tree: Tree, device: torch.device | None) -> Tree:
    """The same tree with its tensors on a device."""
    if device is None:
        return tree
    return map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def trainable(tree: Tree) -> Tree:
    """The tree as training takes and returns it: without static statistics, soon out of date."""

    def is_model(node: Tree) -> bool:
        return isinstance(node, Model)

    return pytree.tree_map(
        lambda node: node.for_training() if is_model(node) else node, tree, is_leaf=is_model
    )


def _children(tree: Tree) -> list[tuple[str, Tree]] | None:
    # A list: compiled by torch 2.11, a list's iterator counts as false, and what is in it was
    # passed over.
    if isinstance(tree, Model):
        return [*tree.parameters.items(), *tree.statistics.items()]
    if isinstance(tree, State):
        return list(_fields(tree).items())
    if isinstance(tree, Mapping):
        return [(str(name), child) for name, child in tree.items()]
    if isinstance(tree, list | tuple):
        return [(str(place), child) for place, child in enumerate(tree)]
    return None


def named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a tree by path; other leaves are left out."""
    if isinstance(tree, Tensor):
        return {prefix or "value": tree}
    leaves: dict[str, Tensor] = {}
    for name, child in _children(tree) or ():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(child, Tensor):
            leaves[path] = child
        else:
            leaves |= named(child, path)
    return leaves


def rebuild(template: Tree, leaves: Mapping[str, Tensor], prefix: str = "") -> Tree:
    """The template with its tensors replaced by those of the same path."""
    if isinstance(template, Tensor):
        return leaves[prefix or "value"]
    children = _children(template)
    if children is None:
        return template
    parts = [
        rebuild(child, leaves, f"{prefix}/{name}" if prefix else name) for name, child in children
    ]
    if isinstance(template, Model):
        count = len(template.parameters)
        parameters = dict(zip(template.parameters, parts[:count], strict=True))
        statistics = dict(zip(template.statistics, parts[count:], strict=True))
        return Model(template.architecture, parameters, statistics)
    if isinstance(template, State):
        return type(template)(*parts)
    if isinstance(template, Mapping):
        return type(template)(zip(template, parts, strict=True))  # type: ignore[call-arg]
    return type(template)(parts)


def row(tree: Tree) -> Tensor:
    """All numbers of a tree in one vector, of its widest float dtype."""
    leaves = [leaf if leaf.dim() == 1 else leaf.reshape(-1) for leaf in named(tree).values()]
    numbers = torch.cat(leaves) if leaves else torch.zeros(0, dtype=torch.float64)
    return numbers if numbers.is_floating_point() else numbers.double()


def from_row(template: Tree, numbers: Tensor) -> Tree:
    """The tree of `row`, in the template's shapes and dtypes."""
    leaves = named(template)
    parts = torch.split(numbers, [leaf.numel() for leaf in leaves.values()])
    shaped = {
        path: part.reshape(leaf.shape).to(leaf.dtype)
        for (path, leaf), part in zip(leaves.items(), parts, strict=True)
    }
    return rebuild(template, shaped)


def encode(tree: Tree, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """(JSON, tensors by name) from which `decode` makes the same tree."""
    if isinstance(tree, Tensor):
        return {"tensor": prefix}, {prefix: tree.detach().contiguous()}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}, {}
    if isinstance(tree, Model):
        both = {"parameters": tree.parameters, "statistics": tree.statistics}
        parts, tensors = encode(both, prefix)
        return {"model": tree.architecture.to_json(), "parts": parts}, tensors
    if isinstance(tree, State):
        tree = Record(_fields(tree))
    if isinstance(tree, Mapping):
        keys, children = list(tree), list(tree.values())
        kind = "record" if isinstance(tree, Record) else "dict"
    elif isinstance(tree, list | tuple):
        keys, children = list(range(len(tree))), list(tree)
        kind = "list" if isinstance(tree, list) else "tuple"
    else:
        raise TypeError(
            f"a tree holds tensors, models, numbers, text and containers; {prefix} is a "
            f"{type(tree).__name__}"
        )
    specs, tensors = [], {}
    for key, child in zip(keys, children, strict=True):
        if not isinstance(key, str | int):
            raise TypeError(
                f"the keys of a tree must be text or whole numbers; {prefix} has the key {key!r}"
            )
        spec, inner = encode(child, f"{prefix}/{key}")
        if clash := inner.keys() & tensors.keys():
            raise TypeError(f"two tensors of a tree would both be called {sorted(clash)[0]}")
        specs.append(spec)
        tensors |= inner
    return {kind: specs, "keys": keys}, tensors


def decode(
    spec: Any, tensors: Mapping[str, Tensor], net: Callable[[str], NetKind] = net_of
) -> Tree:
    """What `encode` took apart, else refused. `net` says what a model's name stands for."""
    try:
        return _decode(spec, tensors, net)
    except (ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"the stored tree is damaged ({error})") from error


def _decode(spec: Any, tensors: Mapping[str, Tensor], net: Callable[[str], NetKind]) -> Tree:
    def inside(specs: Sequence[Any]) -> list[Tree]:
        return [_decode(child, tensors, net) for child in specs]

    match spec:
        case {"tensor": str(name)} if name in tensors:
            return tensors[name]
        case {"value": None | bool() | int() | float() | str() as value}:
            return value
        case {"model": architecture, "parts": parts}:
            inner = _decode(parts, tensors, net)
            whole = Architecture.from_json(architecture, net)
            return Model(whole, inner["parameters"], inner["statistics"])
        case {"record": list(specs), "keys": list(keys)}:
            return Record(zip(keys, inside(specs), strict=True))
        case {"dict": list(specs), "keys": list(keys)}:
            return dict(zip(keys, inside(specs), strict=True))
        case {"list": list(specs)}:
            return inside(specs)
        case {"tuple": list(specs)}:
            return tuple(inside(specs))
    raise StorageError("the stored tree is damaged: it names a part that is not there")


def size_in_bytes(tree: Tree) -> int:
    """What the tensors of a tree weigh when they are sent."""
    return sum(leaf.numel() * leaf.element_size() for leaf in named(tree).values())

"""Trees come apart into named tensors and together again, with and without a template."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from fedglean import tree
from fedglean.errors import StorageError
from fedglean.models import Architecture, Model
from fedglean.sealed import pack, unpack
from fedglean.tree import Record

RUNNING = Architecture("cnn", (1, 4, 4), 3, width=0.125, norm="running")
PLAIN = Architecture("mlp", (1, 2, 2), 2, width=0.001)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)


def tensor(shape: list[int], dtype: torch.dtype, start: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) + start).to(dtype)


TENSORS = st.builds(
    tensor, st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES), st.integers(0, 9)
)
MODELS = st.builds(
    lambda it, seed: it.initial(seed), st.sampled_from([RUNNING, PLAIN]), st.integers(0, 9)
)
PLAIN_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
)
NAMES = st.text("abcxyz.", min_size=1, max_size=4)


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(children, max_size=3)
    by_name = st.dictionaries(NAMES, children, max_size=3)
    return (
        several
        | several.map(tuple)
        | by_name
        | by_name.map(Record)
        | st.dictionaries(st.integers(), children)
    )


TREES = st.recursive(TENSORS | MODELS | PLAIN_LEAVES, containers, max_leaves=6)


def same(a: Any, b: Any) -> bool:
    """Equal down to types, dtypes and bits, without any of the functions under test."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, Model):
        return a.architecture == b.architecture and same(
            [a.parameters, a.statistics], [b.parameters, b.statistics]
        )
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def tensors_of(content: Any) -> list[torch.Tensor]:
    if isinstance(content, Model):
        return [*content.parameters.values(), *content.statistics.values()]
    if isinstance(content, torch.Tensor):
        return [content]
    inner = (
        content.values()
        if isinstance(content, dict)
        else content
        if isinstance(content, list | tuple)
        else ()
    )
    return [leaf for child in inner for leaf in tensors_of(child)]


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_tree_survives_json_and_back(content: Any) -> None:
    spec, tensors = tree.encode(content)
    assert same(tree.decode(json.loads(json.dumps(spec)), tensors), content)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_tree_survives_a_file_and_back(content: Any) -> None:
    restored, notes = unpack(pack(content, rounds=3, classes=("a", "b")), Path("x"))
    assert same(restored, content) and notes == {"rounds": 3, "classes": ["a", "b"]}


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_named_tensors_rebuild_the_tree_they_came_from(content: Any) -> None:
    leaves = tree.named(content)
    assert same(list(leaves.values()), tensors_of(content))
    assert same(tree.rebuild(content, leaves), content)
    flipped = tree.rebuild(content, {path: leaf == 0 for path, leaf in leaves.items()})
    assert same(tree.named(flipped), {path: leaf == 0 for path, leaf in leaves.items()})


@settings(max_examples=30, deadline=None)
@given(TREES)
def test_the_size_of_a_tree_is_that_of_its_tensors(content: Any) -> None:
    assert tree.size_in_bytes(content) == sum(
        leaf.untyped_storage().nbytes() for leaf in tensors_of(content)
    )


def test_a_record_reads_as_attributes_and_says_what_there_is() -> None:
    record = Record(model=1, rate=2)
    assert record.model == 1 and record["rate"] == 2
    with pytest.raises(AttributeError, match="no 'memory' here; there is model, rate"):
        _ = record.memory
    with pytest.raises(AttributeError, match="there is nothing"):
        _ = Record().anything
    assert not hasattr(record, "memory") and copy.copy(record) == record


def test_mapping_over_a_record_keeps_names_and_order() -> None:
    doubled = tree.map(lambda leaf: leaf * 2, Record(b=1, a=(2, 3)))
    assert (
        isinstance(doubled, Record)
        and list(doubled) == ["b", "a"]
        and doubled == {"b": 2, "a": (4, 6)}
    )


def test_a_model_and_a_record_are_nodes_and_not_leaves() -> None:
    content = Record(model=PLAIN.initial(1))
    assert len(pytree.tree_leaves(content)) == 4


def test_arithmetic_goes_leaf_by_leaf() -> None:
    a, b = {"x": torch.tensor([3.0, 4.0])}, {"x": torch.tensor([1.0, 1.0])}
    assert tree.add(a, b)["x"].tolist() == [4, 5] and tree.subtract(a, b)["x"].tolist() == [2, 3]
    assert (
        tree.zeros(a)["x"].tolist() == [0, 0]
        and float(tree.norm({"p": a, "q": torch.tensor(12.0)})) == 13
    )
    assert tree.select(torch.tensor(False), a, b)["x"].tolist() == [1, 1]
    assert tree.select(torch.tensor(True), a, b)["x"].tolist() == [3, 4]


def test_trainable_drops_static_statistics_and_keeps_running_ones() -> None:
    static = Architecture("cnn", (1, 4, 4), 3, width=0.125).initial(1)
    measured = static.with_statistics(static.record(torch.rand(5, 1, 4, 4)))
    stripped = tree.trainable({"a": measured, "b": [RUNNING.initial(2)], "c": torch.ones(1)})
    assert measured.statistics and not stripped["a"].statistics
    assert stripped["b"][0].statistics and stripped["c"].tolist() == [1]


@pytest.mark.parametrize("content", [{"a": object()}, {"a": {1, 2}}, [lambda: 0], {"a": b"bytes"}])
def test_what_no_file_can_hold_is_refused_by_type(content: Any) -> None:
    with pytest.raises(TypeError, match="a tree holds tensors"):
        tree.encode(content)


@pytest.mark.parametrize("key", [(1, 2), None, 1.5, b"a"])
def test_a_key_that_would_come_back_as_another_or_not_at_all_is_refused(key: Any) -> None:
    with pytest.raises(
        TypeError, match="the keys of a tree must be text or whole numbers; /pairs has the key"
    ):
        tree.encode({"pairs": {key: torch.ones(1)}})


@pytest.mark.parametrize(
    "content",
    [{"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}}, {1: torch.ones(1), "1": torch.ones(2)}],
)
def test_two_tensors_of_one_path_are_refused_and_not_mixed_up(content: Any) -> None:
    with pytest.raises(TypeError, match="would both be called"):
        tree.encode(content)


GOOD = {
    "model": PLAIN.initial(1),
    "list": [1, torch.ones(2)],
    "record": Record(a=None),
    "pair": (True, "x"),
}


def without_the_last(spec: Any) -> Any:
    spec["dict"].pop()
    return spec


def with_a_foreign_value(spec: Any) -> Any:
    spec["dict"][1]["list"][0] = {"value": {"any": ["thing"]}}
    return spec


def with_an_unknown_net(spec: Any) -> Any:
    spec["dict"][0]["model"]["name"] = "cnm"
    return spec


def with_a_crooked_architecture(spec: Any) -> Any:
    spec["dict"][0]["model"] = 3
    return spec


def without_statistics(spec: Any) -> Any:
    spec["dict"][0]["parts"]["keys"] = ["parameters", "tricks"]
    return spec


def with_a_list_for_a_key(spec: Any) -> Any:
    spec["keys"][0] = ["model"]
    return spec


def with_a_tensor_that_is_not_there(spec: Any) -> Any:
    spec["dict"][1]["list"][1]["tensor"] = "/elsewhere"
    return spec


@pytest.mark.parametrize(
    "damage",
    [
        without_the_last,
        with_a_foreign_value,
        with_an_unknown_net,
        with_a_crooked_architecture,
        without_statistics,
        with_a_list_for_a_key,
        with_a_tensor_that_is_not_there,
        lambda spec: [],
        lambda spec: None,
        lambda spec: {},
        lambda spec: {"pickle": "x"},
        lambda spec: {"model": {}, "parts": {"value": 1}},
    ],
)
def test_a_damaged_spec_is_refused_as_such(damage: Callable[[Any], Any]) -> None:
    spec, tensors = tree.encode(GOOD)
    with pytest.raises(StorageError, match="damaged"):
        tree.decode(damage(json.loads(json.dumps(spec))), tensors)

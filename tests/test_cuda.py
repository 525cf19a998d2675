"""What only a GPU can show: its stack gives what the loop on the CPU gives."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglean import tree
from fedglean.engine import lanes
from fedglean.engine.batches import Setting
from fedglean.engine.graph import give_back
from fedglean.engine.loop import Loop
from fedglean.engine.stack import Stack
from fedglean.engine.task import Party
from fedglean.inputs.images import Images
from fedglean.inputs.views import Recipe
from fedglean.losses import cross_entropy, jointly
from fedglean.method import Stream, Train, Trained
from fedglean.models import Architecture
from fedglean.names import Names
from fedglean.optimiser import SGD
from fedglean.runs.config import configure
from single_runs import run

METHODS = Names.of().tables["METHODS"]
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # Some kernels have no deterministic form: torch warns, and the results here are compared with a
    # tolerance.
    pytest.mark.filterwarnings("ignore"),
]
SETTING = Setting(Recipe((0.5,), (0.25,), flip=False, pad=1))
COUNTS = (7, 23, 4, 40, 16, 31)


def loss(model: Any, batch: Any, frozen: Any) -> Tensor:
    # Joined, images of one channel came out of a compiled step scrambled: a convolution with a
    # channel a group.
    one, other = jointly(model, batch.images.images, batch.others.images)
    return cross_entropy(one, batch.images.label) + cross_entropy(other, batch.others.label)


def clients(
    loss: Any,
    device: str,
    dtype: torch.dtype,
    steps: int = 6,
    model: str = "cnn",
    pixels: int = 8,
    batch: int = 4,
) -> list[Party]:
    """Ragged clients that train and nothing else."""
    store = (
        torch.arange(60 * pixels**2)
        .reshape(60, 1, pixels, pixels)
        .remainder(251)
        .to(torch.uint8)
        .to(device)
    )
    start = Architecture(model, (1, pixels, pixels), 10).initial(1, dtype, device)

    async def talk(count: int) -> Any:
        index = torch.arange(count, device=device)
        images = Images(store, index, index.remainder(10))
        streams = {"images": Stream(images, batch=batch), "others": Stream(images, batch=2 * batch)}
        sgd = SGD(0.05, momentum=0.9, clip=1.0)
        return await Train(start, streams, loss, sgd, steps=min(steps, count))

    return [Party(f"client {place}", talk(count), place) for place, count in enumerate(COUNTS)]


def apart(a: list[Trained], b: list[Trained]) -> float:
    """The largest difference between two answers, relative to the largest weight."""
    rows = [(tree.row(x.models).cpu(), tree.row(y.models).cpu()) for x, y in zip(a, b, strict=True)]
    return max(float((x - y).abs().max() / x.abs().max()) for x, y in rows)


def reference(dtype: torch.dtype, steps: int = 6, **images: int) -> list[Trained]:
    return Loop(replace(SETTING, dtype=dtype)).run(clients(loss, "cpu", dtype, steps, **images))


def test_a_captured_stack_is_the_loop_in_float64() -> None:
    got = Stack(replace(SETTING, dtype=torch.float64)).run(clients(loss, "cuda", torch.float64))
    assert apart(reference(torch.float64), got) < 1e-10


def test_a_captured_stack_is_the_loop_over_a_few_steps_in_float32() -> None:
    got = Stack(SETTING).run(clients(loss, "cuda", torch.float32, steps=3))
    assert apart(reference(torch.float32, steps=3), got) < 2e-3  # TF32 has ten bits of mantissa


@pytest.mark.parametrize(("half", "limit"), [(False, 3e-3), (True, 2e-2)])
@pytest.mark.parametrize(("pixels", "batch"), [(8, 4), (28, 100)])
def test_a_compiled_stack_is_the_loop_over_a_few_steps(
    half: bool, limit: float, pixels: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)  # any kernel may be chosen
    stack = Stack(replace(SETTING, compile=True, half=half))
    expected = reference(torch.float32, 3, pixels=pixels, batch=batch)
    for _ in range(2):  # the second time it is replayed
        got = stack.run(clients(loss, "cuda", torch.float32, 3, pixels=pixels, batch=batch))
        assert apart(expected, got) < limit


def test_a_compiled_stack_that_narrows_is_the_loop_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "LEAST", 5)
    stack = Stack(replace(SETTING, dtype=torch.float64, compile=True))
    got = stack.run(clients(loss, "cuda", torch.float64, steps=40))
    assert {width for _, width, _ in stack._trainer.captures} == {6, 3, 1}
    assert apart(reference(torch.float64, steps=40), got) < 1e-10


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_on_cuda_what_it_gives_on_the_cpu(name: str, compiled: bool) -> None:
    config = configure(
        name, data="digits", model="cnn", rounds=2, dtype="float64", device="cpu", executor="loop"
    )
    there = replace(
        config, engine=replace(config.engine, device="cuda", executor="stack", compile=compiled)
    )
    here = run(config)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = run(there)
    assert not [
        str(warning.message) for warning in told if "could not be compiled" in str(warning.message)
    ]
    for key, predictor in here.predictors.items():
        a, b = (
            tree.row(getattr(each, "models", each)).cpu()
            for each in (predictor, got.predictors[key])
        )
        assert float((a - b).abs().max() / a.abs().max()) < 1e-9


def test_a_step_that_cannot_be_compiled_runs_uncompiled_and_says_why() -> None:
    def stubborn(model: Any, batch: Any, frozen: Any) -> Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("not with me")
        return loss(model, batch, frozen)

    with pytest.warns(RuntimeWarning, match="could not be compiled"):
        got = Stack(replace(SETTING, compile=True)).run(
            clients(stubborn, "cuda", torch.float32, steps=3)
        )
    assert apart(reference(torch.float32, steps=3), got) < 2e-3


def test_a_step_that_cannot_be_captured_runs_unrecorded_and_says_why() -> None:
    def waits(model: Any, batch: Any, frozen: Any) -> Tensor:
        torch.cuda.synchronize()
        return loss(model, batch, frozen)

    with pytest.warns(RuntimeWarning, match="could not be captured"):
        got = Stack(replace(SETTING, dtype=torch.float64)).run(
            clients(waits, "cuda", torch.float64)
        )
    assert apart(reference(torch.float64), got) < 1e-10
    del got
    lump = torch.empty(2**30, device="cuda")
    held = torch.cuda.memory_reserved()
    del lump
    give_back()
    assert torch.cuda.memory_reserved() <= held - 4 * 2**30, (
        "after a failed capture no memory is returned"
    )


def test_a_stack_too_wide_for_memory_is_cut() -> None:
    stack = Stack(replace(SETTING, dtype=torch.float64))

    def greedy(model: Any, batch: Any, frozen: Any) -> Tensor:
        # 8 GiB a client, and again in the sum, where 40 GiB are allowed.
        rows = batch.images.images.new_zeros(2**30) + batch.images.images.sum()
        return loss(model, batch, frozen) + 0 * rows.sum()

    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        40 * 2**30 / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        got = stack.run(clients(greedy, "cuda", torch.float64))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert stack.widest is not None and stack.widest < len(COUNTS)
    assert apart(reference(torch.float64), got) < 1e-10


@pytest.mark.parametrize("method", ["semifl", "fed-shvr"])
def test_two_processes_on_gpus_give_what_one_gives(method: str) -> None:
    options: dict[str, Any] = {
        "clients": 6,
        "block": 2,
        "rounds": 2,
        "epochs": 1,
        "dtype": "float64",
    }
    options |= {
        "labels": "hub:100" if method == "semifl" else "fraction:0.1",
        "device": "cuda",
        "executor": "stack",
    }
    here, there = (
        run(configure(method, **options, **more))
        for more in ({}, {"placement": "workers", "workers": 2})
    )
    ours, theirs = (
        tree.row(result.predictors["model"].parameters).cpu() for result in (here, there)
    )
    assert float((ours - theirs).abs().max() / ours.abs().max()) < 1e-10

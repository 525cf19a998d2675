"""What a process settles before it computes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import config as dynamo

import fedglean
from fedglean.engine.device import settled

FAULTS = """
import resource, torch
from fedglean.engine.device import settled

def pages_touched_anew():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left_to_itself = pages_touched_anew()
with settled(torch.device("cpu"), threads=1, deterministic=True):
    pages_touched_anew()
    kept = pages_touched_anew()
print(left_to_itself, kept, pages_touched_anew())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc's memory is kept, which is on Linux"
)
def test_memory_that_is_free_again_is_not_fetched_anew_page_by_page() -> None:
    told = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    ).stdout
    left_to_itself, kept, afterwards = map(int, told.split())
    assert kept < max(100, left_to_itself / 10)
    assert afterwards > left_to_itself / 2, "glibc does as it did"


def settings() -> dict[str, object]:
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matrices": cuda.allow_tf32,
        "convolutions": cudnn.allow_tf32,
        "benchmark": cudnn.benchmark,
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "compilations": dynamo.recompile_limit,
        "fails": dynamo.fail_on_recompile_limit_hit,
    }


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_a_gpu_needs_is_undone_even_after_an_error(
    three_threads: None, deterministic: bool
) -> None:
    before, inside = settings(), {}

    def fails() -> None:
        with settled(torch.device("cuda"), 2, deterministic):
            inside.update(settings())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert settings() == before
    assert inside["threads"] == 2 and inside["matrices"] and inside["workspace"]
    assert inside["deterministic"] is deterministic and inside["benchmark"] is not deterministic


def test_torch_is_as_before_once_a_run_ends(three_threads: None, tmp_path: Path) -> None:
    small: dict[str, Any] = {"labels": "each:6", "clients": 2, "rounds": 1, "executor": "loop"}
    seen = []
    before = settings()
    fedglean.run(
        "fedavg", out=tmp_path / "run", on_round=lambda _: seen.append(settings()), **small
    )
    fedglean.resume(tmp_path / "run")
    fedglean.run("fedavg", seeds=2, out=tmp_path / "seeds", **small)
    fedglean.resume(tmp_path / "seeds")
    fedglean.compare(["fedavg"], 1, out=tmp_path / "both", **small)
    with pytest.raises(fedglean.FedgleanError):
        fedglean.run("fedavg", labels="each:100000")
    assert settings() == before and seen[0]["threads"] == 1

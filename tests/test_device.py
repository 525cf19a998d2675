"""What a process settles before it computes."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from fedglean.engine.device import settle

def pages_touched_anew():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left_to_itself = pages_touched_anew()
settle(torch.device("cpu"), threads=1, deterministic=True)
pages_touched_anew()
print(left_to_itself, pages_touched_anew())
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="glibc's memory is kept, which is on Linux"
)
def test_memory_that_is_free_again_is_not_fetched_anew_page_by_page() -> None:
    told = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    ).stdout
    left_to_itself, settled = map(int, told.split())
    assert settled < max(100, left_to_itself / 10)

"""Where the published data sets are on this machine, if they are; and which tests share a
process.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

#: Files whose tests run one after the other: each starts many processes, which would wait for each
#: other.
ALONE = ("test_deploy_processes.py", "test_ray.py")

# Started in the background (`nohup … &`) a process ignores Ctrl-C, and so would all that tests
# start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What tests compute outside of runs, they compute as runs do; a forked worker bears no other pool.
torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker for each of those files. pytest 9.2 and pytest-xdist 3.8 together overlook the
    mark for it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(ALONE) else nodeid

    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def data_root() -> Path | None:
    """$FEDGLEAN_DATA, else a folder shared/data beside the repository, else None."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("FEDGLEAN_DATA") or beside)
    return root if root.is_dir() else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    root = data_root()
    if root is None:
        pytest.skip("no published data sets here: set FEDGLEAN_DATA to the folder that holds them")
    return root


@pytest.fixture(scope="session", autouse=True)
def decoded_images_stay_out_of_the_home_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Tests share a cache of their own for the session, unless $FEDGLEAN_CACHE names one to
    keep.
    """
    if os.environ.get("FEDGLEAN_CACHE"):
        yield
        return
    os.environ["FEDGLEAN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["FEDGLEAN_CACHE"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs that several tests look at and none changes."""
    from shown_runs import Made

    return Made(tmp_path_factory.mktemp("runs"))

"""Where the published data sets are on this machine, if they are."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


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
def decoded_images_stay_out_of_the_home_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests share a cache of their own for the session, unless $FEDGLEAN_CACHE names one to keep."""
    if os.environ.get("FEDGLEAN_CACHE"):
        yield
        return
    os.environ["FEDGLEAN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["FEDGLEAN_CACHE"]

"""Every method still trains the model that it trained when `recorded.json` was written.

The numbers are float64, where no rounding hides a change; by machine they differ in the last bits
only. If results are meant to change, write the file anew and say in the changelog why:

    python tests/test_recorded.py
"""

import json
from math import fsum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedglean
from fedglean.names import Names
from small_methods import METHODS, holders, write_splits

RECORDED = Path(__file__).with_name("recorded.json")
EXACT = 1e-12
PROJECTIONS = 4


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads(RECORDED.read_bytes())
    return numbers


def test_every_method_is_recorded(recorded: dict[str, Any]) -> None:
    known = Names.of().tables["METHODS"].keys() - {"semifl-table2", "hassle-release"}
    assert set(recorded) == set(METHODS) == known


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_the_recorded_model(
    method: str, recorded: dict[str, Any], tmp_path: Path
) -> None:
    now, then = trained(method, tmp_path), recorded[method]
    assert now["loss"] == pytest.approx(then["loss"], rel=EXACT)
    assert now["norm"] == pytest.approx(then["norm"], rel=EXACT)
    assert now["projections"] == pytest.approx(then["projections"], abs=EXACT * then["norm"])


def trained(method: str, folder: Path) -> dict[str, Any]:
    """What three rounds came to: the losses of the tests, and the model's shadows."""
    write_splits(folder)
    options = {"rounds": 3, "block": 3, "quorum": 0.0, "checkpoint_every": 3}
    engine = {"executor": "loop", "device": "cpu", "dtype": "float64"}
    settings = METHODS[method] | holders(method, folder)
    result = fedglean.run(method, out=folder / "run", **settings, **options, **engine)
    leaves = list(load_file(folder / "run" / "model.safetensors").values())
    squares = fsum(float(leaf.double().square().sum()) for leaf in leaves)
    return {
        "loss": [loss for line in result.history for loss in line["loss"].values()],
        "norm": squares**0.5,
        "projections": [projection(leaves, number) for number in range(1, PROJECTIONS + 1)],
    }


def projection(leaves: list[torch.Tensor], number: int) -> float:
    """The product with a fixed vector, the same one for each tensor: their names do not matter."""
    products = []
    for leaf in leaves:
        wave = torch.cos(number * torch.arange(1, leaf.numel() + 1, dtype=torch.float64))
        products.append(float(leaf.double().flatten() @ wave))
    return fsum(products)


def record() -> None:
    numbers = {}
    for method in METHODS:
        with TemporaryDirectory() as folder:
            numbers[method] = trained(method, Path(folder))
    RECORDED.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    record()

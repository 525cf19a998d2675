"""What `import fedglean` offers is what the documentation names."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fedglean
from fedglean import public


def test_the_documented_names_are_the_public_ones() -> None:
    text = (Path(__file__).parents[1] / "docs/architecture.md").read_text()
    section = text.split("## The public names")[1].split("##")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    assert documented == set(fedglean.__all__)
    assert fedglean.__all__ == public.__all__
    assert all(hasattr(fedglean, name) for name in documented)


def test_paths_and_single_names_may_be_plain_text(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "model": "mlp",
        "clients": 2,
        "rounds": 1,
        "labels": "hub:20",
        "executor": "loop",
    }
    folder, image = str(tmp_path / "run"), str(tmp_path / "one.png")
    fedglean.run("hub-only", out=folder, **small)
    Image.new("L", (8, 8)).save(image)
    assert fedglean.predict(folder, image) == fedglean.predict(Path(folder), [Path(image)])
    assert fedglean.compare("hub-only", 1, **small).best == "hub-only"
    assert isinstance(fedglean.open(folder), fedglean.Runs)
    with pytest.raises(fedglean.FedgleanError, match="holds no run"):
        fedglean.open(str(tmp_path))

"""What `import fedglean` offers is what the documentation names."""

import re
from pathlib import Path

import fedglean


def test_the_documented_names_are_the_public_ones() -> None:
    text = (Path(__file__).parents[1] / "docs/architecture.md").read_text()
    section = text.split("## The public names")[1].split("##")[0]
    documented = set(re.findall(r"`(\w+)`", section))
    assert documented == set(fedglean.__all__)
    assert all(hasattr(fedglean, name) for name in documented)

"""What belongs to the repository and not to the package: commands, pins, pages, workflows."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def linked(page: Path) -> set[Path]:
    text = FENCE.sub("", page.read_text("utf-8"))
    links = {link for link in LINK.findall(text) if "://" not in link}
    return {(page.parent / link).resolve() for link in links}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def makefile() -> str:
    return (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")


def test_every_page_is_two_clicks_from_the_first() -> None:
    first = DOCS / "README.md"
    near = linked(first)
    pages = {page for page in near if page.suffix == ".md"}
    for page in pages:
        near = near | linked(page)
    assert set(DOCS.rglob("*.md")) - near <= {first}


def test_every_picture_of_the_results_stands_on_a_page() -> None:
    shown = set().union(*(linked(page) for page in DOCS.rglob("*.md")))
    assert set((DOCS / "results").glob("*.png")) <= shown


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_no_link_leads_out_of_the_site(page: Path) -> None:
    assert not [path for path in linked(page) if not path.is_relative_to(DOCS)]


def test_the_fast_tests_exist() -> None:
    listed = re.search(r"^QUICK := (.*)$", makefile(), re.MULTILINE)
    assert listed is not None
    assert not [name for name in listed[1].split() if not (ROOT / f"tests/test_{name}.py").exists()]


def test_all_that_make_installs_is_pinned_and_from_nowhere_in_particular() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)]
    pinned = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    given = project()["project"]
    wanted = [*given["dependencies"]]
    extras = re.search(r"^EXTRAS \?= (.*)$", makefile(), re.MULTILINE)
    assert extras is not None
    for extra in extras[1].split(","):
        wanted += given["optional-dependencies"][extra]
    names = {re.split(r"[<>=\[; ]", each)[0].lower() for each in wanted}
    assert names <= pinned


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_a_person_can_run_and_trusts_only_pinned_actions(path: Path) -> None:
    text = path.read_text("utf-8")
    for target in re.findall(r"run: make (\w+)", text):
        assert re.search(rf"^{target}:", makefile(), re.MULTILINE)
    for script in re.findall(r"run: (\.ci/\S+)", text):
        assert (ROOT / script).stat().st_mode & 0o100
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)

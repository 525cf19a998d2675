"""What the documentation says is so: its commands and code run, its links lead somewhere, its
reference is the code's.

Blocks marked `sh` (or unmarked ones that begin with a command) and `python` are executed page by
page, in order, in one empty folder a page. Commands that train get the few words of TINY added at
their end, where the last of two equal options counts: nothing of what the reader is told to type is
left out or changed.
"""

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import fedglean
from fedglean.cli import app
from fedglean.cli.train import DEMO

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
#: Pages without commands, whose links are followed all the same.
OTHERS = [ROOT / "CHANGELOG.md", ROOT / "benchmarks/README.md", ROOT / "examples/README.md"]
#: Pages whose commands another test executes.
ELSEWHERE = {
    "docs/deploy.md": "test_deploy_processes.py",
    "docs/tutorial-method.md": "test_examples.py",
}
#: What is added to commands that train; `--seeds` only where the page asks for several.
TINY = {"run": ["--rounds", "2"], "compare": ["--rounds", "2", "--seeds", "2"]}
#: Commands that are not executed here, by how they begin; those of `run` are resolved all the same.
NOT_HERE = {
    "make test": "it is what runs this",
    "make quick": "it is a part of `make test`",
    "make lint": "it is a part of `make test`",
    "make docs": "test_the_reference_is_what_the_code_says_now does",
    "git clone": "this is the clone",
    "pip install": "tests install nothing",
    "fedglean watch": "it serves until it is stopped; test_report_browser.py looks at its page",
    "fedglean campaign": "published data; test_campaign.py reads the page's file",
    "fedglean verify": "it trains what a campaign did; test_verify.py does, too",
    "fedglean reproduce hassle-table1": "published data; test_reproduce.py runs studies",
}
#: Words of a command that say it needs data which not every machine has.
PUBLISHED_DATA = ("DATA", "~/data", "--preset")

#: A block of Python with a name, which is also the file to be saved.
FILE = re.compile(r"^```python (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
INLINE = re.compile(r"`(fedglean [^`\n]+)`")


def label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and content; an unmarked block that begins with a command is `sh`."""
    for language, content in FENCE.findall(page.read_text("utf-8")):
        yield language or ("sh" if content.startswith(("fedglean ", "make ")) else "text"), content


def commands(content: str) -> Iterator[str]:
    for line in content.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield shlex.join(words).replace("'>'", ">").replace("'&&'", "&&")


def with_code(page: Path) -> bool:
    return label(page) not in ELSEWHERE and any(
        language in ("sh", "python") for language, _ in blocks(page)
    )


def reason_not_to(command: str) -> str | None:
    return next((why for start, why in NOT_HERE.items() if command.startswith(start)), None)


def needs_data(words: list[str]) -> bool:
    return words[1] in ("run", "compare", "partition") and any(
        word in words for word in PUBLISHED_DATA
    )


def resolved(words: list[str]) -> None:
    """Of a run that cannot be made here, every name and option is still looked up."""
    kept = [words[0], "config", *words[2:]]
    for option in ("--out", "--seeds"):
        if option in kept:
            place = kept.index(option)
            del kept[place : place + 2]
    invoke([word for word in kept if word != "--quiet"])


def invoke(words: list[str]) -> str:
    outcome = CliRunner().invoke(app, words[1:], catch_exceptions=False)
    assert outcome.exit_code == 0, f"{shlex.join(words)}: {outcome.output}"
    return outcome.output


def execute(command: str) -> None:
    """One line of a page."""
    command, _, target = command.partition(" > ")
    words = shlex.split(command)
    if words[:2] == ["make", "demo"]:
        assert "$(BIN)/fedglean demo\n" in (ROOT / "Makefile").read_text()
        words = ["fedglean", "demo"]
    if words[0] != "fedglean":
        subprocess.run(command, shell=True, check=True)
    elif needs_data(words):
        resolved(words)
    else:
        added = TINY.get(words[1], [])
        several = ["--seeds", "2"] if "--seeds" in words and words[1] == "run" else []
        output = invoke([*words, *added, *several])
        if target:
            Path(target).write_text(output)


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` has no option for its rounds."""
    for options in DEMO.values():
        monkeypatch.setitem(options, "rounds", 2)


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TINY does for commands."""
    run = fedglean.run
    monkeypatch.setattr(
        fedglean, "run", lambda *given, **options: run(*given, **options | {"rounds": 2})
    )


@pytest.mark.parametrize("page", [page for page in PAGES if with_code(page)], ids=label)
@pytest.mark.usefixtures("short_demo", "short_calls")
def test_every_command_and_every_line_of_code_on_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8)).save("some.png")  # the reader's own
    for file, content in FILE.findall(page.read_text("utf-8")):
        Path(file).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for language, content in blocks(page):
        if "onnx" in content and any(
            find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")
        ):
            pytest.skip("the extra export is missing")
        if language == "python":
            with redirect_stdout(io.StringIO()):
                exec(compile(content, str(page), "exec"), names)
        elif language == "sh":
            for command in commands(content):
                if reason_not_to(command) is None:
                    execute(command)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {language for language, _ in blocks(page)} <= {"sh", "python", "text", "toml"}
    if page.parent.name != "reference":
        hidden = [
            content
            for language, content in blocks(page)
            if language == "text" and content.startswith("fedglean ")
        ]
        assert not hidden, "a command in a block of output is not executed"


def test_pages_that_another_test_executes_are_known_to_it() -> None:
    for page, test in ELSEWHERE.items():
        if (ROOT / page).exists():
            assert Path(page).name in (ROOT / "tests" / test).read_text("utf-8"), (
                f"{test} does not read {page}"
            )


def test_what_is_not_executed_is_still_on_some_page() -> None:
    found = [
        command
        for page in PAGES
        for language, content in blocks(page)
        if language == "sh"
        for command in commands(content)
    ]
    unused = [
        start for start in NOT_HERE if not any(command.startswith(start) for command in found)
    ]
    assert set(unused) <= {"make lint", "make docs", "git clone", "pip install", "fedglean watch"}


def anchors(page: Path) -> set[str]:
    """GitHub's names for headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=label)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{label(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{label(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_commands_in_passing_exist_with_their_options(page: Path) -> None:
    """`fedglean run --preset X` in a sentence or a table."""
    for text in INLINE.findall(FENCE.sub("", page.read_text("utf-8"))):
        words = text.split()
        command: Any = typer.main.get_command(app)
        while len(words) > 1 and getattr(command, "commands", None) and words[1].islower():
            assert words[1] in command.commands, f"{label(page)} speaks of '{text}'"
            command = command.commands[words.pop(1)]
        options = {
            flag for each in command.params for flag in (*each.opts, *each.secondary_opts)
        } | {"--help"}
        flags = [word.rstrip(",.;") for word in words if word.startswith("--")]
        assert not [flag for flag in flags if flag not in options], (
            f"{label(page)} speaks of '{text}'"
        )


def reference() -> Any:
    spec = spec_from_file_location("make_reference", DOCS / "make_reference.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["make_reference"] = module
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says_now() -> None:
    made = reference().pages()
    assert {page.name for page in (DOCS / "reference").iterdir()} == set(made)
    for name, text in made.items():
        assert (DOCS / "reference" / name).read_text("utf-8") == text, (
            f"{name} is out of date; 'make docs' writes it"
        )


def test_the_leaderboard_is_what_the_table_of_runs_says() -> None:
    said = subprocess.run(
        [sys.executable, DOCS / "make_leaderboard.py", "--print"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (DOCS / "leaderboard.md").read_text("utf-8") == said.stdout, "'make docs' writes it"


def test_every_file_and_every_key_that_runs_write_is_in_the_reference(tmp_path: Path) -> None:
    known = reference()
    fedglean.run("semifl", rounds=2, epochs=1, threshold=0.0, out=tmp_path / "one")
    fedglean.run("fedavg", 2, rounds=1, epochs=1, out=tmp_path / "two")
    files = {each.name for folder in ("one", "two") for each in (tmp_path / folder).iterdir()}
    assert {name for name in files if not name.startswith("seed-")} <= set(known.FILES)
    lines = [
        json.loads(line)
        for path in tmp_path.rglob("metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    written = set().union(*lines)
    assert written <= set(known.METRICS) and set(known.METRICS) - written <= {"widest"}
    phases = re.findall(r"`(\w+)`", known.METRICS["phases"])
    assert set(phases) == set(lines[0]["phases"])
    assert all(f"`{key}`" in known.METRICS["pseudo"] for line in lines for key in line["pseudo"])


def test_the_changelog_knows_this_version() -> None:
    assert f"\n## {fedglean.__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\nversion: {fedglean.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")

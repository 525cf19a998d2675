"""What the tutorial and the examples say, done: every command, every block of code, every cell,
with fewer rounds.
"""

import importlib
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import fedglean
from fedglean import cli
from fedglean.runs.run import Runs
from fedglean.testing import check_method

ROOT = Path(__file__).parents[1]
EXAMPLES, TUTORIAL = ROOT / "examples", ROOT / "docs/tutorial-method.md"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the examples in it, from which Python imports as from a script's."""
    for path in EXAMPLES.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("pseudo", None)


def blocks(page: Path) -> list[tuple[str, str]]:
    """What stands behind the three backticks, and the block."""
    return re.findall(
        r"^```(\S+(?: \S+)?)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


def shortened(command: str) -> str:
    return re.sub(r"--rounds \d+", "--rounds 2", command)


def execute(command: str) -> str:
    program, *words = shlex.split(shortened(command))
    if program == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
        return ""
    assert program == "fedglean", command
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, f"{command}: {done.output}"
    return done.output


def test_the_tutorial_does_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "tutorial"}
    shown = []
    for kind, text in blocks(TUTORIAL):
        language, _, file = kind.partition(" ")
        if file:
            (tmp_path / file).write_text(text)
        elif language == "python":
            exec(compile(text, f"{TUTORIAL.name}, python block", "exec"), names)
        elif language == "sh":
            shown += [execute(command) for command in text.splitlines()]
        else:
            assert language in ("text", "toml")
    printed = capsys.readouterr().out
    assert (
        "cannot be lifted by torch.func.vmap" in printed
        and "cannot have an `if` on a tensor" in printed
    )
    assert "FedAvg on the clients' images" in shown[0] and "at least this confidence" in shown[1]
    assert "pseudo-avg" in shown[4] and "hub-only" in shown[4]
    assert len(shown) == 7


def test_the_tutorials_method_is_the_example_and_short() -> None:
    (text,) = [text for kind, text in blocks(TUTORIAL) if kind.endswith("pseudo.py")]
    assert text == (EXAMPLES / "own_method.py").read_text()
    assert len([line for line in text.splitlines() if line]) < 40


def test_the_commands_of_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = [text for kind, text in blocks(EXAMPLES / "README.md") if kind == "sh"]
    for command in commands.splitlines():
        execute(command)
    printed = capsys.readouterr().out
    assert "test accuracy" in printed
    assert len(re.findall(r"^\d{4}\.png: \d \(\d+%\)$", printed, re.MULTILINE)) == 5


@pytest.mark.parametrize("own", ["head", "norms"])
def test_the_personal_method_holds_to_the_contract(own: str) -> None:
    personal = importlib.import_module("own_personal").Personal
    check_method(personal(own=own, epochs=1, held_out=0.4), rounds=2)


def test_a_personal_head_is_better_where_clients_differ() -> None:
    run = fedglean.run("personal", use="own_personal.py", rounds=8)
    report = run.history[-1]["report"]
    assert report["own_accuracy"] > run.last.accuracy + 0.2
    assert report["worst_client"] > run.last.accuracy


def test_every_example_is_on_the_page() -> None:
    listed = set(re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text()))
    there = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert listed == there


def test_the_notebook_reads_results(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "results.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in notebook["cells"] if cell.get("outputs")]
    assert "ROUNDS = 20" in cells[0]
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell.replace("ROUNDS = 20", "ROUNDS = 3"), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    results, figure = names["results"], names["figure"]
    assert isinstance(results, dict) and isinstance(figure, Figure)
    assert (
        len(figure.axes[0].lines) == 2 and len(figure.axes[1].lines) >= 1
    )  # nobody may be confident yet
    plt.close(figure)
    last = results["semifl"]
    assert isinstance(last, Runs)
    assert f"accuracy {last.last.accuracy:.1%}" in printed

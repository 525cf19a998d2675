"""Opening somebody's run folder runs no code of theirs, unless its reader says so."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import fedglean
from fedglean import cli
from fedglean.errors import StorageError, UntrustedError
from fedglean.names import Names
from fedglean.report.watch import Watcher
from fedglean.runs.config import configure
from fedglean.runs.folder import RunFolder
from fedglean.trust import digest_of, digest_of_place, is_trusted, remember

EVIL = """
from pathlib import Path

from fedglean.methods import METHODS as THEIRS
from fedglean.models.nets import MODELS as NETS

with open(Path(__file__).with_name("ran"), "a") as file:
    file.write("x")
METHODS = {"theirs": THEIRS["fedavg"].method}
MODELS = {"their-net": NETS["mlp"].net}
"""
SMALL = {"labels": "each:6", "partition": "iid", "clients": 3, "active": 1.0, "epochs": 1}
SMALL |= {"model": "mlp", "rounds": 1, "executor": "loop", "data": "digits"}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a comparison that name no code."""
    folder = tmp_path_factory.mktemp("honest")
    fedglean.run("fedavg", out=folder / "run", **SMALL)
    fedglean.compare(["fedavg", "fedprox"], 1, out=folder / "both", **SMALL)
    return folder


@pytest.fixture
def stolen(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folders, as somebody else hands them on with a file beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGLEAN_CACHE", str(tmp_path / "cache"))
    shutil.copytree(honest, tmp_path, dirs_exist_ok=True)
    (tmp_path / "evil.py").write_text(EVIL)
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    return tmp_path


def named(folder: Path, file: str | Path, method: str = "fedavg") -> None:
    """Every configuration below names the file, and perhaps a method of it."""
    for path in folder.rglob("config.toml"):
        text = path.read_text().replace('method = "fedavg"', f'method = "{method}"')
        path.write_text(f'use = "{file}"\n{text}')
    for path in folder.rglob("compare.json"):
        text = path.read_text().replace('"use": null', f'"use": "{file}"')
        path.write_text(text.replace('"method": "fedavg"', f'"method": "{method}"'))


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def refused(result: Result) -> str:
    assert result.exit_code == UntrustedError.exit_code == 3, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr


COMMANDS = {
    "report": ["report", "run", "both"],
    "predict": ["predict", "run", "black.png"],
    "resume": ["resume", "run", "--quiet"],
    "compare": ["resume", "both", "--quiet"],
    "export": ["export", "run", "--state-dict", "model.st"],
    "tensorboard": ["tensorboard", "run"],
    "config": ["config", "--config", "run/config.toml"],
    "run": ["run", "--config", "run/config.toml", "--quiet"],
    "partition": ["partition", "--config", "run/config.toml"],
    "list": ["list"],
}


@pytest.mark.parametrize("place", ["absolute", "relative"])
@pytest.mark.parametrize("method", ["fedavg", "theirs"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_the_code_of_a_folder(
    stolen: Path, command: str, method: str, place: str
) -> None:
    named(stolen, stolen / "evil.py" if place == "absolute" else "evil.py", method)
    result = call(*COMMANDS[command])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert not (stolen / "ran").exists()


@pytest.mark.parametrize("command", ["resume", "compare", "run", "config"])
def test_what_needs_the_code_says_which_and_how_it_is_allowed(stolen: Path, command: str) -> None:
    named(stolen, stolen / "evil.py", "theirs")
    sentence = refused(call(*COMMANDS[command]))
    assert str(stolen / "evil.py") in sentence and "--trust" in sentence


def test_watching_runs_no_code_either(stolen: Path) -> None:
    named(stolen, stolen / "evil.py", "theirs")
    with Watcher([Path("run"), Path("both")]) as watcher:
        assert watcher.now()[1]["groups"]
    assert not (stolen / "ran").exists()


def test_a_report_shows_what_needs_no_code_and_says_what_is_left_out(stolen: Path) -> None:
    named(stolen, stolen / "evil.py", "theirs")
    assert call("report", "run", "--out", "page.html").exit_code == 0
    page = (stolen / "page.html").read_text()
    assert '"method":"theirs"' in page and '"accuracy"' in page
    assert "evil.py, which is not run" in page
    assert not (stolen / "ran").exists()


def test_a_model_of_the_package_predicts_whatever_else_the_folder_names(stolen: Path) -> None:
    named(stolen, stolen / "evil.py", "theirs")
    assert call("predict", "run", "black.png").exit_code == 0
    assert not (stolen / "ran").exists()


def test_a_net_of_somebody_elses_predicts_only_if_it_may(stolen: Path) -> None:
    fedglean.run("fedavg", out="net", **SMALL | {"model": "their-net", "use": "evil.py"})
    remembered = stolen / "cache/trusted-code"
    remembered.unlink()
    (stolen / "ran").unlink()
    assert "'their-net'" in refused(call("predict", "net", "black.png"))
    assert not (stolen / "ran").exists()
    assert call("predict", "net", "black.png", "--trust").exit_code == 0
    assert call("predict", "net", "black.png").exit_code == 0, "what was allowed stays so"


def test_trust_in_python_is_the_same(stolen: Path) -> None:
    named(stolen / "run", stolen / "evil.py", "theirs")
    with pytest.raises(UntrustedError, match="trust=True"):
        fedglean.run(file="run/config.toml")
    assert fedglean.run(file="run/config.toml", trust=True).config.method == "theirs"


def test_code_that_a_user_ran_himself_runs_again_until_it_changes(stolen: Path) -> None:
    fedglean.run("theirs", use="evil.py", out="mine", **SMALL)
    assert call("resume", "mine", "--quiet").exit_code == 0
    shutil.copy(stolen / "evil.py", stolen / "moved.py")
    assert RunFolder(Path("mine")).config().names.closed is None
    (stolen / "evil.py").write_text(EVIL + "\n")
    refused(call("resume", "mine", "--quiet"))


def test_a_user_who_names_the_file_in_a_folder_himself_allows_it(stolen: Path) -> None:
    named(stolen / "run", stolen / "evil.py", "theirs")
    config = configure(file="run/config.toml", use=stolen / "evil.py")
    assert config.names.closed is None


def test_the_list_of_what_may_run_is_for_its_owner_alone(stolen: Path) -> None:
    digest = digest_of(b"code")
    remember(digest)
    place = stolen / "cache/trusted-code"
    assert place.stat().st_mode & 0o777 == 0o600 and is_trusted(digest)
    place.chmod(0o622)
    assert not is_trusted(digest), "somebody else may have written it"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_where_nothing_can_be_noted_nothing_is_allowed(stolen: Path) -> None:
    named(stolen, stolen / "evil.py", "theirs")
    (stolen / "cache").mkdir(mode=0o500)
    assert call("resume", "run", "--trust").exit_code == StorageError.exit_code
    assert not (stolen / "ran").exists()


def test_a_folder_imports_no_module_either(stolen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(stolen)
    path = stolen / "run/config.toml"
    path.write_text(path.read_text().replace('name = "mlp"', 'name = "evil:MODELS"'))
    assert "'evil:MODELS'" in refused(call("resume", "run"))
    assert "'evil:MODELS'" in refused(call("run", "--config", path))
    assert not (stolen / "ran").exists()
    remember(digest_of_place("evil:MODELS"))
    assert call("resume", "run").exit_code == 2, "imported now, but a dictionary is no net"
    assert (stolen / "ran").exists()


def test_names_that_may_not_run_stay_so_in_another_process(stolen: Path) -> None:
    import pickle

    names = Names.of("evil.py", is_own=False)
    assert pickle.loads(pickle.dumps(names)).closed is not None
    assert not (stolen / "ran").exists()

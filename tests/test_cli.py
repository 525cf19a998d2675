"""The command line, from newcomers' first commands to full disks."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner, Result

from fedglean import __version__, cli
from fedglean.cli import look, train
from fedglean.data.split_file import load_split
from fedglean.errors import StorageError
from fedglean.names import Names
from fedglean.runs.config import configure, to_toml
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import RunFolder
from fedglean_papers.presets import PRESETS

METHODS = Names.of().tables["METHODS"]
QUICK = ("--rounds", "2", "--set", "epochs=1", "--quiet")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def failing(error: BaseException) -> Any:
    def train(*_: Any, **__: Any) -> None:
        raise error

    return train


def test_a_run_leaves_a_folder_with_everything_in_it(tmp_path: Path) -> None:
    result = call("run", "hub-only", "--data", "digits", *QUICK, "--out", "here")
    assert result.exit_code == 0, result.output
    assert "last" in result.output and "best" in result.output
    assert "run folder: here" in result.output
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert {
        "config.toml",
        "metrics.jsonl",
        "checkpoint",
        "model.safetensors",
        "curves.png",
    } <= names
    lines = [
        json.loads(line) for line in (tmp_path / "here/metrics.jsonl").read_text().splitlines()
    ]
    assert [(line["round"], line["final"]) for line in lines] == [(1, False), (2, False), (2, True)]


@pytest.mark.parametrize("seeds", [(), ("--seeds", "2")])
def test_who_hears_of_no_client_is_told(seeds: tuple[str, ...]) -> None:
    silent, heard = (
        call(
            "run",
            "semifl",
            *QUICK,
            *seeds,
            "--set",
            f"threshold={threshold}",
            "--out",
            f"at-{threshold}",
        ).output
        for threshold in (1.0, 0.1)
    )
    assert "no client ever sent an update" in silent
    assert "no client ever sent an update" not in heard + call("run", "hub-only", *QUICK).output


def test_help_texts_have_no_square_brackets_for_rich_would_take_them_for_markup() -> None:
    command: Any = typer.main.get_command(cli.app)
    commands = [command, *command.commands.values(), *command.commands["deploy"].commands.values()]
    texts = [each.help or "" for each in commands]
    texts += [
        getattr(parameter, "help", None) or "" for each in commands for parameter in each.params
    ]
    assert not [text for text in texts if "[" in text]


def test_runs_get_folders_of_their_own_where_none_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        assert call("run", "hub-only", *QUICK).exit_code == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "hub-only-digits-seed0",
        "hub-only-digits-seed0-2",
    }


def test_a_finished_run_says_so_and_predicts_images(tmp_path: Path) -> None:
    call("run", "hub-only", *QUICK, "--out", "here")
    again = call("resume", "here")
    assert again.exit_code == 0
    assert "here is already finished" in again.output
    Image.fromarray((load_digits().images[0] * 15.9).astype("uint8")).save("zero.png")
    told = call("predict", "here", "zero.png")
    assert told.exit_code == 0, told.output
    name, label, words = told.output.rstrip("\n").split("\t")
    share, unit = words.split()
    assert (name, unit) == ("zero.png", "%")
    assert label in set("0123456789") and 10 <= float(share) <= 100
    assert call("predict", "here", "none.png").exit_code == 3


def test_a_run_that_is_not_finished_predicts_with_its_last_round(tmp_path: Path) -> None:
    call("run", "hub-only", *QUICK, "--out", "here")
    Image.fromarray((load_digits().images[0] * 15.9).astype("uint8")).save("zero.png")
    finished = call("predict", "here", "zero.png").stdout
    (tmp_path / "here/model.safetensors").unlink()
    told = call("predict", "here", "zero.png")
    assert told.stdout == finished  # nothing happens after the last round of this method
    assert "not finished" in told.stderr
    shutil.rmtree(tmp_path / "here/checkpoint")
    refused = call("predict", "here", "zero.png")
    assert refused.exit_code == StorageError.exit_code
    assert "fedglean resume here" in refused.output


def test_a_report_finds_runs_in_folders_of_folders(tmp_path: Path) -> None:
    call("run", "hub-only", *QUICK, "--out", "all/first/one")
    call("run", "semifl", *QUICK, "--out", "all/second/two")
    assert call("report", ".", "--out", "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert "all/first/one" in page and "all/second/two" in page


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    call("run", "hub-only", *QUICK, "--out", "here")
    other = call("run", "hub-only", *QUICK, "--seed", "1", "--out", "here")
    assert other.exit_code == StorageError.exit_code
    assert "another configuration" in other.stderr


def test_the_printed_configuration_is_the_one_that_runs(tmp_path: Path) -> None:
    printed = call(
        "config", "semifl", "--labels", "hub:30", "--set", "rate=0.2", "--set", "gate.quorum=0.1"
    )
    assert printed.output == to_toml(configure("semifl", labels="hub:30", rate=0.2, quorum=0.1))
    (tmp_path / "mine.toml").write_text(printed.output)
    assert call("config", "--config", "mine.toml").output == printed.output
    assert (
        'labels = "hub:40"' in call("config", "--config", "mine.toml", "--labels", "hub:40").output
    )


def test_set_reads_numbers_booleans_and_plain_words() -> None:
    words = (
        "statistics_from=hub",
        "mixup=false",
        "epochs=2",
        "rate=1",
        "split.labels=hub:30",
        'strong="semifl-ra"',
    )
    result = call("config", "semifl", *(part for word in words for part in ("--set", word)))
    expected = configure(
        "semifl",
        statistics_from="hub",
        mixup=False,
        epochs=2,
        rate=1.0,
        labels="hub:30",
        strong="semifl-ra",
    )
    assert result.output == to_toml(expected)


def test_set_outdoes_a_flag_of_the_same_key() -> None:
    assert "rounds = 4\n" in call("config", "semifl", "--rounds", "3", "--set", "rounds=4").output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run semfl", "unknown method 'semfl'; did you mean 'semifl'?"),
        ("run SemiFL", "did you mean 'semifl'?"),
        (
            "run fedavg-",
            "these begin so: fedavg-all, fedavg-fixmatch, fedavg-fixmatch-hub, fedavg-mixmatch",
        ),
        ("run hub_only", "did you mean 'hub-only'?"),
        ("run label-only", "did you mean 'labels-only'?"),
        ("run", "no method was named; name one, such as semifl"),
        ("run semifl --data digts", "unknown data set 'digts'; did you mean 'digits'?"),
        ("run semifl --data .", "use --data folder --data-root ."),
        ("run semifl --labels hub:25", "use hub:20 or hub:30"),
        ("run semifl --clients 5000", "5000 clients cannot share 1437 images"),
        (
            "run semifl --labels hub:99999",
            "needs 10000 images of every class, but class 7 has only 133; use at most hub:1330",
        ),
        (
            "run semifl --data npz --data-root a.npz --labels hub:20",
            "a.npz' already says who holds what; leave out labels = hub:20",
        ),
        ("run semifl --rounds 0", "rounds must be at least 1, not 0"),
        (
            "run semifl --set split.lables=x",
            "unknown key 'split.lables'; did you mean 'split.labels'?",
        ),
        ("run semifl --threshold 0.5", "a method's setting is given as --set threshold=VALUE"),
        ("compare semifl --hub-batch 5", "a method's setting is given as --set hub_batch=VALUE"),
        ("run semifl --set rate", "'--set rate' is not an assignment"),
        ("run semifl --set method=fedavg", "name it as the argument"),
        ("run fedavg --labels hub:20", "FedAvg needs clients with labels"),
        ("run --preset semifl/cifar10-250-id", "did you mean 'semifl/cifar10-250-iid'?"),
        ("run --preset semifl/cifar10-250-iid", "the data set 'cifar10' is read from disk"),
        ("run semifl --data folder", "say where it is with --data-root FOLDER"),
        ("run semifl --data-root images", "for your own images use --data folder"),
        ("run semifl --device gpu", "The choices are auto, cpu, cuda."),
        ("run semifl --workers 2", "add --placement workers"),
        ("run --preset hassle", "such as hassle/cifar10-10"),
        ("compare semifl:threshold hub-only", "write it as semifl:threshold=0.8,epochs=2"),
        ("compare semifl: hub-only", "write it as semifl:threshold=0.8,epochs=2"),
        ("partition --out who.xyz", "is not a kind of picture; write it as who.png"),
        ("partition --out who", "is not a kind of picture; write it as who.png"),
        ("list methds", "unknown list or method 'methds'; did you mean 'methods'?"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing_behind(
    words: str, sentence: str, tmp_path: Path
) -> None:
    result = call(*words.split())
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_settings_of_another_method_are_refused_whole() -> None:
    Path("mine.toml").write_text(call("config", "hub-only").output)
    result = call("config", "semifl", "--config", "mine.toml")
    assert result.exit_code == 2
    assert "mine.toml has settings for hub-only, not for semifl" in result.stderr


def test_a_picture_gets_the_folder_that_it_is_to_lie_in() -> None:
    assert call("partition", "--out", "new/who.png").exit_code == 0
    assert Path("new/who.png").is_file()


def test_a_misspelt_run_folder_is_told_from_its_neighbour() -> None:
    Path("runs/first").mkdir(parents=True)
    for command in ("resume runs/frist", "report runs/frist", "predict runs/frist a.png"):
        result = call(*command.split())
        assert result.exit_code == StorageError.exit_code
        assert result.stderr == "error: there is no folder runs/frist; did you mean runs/first?\n"


def test_a_folder_to_label_is_told_from_an_image() -> None:
    call("run", "hub-only", *QUICK, "--out", "here")
    result = call("predict", "here", ".")
    assert result.exit_code == 3
    assert ". is a folder; name the images in it" in result.stderr


def test_a_hub_starts_nothing_without_its_images_or_in_the_folder_of_another_run() -> None:
    options = ("--branches", "2", "--insecure")
    result = call("deploy", "hub", "semifl", "--images", "images", *options, "--out", "x")
    assert (result.exit_code, result.stderr) == (3, "error: there is no folder images\n")
    Path("images/hub/cat").mkdir(parents=True)
    result = call(
        "deploy",
        "branch",
        "--images",
        "images",
        "--number",
        "0",
        "--hub",
        "a:80",
        "--state",
        "x",
        "--insecure",
    )
    assert (result.exit_code, result.stderr) == (
        3,
        "error: images holds no files; put the images there\n",
    )
    call("run", "hub-only", *QUICK, "--out", "here")
    result = call("deploy", "hub", "semifl", "--images", ".", *options, "--out", "here")
    assert result.exit_code == StorageError.exit_code
    assert "here holds the run of a simulation" in result.stderr
    assert not Path("here/flower").exists()


def test_a_folder_that_is_no_run_is_refused() -> None:
    assert call("resume", ".").exit_code == StorageError.exit_code
    assert call("predict", ".", "a.png").exit_code == StorageError.exit_code


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_a_sentence(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "train", failing(OSError(number, os.strerror(number), "runs/x")))
    result = call("run", "semifl")
    assert result.exit_code == 4
    assert result.stderr == f"error: runs/x: {os.strerror(number)}\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(cli.app, ["run", "semifl"], catch_exceptions=False)


def test_an_interrupt_before_the_first_round_says_that_nothing_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train, "train", failing(KeyboardInterrupt()))
    result = call("run", "semifl", "--out", "here")
    assert (result.exit_code, result.stderr) == (130, "stopped; nothing was written yet\n")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_torch_is_imported_is_a_sentence(kind: signal.Signals) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "fedglean", "run", "hub-only"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "torch" not in process.stderr.readline():
        pass
    process.send_signal(kind)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.endswith("stopped\n")
    assert "Traceback" not in errors


def test_the_version_is_told_without_importing_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "fedglean", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout == call("--version").output
    assert "torch" not in told.stderr


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on_and_does(
    kind: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "fedglean", "run", "hub-only", "--rounds", "60"]
    process = subprocess.Popen([*command, "--out", "here"], stderr=subprocess.PIPE, text=True)
    metrics, deadline = tmp_path / "here/metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(kind)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.endswith("stopped; 'fedglean resume here' continues it\n")
    assert "Traceback" not in errors
    assert 0 < len(metrics.read_text().splitlines()) < 60
    assert call("resume", "here", "--quiet").exit_code == 0
    assert [json.loads(line)["round"] for line in metrics.read_text().splitlines()] == [
        *range(1, 61),
        60,
    ]


@pytest.mark.parametrize("seeds", [(), ("--seeds", "2")])
def test_a_finished_run_is_shown_where_its_picture_cannot_be_written(
    seeds: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert call("run", "hub-only", *QUICK, *seeds, "--out", "here").exit_code == 0
    (tmp_path / "here/curves.png").unlink()
    (tmp_path / "here/curves.png").mkdir()
    result = call("resume", "here")
    assert result.exit_code == 0, result.output
    assert (
        "here is already finished" in result.output
        and "best" in result.output
        and "picture" not in result.output
    )
    assert caplog.messages == ["the picture here/curves.png could not be written: Is a directory"]


def test_the_split_is_printed_drawn_saved_and_used_again(tmp_path: Path) -> None:
    words = ("--data", "digits", "--clients", "4", "--partition", "classes:3", "--labels", "hub:30")
    result = call("partition", *words, "--out", "chart.png", "--save", "split.json")
    assert result.exit_code == 0, result.output
    assert "hub" in result.output and "1407" in result.output
    with Image.open("chart.png") as image:
        assert image.format == "PNG"
    split = load_split("split.json")
    assert (len(split.hub), len(split.unlabelled)) == (30, 4)
    assert (
        call("run", "hub-only", *QUICK, "--split-file", "split.json", "--out", "here").exit_code
        == 0
    )
    used = RunFolder(tmp_path / "here").split()
    assert used.hub.tolist() == split.hub.tolist()
    misfit = call(
        "partition", "--data", "digits", "--set", "images=500", "--split-file", "split.json"
    )
    assert misfit.exit_code == 3 and "it was made for other data" in misfit.output, misfit.output


def test_nothing_is_written_beside_or_over_other_runs(tmp_path: Path) -> None:
    compared = (
        "compare",
        "semifl",
        "hub-only",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--executor",
        "loop",
        "--quiet",
    )
    assert call(*compared, "--out", "both").exit_code == 0
    before = {path: path.read_bytes() for path in Path("both").rglob("*") if path.is_file()}
    for words in (
        ("run", "hub-only", *QUICK),
        ("run", "hub-only", *QUICK, "--seeds", "2"),
        ("demo", "--seeds", "1"),
    ):
        result = call(*words, "--out", "both")
        assert result.exit_code == 4 and "choose another folder with --out" in result.output, (
            result.output
        )
    assert {path: path.read_bytes() for path in Path("both").rglob("*") if path.is_file()} == before
    assert call("report", "both").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [("run", "hub-only"), ("run", "hub-only", "--seeds", "2"), ("compare", "hub-only", "semifl")],
)
def test_no_run_is_written_among_other_files(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "images/hub").mkdir(parents=True)
    result = call(*words, *QUICK, "--out", "images")
    assert result.exit_code == StorageError.exit_code
    assert "hub is in it" in result.output
    assert [path.name for path in tmp_path.rglob("*")] == ["images", "hub"]


def test_what_an_early_end_leaves_behind_is_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("lock", "split.json", ".config.toml.123.partial"):
        (folder / name).touch()
    assert call("run", "hub-only", *QUICK, "--out", "here").exit_code == 0


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    (tmp_path / "chart.png").mkdir()
    for words in (("--save", "."), ("--out", "chart.png")):
        result = call("partition", *words)
        assert result.exit_code in (2, 4) and "is a folder; name a file in it" in result.output, (
            result.output
        )


def test_test_images_that_are_trained_on_are_told(tmp_path: Path) -> None:
    for place, grey in {
        "hub/a/0": 1,
        "hub/b/0": 2,
        "clients/x/0": 3,
        "test/a/0": 3,
        "test/b/0": 4,
    }.items():
        (tmp_path / place).parent.mkdir(parents=True)
        Image.new("L", (8, 8), grey).save(tmp_path / f"{place}.png")
    result = call("partition", "--data", "folder", "--data-root", str(tmp_path))
    assert (
        result.exit_code == 0
        and "1 of 2 test images are among the training images too" in result.output
    )


@pytest.mark.parametrize("what", [*look.LISTS, *METHODS, "presets"])
def test_a_list_has_a_line_for_each_name(what: str) -> None:
    result = call("list", what)
    assert result.exit_code == 0
    names = (
        PRESETS
        if what == "presets"
        else dict(look.lines_of(Names.of(), what))
        if what in look.LISTS
        else configure(what).settings
    )
    for name in names:
        assert any(line.startswith(f"{name} ") for line in result.output.splitlines()), name


def test_list_alone_shows_all_but_the_presets() -> None:
    output = call("list").output
    assert all(
        title in output for title in ("methods", "data", "models", "partitions", "labels", "views")
    )
    assert f"{len(PRESETS)} presets" in output


def test_no_line_of_a_list_in_a_pipe_ends_in_blanks() -> None:
    assert not [line for line in call("list").output.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run sem", {"semifl"}),
        ("compare semifl fedavg-mix", {"fedavg-mixmatch"}),
        ("run --preset hassle/cifar10-1", {"hassle/cifar10-10"}),
        ("run semifl --data dig", {"digits"}),
        ("list hass", {"hassle"}),
    ],
)
def test_the_shell_completes_names(words: str, offered: set[str]) -> None:
    asked = {
        "_FEDGLEAN_COMPLETE": "complete_bash",
        "COMP_WORDS": f"fedglean {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    result = CliRunner().invoke(cli.app, env=asked, prog_name="fedglean")
    assert offered <= set(result.output.split()) <= set(METHODS) | set(PRESETS) | {"digits"}


def test_the_version_is_printed() -> None:
    assert call("--version").output == f"fedglean {__version__}\n"


def test_the_demo_compares_three_runs_and_replaces_an_older_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in train.DEMO.values():
        monkeypatch.setitem(options, "rounds", 1)
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/notes.txt").write_text("mine")
    for seeds in ("1", "2"):
        result = call("demo", "--quiet", "--seeds", seeds)
        assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if "%" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["labels only", "SemiFL", "all labels"]
    assert "picture: runs/demo/curves.png" in result.output
    assert (tmp_path / "runs/demo/curves.png").exists()
    assert (tmp_path / "runs/demo/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_starts_on_digits_with_nothing_said(name: str) -> None:
    prepare(configure(name, data="digits")).start()

"""The papers' tables: every printed cell has its run, and ours stands beside it by the paper's own
convention.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner
from typer.testing import Result as Called

from fedglean import cli
from fedglean.cli.reproduce import _folder
from fedglean.errors import ConfigError, DataError, StorageError
from fedglean.runs.config import configure
from fedglean.runs.run import Run, Runs
from fedglean.runs.seeds import resume_seeds
from fedglean.studies import StudyOptions
from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce import STUDIES
from fedglean_papers.reproduce.provenance import provenance
from fedglean_papers.reproduce.tables import (
    TABLES,
    accuracy_as_printed,
    as_markdown,
    cells_of,
    compare,
    print_table,
)

DIGITS = ("--set", "data=digits", "--set", "device=cpu", "--set", "executor=loop", "--quiet")


def call(*words: str | Path) -> Called:
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, words)])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_tables_and_figures_are_listed() -> None:
    listed = call().output
    names = [f"semifl-table{n}" for n in (1, 2, 3, 4, 5)] + ["fed-shvr-table1"]
    names += [f"hassle-table{n}" for n in (1, 2, 3, 4, 5, 6, 7)]
    names += [f"semifl-fig{n}" for n in (2, 5, 6, 7, 8, 9, 10)] + [
        f"fed-shvr-fig{n}" for n in (2, 3, 4, 5, 6)
    ]
    names += [f"hassle-fig{n}" for n in (2, 4, 5, 6, 7, 8, 9, 10, 11)]
    assert set(names) <= set(STUDIES)
    assert all(f"\n{name} " in listed for name in names)


def test_every_preset_of_a_table_is_a_cell_of_that_table_and_of_no_other() -> None:
    printed = {name for name, preset in PRESETS.items() if preset.summary.startswith("Table ")}
    cells = [preset for table in TABLES for preset in cells_of(table).values()]
    assert len(cells) == len(set(cells)) and set(cells) <= printed
    twins = printed - set(cells)
    assert all(any(PRESETS[twin] == PRESETS[cell] for cell in cells) for twin in twins), (
        "left out without a twin"
    )
    assert {preset for preset in printed if not PRESETS[preset].published} == set()


def test_cells_are_named_after_the_presets_and_the_cheap_come_first() -> None:
    assert cells_of("hassle-table1")["cifar10-10"] == "hassle/cifar10-10"
    assert cells_of("semifl-table2")["fine-tune-global-iid"] == "semifl/table2-fine-tune-global-iid"
    assert cells_of("fed-shvr-table1")["mnist-iid"] == "fed-shvr/mnist-iid"
    order = list(cells_of("hassle-table1"))
    assert order.index("fedavg-fmnist-10") < order.index("fmnist-10") < order.index("cifar10-10")
    order = list(cells_of("semifl-table1"))
    assert (
        order.index("partially-cifar10-250")
        < order.index("cifar10-250-iid")
        < order.index("cifar100-2500-iid")
    )


def run_of(rounds: int, **accuracies: list[float]) -> Run:
    config = configure("hub-only", rounds=rounds)
    lines = [
        {
            "round": place + 1,
            "accuracy": {name: values[place] for name, values in accuracies.items()},
            "seconds": 1.0,
        }
        for place in range(rounds)
    ]
    return Run(config, lines)


def test_a_number_is_taken_as_its_paper_took_it() -> None:
    run = run_of(4, EM=[0.1, 0.2, 0.4, 0.3], SM=[0.7, 0.1, 0.1, 0.2])
    assert [accuracy_as_printed(run, number) for number in ("best", "EM", "SM")] == [0.4, 0.4, 0.7]
    assert [accuracy_as_printed(run, number) for number in ("round 1", "round 2", "round 100")] == [
        0.1,
        0.2,
        0.3,
    ]
    del run.history[0]["accuracy"]
    assert accuracy_as_printed(run, "round 1") is None


def lines_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["lines"]
    return found


def test_ours_stands_beside_the_published_number_and_work_is_done_once(tmp_path: Path) -> None:
    words = (
        "fed-shvr-table1",
        "--cell",
        "fedavg-mnist-iid",
        "--scale",
        "0.03",
        "--seeds",
        "2",
        *DIGITS,
    )
    first = call(*words)
    assert first.exit_code == 0, first.output
    folder = (
        tmp_path
        / "runs/reproduce/fed-shvr-table1-scale0.03-seeds2-data=digits-device=cpu-executor=loop"
    )
    one, hundred = lines_of(folder / "result.json")
    assert (one["number"], one["published"]) == ("round 1", 58.5)
    assert (hundred["number"], hundred["published"]) == ("round 100, here 3", 88.0)
    assert hundred["difference"] is None and not hundred["far"], "digits are not the paper's images"
    (path,) = folder.rglob("seeds.json")
    results = resume_seeds(path.parent)
    mnist = compare(
        "fedavg-mnist-iid", "fed-shvr/fedavg-mnist-iid", results, StudyOptions(tmp_path)
    )[1]
    assert mnist["difference"] == pytest.approx(hundred["ours"] - 88.0)
    assert mnist["far"] == (abs(mnist["difference"]) > 2)
    assert (hundred["rounds"], hundred["rounds_published"], hundred["scale"]) == (3, 100, 0.03)
    assert (
        hundred["ours"] == pytest.approx(hundred["last"]["mean"])
        and one["ours"] < hundred["best"]["mean"]
    )
    assert {"command", "machine", "commit", "seconds"} <= set(one) and one["options"][
        "data"
    ] == "digits"
    assert (
        "3 of 100" in first.output
        and "shortened runs" in first.output
        and "data=digits" in first.output
    )
    histories = {path: path.read_bytes() for path in folder.rglob("metrics.jsonl")}
    assert len(histories) == 2
    again = call(*words)
    assert again.exit_code == 0 and again.output == first.output
    assert {path: path.read_bytes() for path in folder.rglob("metrics.jsonl")} == histories
    other = call(*words, "--set", "rate=0.2", "--out", folder)
    assert other.exit_code == StorageError.exit_code and "another configuration" in other.stderr


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_narrow_screen_squeezes_out_no_name_and_no_number(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [run_of(2, model=[0.1 * seed, 0.612]) for seed in (1, 2)]
    results = Runs(runs[0].config, runs)
    lines = compare(
        "fedavg-all-mnist-noniid", "fed-shvr/fedavg-all-mnist-noniid", results, StudyOptions(Path())
    )
    print_table("fed-shvr-table1", lines, Console(width=width))
    text = capsys.readouterr().out
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    letters = "".join(text.split())
    for shown in ("94.3", "15.0", "±7.1", "-79.3*", "61.2", "round1"):
        assert shown in letters
    assert width < 80 or "fedavg-all-mnist-noniid" in letters


def test_cells_add_up_in_one_file_which_becomes_a_page(tmp_path: Path) -> None:
    small = (
        "--scale",
        "0.001",
        "--set",
        "model=mlp",
        "--set",
        "epochs=1",
        "--out",
        "here",
        *DIGITS,
    )
    for cell in ("fedavg-fmnist-10", "fmnist-10", "fedavg-fmnist-10"):
        done = call("hassle-table1", "--cell", cell, *small)
        assert done.exit_code == 0, done.output
    lines = lines_of(tmp_path / "here/result.json")
    assert [(line["cell"], line["number"]) for line in lines] == [
        ("fedavg-fmnist-10", "best round"),
        ("fmnist-10", "SM, best round"),
        ("fmnist-10", "UM, best round"),
        ("fmnist-10", "EM, best round"),
    ]
    assert lines[0]["seconds"] > 0, "found again, not trained again"
    page = as_markdown(tmp_path / "here/result.json")
    assert page == call("--render", "here/result.json").output
    assert page.startswith("# HASSLE, Table 1") and "| fmnist-10 " in page and "1 of 200" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 6 and len({row.count("|") for row in rows}) == 1
    assert "78.25" in rows[2] and f"{lines[0]['ours']:.1f}" in rows[2]
    assert provenance()["machine"] in page


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("hassle-tabel1", ConfigError.exit_code, "did you mean 'hassle-table1'?"),
        ("hassle-table1 --cell cifar10-11", ConfigError.exit_code, "did you mean 'cifar10-10'?"),
        (
            "--render none.json",
            StorageError.exit_code,
            "cannot read none.json: No such file or directory",
        ),
        ("hassle-table1 --scale 0", ConfigError.exit_code, "above 0 and at most 1"),
        ("semifl-fig2 --scale 1.1", ConfigError.exit_code, "above 0 and at most 1"),
        (
            "fed-shvr-theorem --scale 0.001",
            ConfigError.exit_code,
            "'short' fewer than 4 rounds a run",
        ),
        (
            "fed-shvr-theorem --scale 0.02",
            ConfigError.exit_code,
            "'long' fewer than 4 rounds a run; use at least --scale 0.04",
        ),
        (
            "hassle-table1 --cell cifar10-10",
            DataError.exit_code,
            "CIFAR10(root, download=True)), in a folder",
        ),
        ("hassle-table1 --data-root .", DataError.exit_code, "which is not in"),
        (
            "hassle-table4 --scale 0.5 --seeds 2",
            ConfigError.exit_code,
            "hassle-table4 does not use --seeds and --scale",
        ),
        (
            "hassle-table4 --set clients=7",
            ConfigError.exit_code,
            "hassle-table4 does not use --set",
        ),
        ("semifl-theorem --set foo=1", ConfigError.exit_code, "does not use --set"),
        ("semifl-theorem --seeds 2", ConfigError.exit_code, "does not use --seeds"),
        ("fed-shvr-theorem --set rate=0.5", ConfigError.exit_code, "does not use --set"),
        ("hassle-fig7 --scale 0.5", ConfigError.exit_code, "does not use --scale"),
        ("semifl-fig10 --set foo=1", ConfigError.exit_code, "unknown option of semifl 'foo'"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(words: str, code: int, sentence: str) -> None:
    called = call(*words.split())
    assert called.exit_code == code and sentence in called.stderr, called.output
    assert len(called.stderr.strip().splitlines()) == 1 and not list(Path().iterdir())


@pytest.mark.parametrize(
    ("seeds", "scale", "options", "folder"),
    [
        (1, 1.0, [], "t"),
        (3, 1.0, [("images", 5000)], "t-seeds3-images=5000"),
        (
            1,
            0.5,
            [("partition", "classes:2"), ("dtype", "float64")],
            "t-scale0.5-partition=classes-2-dtype=float64",
        ),
        (1, 1.0, [("checkpoint_every", 9), ("placement", "workers"), ("engine.workers", 2)], "t"),
    ],
)
def test_what_cannot_go_on_from_another_has_a_folder_of_its_own(
    seeds: int, scale: float, options: list[tuple[str, Any]], folder: str
) -> None:
    """A first look is not in the way of the real run."""
    assert _folder("t", seeds, scale, options) == folder


def test_tables_of_settings_are_counted_from_what_runs_are_given(tmp_path: Path) -> None:
    assert "ours but for 10 %" in " ".join(call("hassle-table4", "--out", "four").output.split())
    rows = json.loads((tmp_path / "four/result.json").read_text())["rows"]
    assert rows["10%"] == {"fully labelled": 1, "partially labelled": 9, "unlabelled": 10}
    assert rows["5%"]["unlabelled"] == 18
    assert "hub_batch 250" in call("semifl-table4", "--out", "hyper").output

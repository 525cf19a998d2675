"""Campaigns: many runs from one file, in order of worth, stopped in time and gone on with."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedglean
from fedglean.errors import ConfigError, UntrustedError
from fedglean.names import Names
from fedglean.runs.campaign import carry_out, plan_runs, read_campaign, write_results

TWO = """
parallel = 2

[options]
data = "digits"
clients = 5
rounds = 3

[[cells]]
method = "semifl"
options = { labels = "hub:20" }
seeds = [0, 1]

[[cells]]
method = "fedavg"
options = { labels = "all" }
value = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "two.toml"
    path.write_text(text)
    return path


def command(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedglean", "campaign", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_run_is_done_and_is_what_it_would_be_alone(tmp_path: Path) -> None:
    done = command(written(tmp_path, TWO), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out/runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["cell"], row["seed"]) for row in rows] == [
        ("fedavg", "0"),
        ("semifl", "0"),
        ("semifl", "1"),
    ]
    alone = fedglean.run("semifl", data="digits", clients=5, rounds=3, labels="hub:20", seed=1)
    assert float(rows[2]["last"]) == pytest.approx(100 * alone.last.accuracy, abs=0.01)
    again = command(tmp_path / "two.toml", "--out", tmp_path / "out")
    assert again.returncode == 0
    assert "started" not in again.stdout


def test_the_noted_command_trains_to_the_same_model(tmp_path: Path) -> None:
    plan = read_campaign(written(tmp_path, TWO))
    entry = plan_runs(plan, tmp_path / "out", {})[0]
    assert carry_out([entry], 1) == []
    words = json.loads(entry.record.read_bytes())["command"]
    elsewhere = str(tmp_path / "elsewhere")
    again = [sys.executable, "-m", "fedglean", *words, "--out", elsewhere]
    subprocess.run(again, check=True, capture_output=True)
    models = [Path(place, "model.safetensors").read_bytes() for place in (entry.folder, elsewhere)]
    assert models[0] == models[1]


def test_when_time_is_up_runs_stop_and_go_on_later(tmp_path: Path) -> None:
    plan = read_campaign(written(tmp_path, TWO.replace("rounds = 3", "rounds = 100000")))
    planned = plan_runs(plan, tmp_path / "out", {})
    for turn in range(1, 9):  # a busy machine may need minutes to begin
        assert carry_out(planned, 2, minutes=0.2 * turn) == []
        played = [len(run.history) for run in (entry.run() for entry in planned[:2]) if run]
        if len(played) == 2 and min(played) > 0:
            break
    assert len(played) == 2
    assert min(played) > 0
    assert planned[2].run() is None
    assert planned[0].words()[0] == "resume"


def test_the_order_is_by_worth_for_time_and_first_seeds_come_first(tmp_path: Path) -> None:
    plan = read_campaign(written(tmp_path, TWO))
    names = [entry.name for entry in plan_runs(plan, tmp_path, {})]
    assert names == ["fedavg, seed 0", "semifl, seed 0", "semifl, seed 1"]


def test_a_pattern_stands_for_every_preset_that_fits(tmp_path: Path) -> None:
    path = written(tmp_path, '[[cells]]\npreset = "hassle/fed*-fmnist-5"\n')
    found = {entry.config.method for entry in plan_runs(read_campaign(path), tmp_path, {})}
    assert found == {"fedavg", "fedprox", "fedavg-mixmatch", "fedavg-fixmatch", "fedmatch"}


def test_published_numbers_stand_beside_ours(tmp_path: Path) -> None:
    preset = "fed-shvr/fedavg-mnist-iid"
    options = '{ data = "digits", rounds = 2, labels = "each:10" }'
    path = written(tmp_path, f'[[cells]]\npreset = "{preset}"\noptions = {options}\n')
    planned = plan_runs(read_campaign(path), tmp_path / "out", {})
    assert carry_out(planned, 1) == []
    write_results(planned, tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    published = Names.of().tables["PRESETS"][preset].published
    assert [row["compared"] for row in rows] == ["round 1"]  # there is no round 100
    assert float(rows[0]["published"]) == published["round 1"]
    run = planned[0].run()
    assert run is not None
    first = 100 * run.history[0]["accuracy"]["model"]
    assert float(rows[0]["difference"]) == pytest.approx(first - published["round 1"], abs=0.01)


def test_the_file_on_the_page_can_be_planned(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[1] / "docs/howto/campaign.md"
    text = page.read_text("utf-8").split("```toml\n")[1].split("```")[0]
    assert len(plan_runs(read_campaign(written(tmp_path, text)), tmp_path / "out", {})) == 3 + 5 + 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "cells"),
        ("cells = []", "cells"),
        ("[[cells]]\nseeds = [0]", "method"),
        ('[[cells]]\nmethod = "semfl"', "semifl"),
        ('[[cells]]\npreset = "hassle/none*"', "preset"),
        ('[[cells]]\nmethod = "semifl"\nminutes = 0', "minutes"),
        ('[[cells]]\nmethod = "semifl"\nname = ".."', "folder"),
        ('[[cells]]\nmethod = "semifl"\noptions = { labels = "hub:20", colour = 3 }', "colour"),
        (TWO.replace("[0, 1]", "[1, 1]"), "seed 1"),
    ],
)
def test_a_mistake_is_told_before_anything_trains(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        plan_runs(read_campaign(written(tmp_path, text)), tmp_path / "out", {})
    assert not (tmp_path / "out").exists()


def test_code_that_the_file_names_runs_only_if_it_is_trusted(tmp_path: Path) -> None:
    mark, code = tmp_path / "ran", tmp_path / "code.py"
    code.write_text(f"open({str(mark)!r}, 'w').close()\nVIEWS = {{'mine': max}}\n")
    text = TWO.replace("clients = 5", f"clients = 5\nuse = {json.dumps(str(code))}")
    plan = read_campaign(written(tmp_path, text))
    with pytest.raises(UntrustedError):
        plan_runs(plan, tmp_path / "out", {})
    assert not mark.exists()
    assert len(plan_runs(plan, tmp_path / "out", {}, trust=True)) == 3


def test_a_run_that_fails_is_told_and_the_others_are_done(tmp_path: Path) -> None:
    text = TWO.replace('labels = "all"', 'labels = "all", rate = 1e30')
    done = command(written(tmp_path, text), "--out", tmp_path / "out")
    assert done.returncode == 5
    assert "failed: fedavg, seed 0" in done.stdout
    assert "2 of 3 runs are done" in done.stdout

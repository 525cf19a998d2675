"""Replays: the same bits are told, other ones are told with how far apart they are."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fedglean
from fedglean.cli import app
from fedglean.errors import StorageError
from fedglean.runs.campaign import carry_out, plan_runs, read_campaign, write_results

CAMPAIGN = """
[[cells]]
method = "semifl"
options = { data = "digits", clients = 5, rounds = 2, labels = "hub:20", USE }
"""


def verify(*words: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, words), "--quiet"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    fedglean.run("semifl", data="digits", clients=5, rounds=2, labels="hub:20", out=place)
    return place


@pytest.fixture
def table(tmp_path: Path) -> Path:
    plan = tmp_path / "plan.toml"
    plan.write_text(CAMPAIGN.replace(", USE", ""))
    planned = plan_runs(read_campaign(plan), tmp_path, {})
    assert carry_out(planned, 1) == []
    write_results(planned, tmp_path / "runs.csv")
    return tmp_path / "runs.csv"


def changed(table: Path, column: str, value: str) -> None:
    with table.open() as file:
        rows = list(csv.DictReader(file))
    with table.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, column: value} for row in rows)


def test_a_run_and_its_replay_have_the_same_bits(folder: Path) -> None:
    done = verify(folder)
    assert done.exit_code == 0
    assert "bit for bit" in done.output


def test_a_line_of_a_table_is_replayed(table: Path) -> None:
    done = verify(table, "--cell", "semifl")
    assert done.exit_code == 0
    assert "bit for bit" in done.output


def test_what_differs_on_this_machine_can_be_said(folder: Path, table: Path) -> None:
    for words in ([folder], [table, "--cell", "semifl"]):
        done = verify(*words, "--set", "seed=1", "--tolerance", "100")
        assert done.exit_code == 0
        assert "not the same bits" in done.output


def test_other_bits_within_the_tolerance_are_told(table: Path) -> None:
    changed(table, "digest", "0" * 64)
    done = verify(table, "--cell", "semifl")
    assert done.exit_code == 0
    assert "not the same bits" in done.output


def test_a_result_that_was_never_measured_fails(table: Path) -> None:
    changed(table, "digest", "0" * 64)
    changed(table, "last", "99.9")
    assert verify(table, "--cell", "semifl").exit_code == 5


@pytest.mark.parametrize("words", [[], ["--cell", "semfl"], ["--cell", "semifl", "--seed", "7"]])
def test_what_is_not_in_the_table_is_a_sentence(table: Path, words: list[str]) -> None:
    done = CliRunner().invoke(app, ["verify", str(table), *words])
    assert done.exit_code == 2
    assert "Traceback" not in done.output


@pytest.mark.parametrize("text", ["rm -rf /", "fedglean run --seed", "fedglean", "'"])
def test_a_damaged_command_is_a_sentence(table: Path, text: str) -> None:
    changed(table, "command", text)
    assert verify(table, "--cell", "semifl").exit_code == StorageError.exit_code


def test_an_unfinished_run_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert verify(folder).exit_code == StorageError.exit_code


def test_code_that_a_table_names_is_not_run(table: Path, tmp_path: Path) -> None:
    mark, code = tmp_path / "ran", tmp_path / "code.py"
    code.write_text(f"open({str(mark)!r}, 'w').close()\nVIEWS = {{'mine': max}}\n")
    changed(
        table, "command", f"fedglean run semifl --use {json.dumps(str(code))} --set data=digits"
    )
    verify(table, "--cell", "semifl")
    assert not mark.exists()

"""What holds no run, or no longer what was written, is refused in a sentence by whatever shows
runs.
"""

import shutil
from pathlib import Path

import pytest

from shown_runs import Made, call


@pytest.mark.parametrize("command", ["report", "watch", "tensorboard"])
def test_a_history_that_is_not_the_one_that_was_written_is_not_shown(
    made: Made, tmp_path: Path, command: str
) -> None:
    shutil.copytree(made.all / "semifl/seed-0", tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"round": 2', '"round": 1', 1))
    damaged = call(command, tmp_path / "run")
    assert (
        damaged.exit_code == 4
        and "metrics.jsonl is damaged: its checksum does not match" in damaged.stderr
    )


@pytest.mark.parametrize("command", ["report", "watch", "tensorboard"])
def test_what_holds_no_run_is_refused_in_a_sentence(tmp_path: Path, command: str) -> None:
    nowhere, empty = call(command, tmp_path / "nowhere"), call(command, tmp_path)
    assert (nowhere.exit_code, empty.exit_code) == (4, 4)
    assert "there is no folder" in nowhere.stderr and "holds no run" in empty.stderr
    (tmp_path / "config.toml").write_text("method = 'semifl'\n")
    for line in ("nonsense", "[]", "{}"):
        (tmp_path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{line}\n')
        damaged = call(command, tmp_path)
        assert damaged.exit_code == 4 and "line 2" in damaged.stderr


@pytest.mark.parametrize(
    "junk", ["null", "[1]", "{}", '{"seeds": [1e999]}', '{"entries": [null]}', "[" * 10**5], ids=len
)
@pytest.mark.parametrize("name", ["seeds.json", "compare.json"])
@pytest.mark.parametrize("command", ["report", "resume"])
def test_what_lists_runs_and_is_damaged_is_told_in_a_sentence(
    tmp_path: Path, command: str, name: str, junk: str
) -> None:
    (tmp_path / name).write_text(junk)
    damaged = call(command, tmp_path)
    assert damaged.exit_code == 4 and "is damaged: its " in damaged.stderr

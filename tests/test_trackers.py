"""Trackers hear of every round once, and none of them can end a run."""

import logging
from pathlib import Path
from typing import Any

import pytest

import fedglean
from fedglean.errors import ConfigError
from fedglean.names import Names
from fedglean.report.page import Page
from fedglean.report.terminal import Terminal
from fedglean.report.tracker import TRACKERS, Lines, trackers_of
from fedglean.runs.run import Runs, step_of
from shown_runs import call, lines

SMALL: dict[str, Any] = {
    "labels": "hub:20",
    "clients": 3,
    "model": "mlp",
    "epochs": 1,
    "executor": "loop",
    "rounds": 2,
}


class Noting:
    """Keeps what it hears; breaks where it is told to."""

    def __init__(self, breaks_at: str = "") -> None:
        self.heard: list[Any] = []
        self.breaks_at = breaks_at

    def begin(self, runs: Runs) -> None:
        self._note("begin", [len(run.history) for run in runs])

    def round(self, lines: Lines) -> None:
        self._note("round", {seed: step_of(line) for seed, line in lines.items()})

    def end(self, runs: Runs) -> None:
        self._note("end", runs.finished)

    def _note(self, event: str, what: Any) -> None:
        if event == self.breaks_at:
            raise ValueError("no such luck")
        self.heard.append((event, what))


def test_a_tracker_hears_of_every_round_of_every_seed() -> None:
    tracker = Noting()
    fedglean.run("hub-only", 2, track=[tracker], **SMALL)
    assert tracker.heard == [
        ("begin", [0, 0]),
        ("round", {0: 1, 1: 1}),
        ("round", {0: 2, 1: 2}),
        ("round", {0: 3, 1: 3}),
        ("end", True),
    ]


def test_a_stopped_run_ends_unfinished_and_begins_with_its_history(tmp_path: Path) -> None:
    def stop(lines: Lines) -> None:
        raise KeyboardInterrupt

    first, second = Noting(), Noting()
    with pytest.raises(KeyboardInterrupt):
        fedglean.run("hub-only", track=[first], on_round=stop, out=tmp_path / "run", **SMALL)
    fedglean.resume(tmp_path / "run", track=[second])
    assert first.heard == [("begin", [0]), ("round", {0: 1}), ("end", False)]
    assert second.heard == [("begin", [1]), ("round", {0: 2}), ("round", {0: 3}), ("end", True)]


@pytest.mark.parametrize("event", ["begin", "round", "end"])
def test_a_tracker_that_fails_is_told_of_once_and_the_run_goes_on(
    event: str, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = Noting(event), Noting()
    with caplog.at_level(logging.WARNING):
        runs = fedglean.run("hub-only", track=[failing, other], **SMALL)
    assert runs.finished and len(runs.history) == 3 and len(other.heard) == 5
    (record,) = caplog.records
    assert "Noting" in record.getMessage() and "no such luck" in record.getMessage()


def test_what_the_user_can_mend_refuses_the_run_before_its_first_round() -> None:
    before = Noting()
    with pytest.raises(ConfigError, match="folder"):
        fedglean.run("hub-only", track=[before, "page"], **SMALL)
    assert before.heard == [("begin", [0]), ("end", False)]


def test_trackers_are_found_by_name_or_are_given() -> None:
    own = Noting()
    names = Names.of()
    assert [type(each) for each in trackers_of("page, terminal", names)] == [Page, Terminal]
    assert trackers_of([own], names) == [own] and trackers_of("", names) == []
    with pytest.raises(ConfigError, match="tensorboard"):
        trackers_of("tensorbord", names)


LOUD = """
class Loud:
    \"\"\"Counts rounds aloud.\"\"\"

    def begin(self, runs):
        print("begin")

    def round(self, lines):
        print("a round")

    def end(self, runs):
        print("end")

TRACKERS = {"loud": Loud}
"""


def test_a_file_a_package_or_a_module_brings_a_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "louder.py").write_text(LOUD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["run", "hub-only", "--rounds", "1", "--quiet", "--set", "epochs=1"]
    used = call(*words, "--use", "louder.py", "--track", "loud")
    assert used.exit_code == 0 and used.output.startswith("begin\na round\na round\nend\n")
    imported = call(*words, "--track", "louder:Loud")
    assert imported.exit_code == 0 and imported.output.startswith("begin\n")
    assert "Counts rounds aloud" in call("list", "trackers", "--use", "louder.py").output


def test_every_tracker_is_on_its_page() -> None:
    page = (Path(__file__).parents[1] / "docs/howto/trackers.md").read_text("utf-8")
    assert all(f"| `{name}` |" in page for name in TRACKERS)


def test_a_resumed_run_is_in_tensorboard_from_its_first_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def stop(lines: Lines) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedglean.run("hub-only", out=out, on_round=stop, track="tensorboard", **SMALL)
    assert call("resume", out, "--track", "tensorboard,page", "--quiet").exit_code == 0
    (file,) = (out / "tensorboard/seed-0").iterdir()
    scalars = EventAccumulator(str(file.parent)).Reload().Scalars("accuracy/model")
    assert [each.step for each in scalars] == [1, 2, 3]
    expected = [line["accuracy"]["model"] for line in lines(out)]
    assert [each.value for each in scalars] == pytest.approx(expected)
    assert "hub-only reaches" in (out / "report.html").read_text("utf-8")


def test_a_comparison_tracks_each_method_in_its_own_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    small = {**SMALL, "rounds": 1, "threshold": 0.3}
    fedglean.compare("semifl", 1, out=tmp_path, track="tensorboard", **small)
    assert len(list(tmp_path.glob("*/tensorboard/seed-0/events.*"))) == 2


@pytest.mark.filterwarnings("ignore")  # of what it is made of
def test_mlflow_has_every_round_and_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fedglean.run("hub-only", out=tmp_path, track="mlflow", **SMALL)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedglean")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "accuracy/model")
    assert [each.value for each in history] == [
        line["accuracy"]["model"] for line in lines(tmp_path)
    ]
    assert run.data.params["epochs"] == "1" and run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")  # of what it is made of
def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    fedglean.run("hub-only", 2, out=tmp_path, track="wandb", **SMALL)
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 2


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_named_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"fedglean\[{name}\]"):
        trackers_of(name, Names.of())

"""The doors: a useful stranger at each, from the folder `examples`, in a run."""

import csv
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedglean
from fedglean import doors, tree
from fedglean.errors import ConfigError, FedgleanError
from fedglean.exchange.aggregate import MEAN, Aggregate, Weighted
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare
from fedglean.testing.difference import difference
from fedglean.testing.engines import with_delivery
from fedglean.testing.faults import poison
from fedglean.testing.play import play

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SMALL: dict[str, Any] = {
    "clients": 4,
    "labels": "each:10",
    "rounds": 2,
    "epochs": 1,
    "images": 200,
    "executor": "loop",
    "device": "cpu",
}


def example(door: str) -> Path:
    return EXAMPLES / f"own_{door}.py"


def run(method: str = "fedavg", **options: Any) -> fedglean.Run:
    (found,) = fedglean.run(method, **SMALL | options)
    return found


def without_times(found: fedglean.Run) -> list[dict[str, Any]]:
    untold = ("seconds", "phases", "widest")
    return [
        {key: value for key, value in line.items() if key not in untold} for line in found.history
    ]


def test_the_page_of_the_doors_lists_what_the_module_offers() -> None:
    text = (ROOT / "docs/howto/doors.md").read_text("utf-8")
    (listed,) = re.findall(r"from fedglean.doors import \(([\w, \n]+)\)", text)
    assert sorted(re.findall(r"\w+", listed)) == sorted(doors.__all__) == doors.__all__
    assert {name for name in doors.__all__ if name not in str(doors.__doc__)} <= {
        "ClientStates",
        *(name for name in doors.__all__ if name.endswith("Kind")),
    }


def test_lion_trains_and_its_step_is_what_one_computes_by_hand() -> None:
    used = run(use=example("optimiser"), optimiser="lion", rate=0.001)
    assert len(used.history) == 2 and "accuracy" in used.history[-1]
    lion = runpy.run_path(str(example("optimiser")))["Lion"](0.1, decay=0.5)
    weights, gradient = {"a": torch.tensor([1.0, -2.0])}, {"a": torch.tensor([3.0, -1.0])}
    new, memory = lion.update(weights, lion.init(weights), gradient, torch.tensor(0.1))
    # w - 0.1 * (sign(0.1 g) + 0.5 w)
    torch.testing.assert_close(new["a"], torch.tensor([0.85, -1.8]))
    torch.testing.assert_close(memory["mean"]["a"], torch.tensor([0.03, -0.01]))


def trimmed(share: str) -> Aggregate:
    made: Aggregate = runpy.run_path(str(example("aggregate")))["trimmed"](share)
    return made


def test_the_trimmed_mean_of_no_share_is_the_mean() -> None:
    options: dict[str, Any] = {**SMALL, "dtype": "float64"}
    plain = play(prepare(configure("fedavg", **options)))
    config = configure("fedavg", use=example("aggregate"), aggregate="trimmed:0", **options)
    assert difference(plain.tree, play(prepare(config)).tree, 1e-10) is None


def test_the_trimmed_mean_is_what_one_computes_by_hand_in_any_blocks() -> None:
    aggregate = trimmed("0.25")
    blocks = []
    for client, (value, weight) in enumerate([(9.0, 1.0), (1.0, 1.0), (4.0, 3.0), (-50.0, 1.0)]):
        row = torch.tensor([value])
        weighted = Weighted(client, {"x": row}, {"x": weight})
        blocks.append(aggregate.add(aggregate.start(), weighted))
    kept = aggregate.start()
    for block in blocks:
        kept = aggregate.merge(kept, block)
    combined = aggregate.combine(kept)["x"]
    # Of the weight 6, the 1.5 at each end go: -50 and half of 1, and 9 and half of one of 4.
    mean = (0.5 * 1 + 2.5 * 4) / 3
    torch.testing.assert_close(combined.total / combined.weight, torch.tensor([mean]).double())
    assert float(combined.weight) == 6.0 and combined.count == 4


@pytest.mark.parametrize("share", ["0.5", "-0.1", "much"])
def test_a_share_that_leaves_nothing_is_refused(share: str) -> None:
    with pytest.raises(ConfigError, match="share"):
        trimmed(share)


def test_a_value_that_an_aggregate_cannot_take_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(
        'def half(of):\n    "a number"\n    float(of)\n\nAGGREGATES = {"half:OF": half}\n'
    )
    config = configure("fedavg", use=file, aggregate="half:much", **SMALL)
    with pytest.raises(ConfigError, match=r"'half:much' cannot be made.*'much'"):
        prepare(config)


def test_three_of_ten_poisoned_clients_hurt_the_trimmed_mean_less_than_the_mean() -> None:
    options: dict[str, Any] = {**SMALL, "clients": 10, "rounds": 1}
    experiment = prepare(configure("fedavg", **options))

    def final(aggregate: Aggregate, deliver: Any = None) -> torch.Tensor:
        clients = replace(experiment.placement.clients, aggregate=aggregate)  # type: ignore[attr-defined]
        placed = replace(experiment.placement, clients=clients)  # type: ignore[type-var]
        exchanger = replace(experiment.exchanger, placement=placed, aggregate=aggregate)
        here: Experiment = replace(experiment, exchanger=exchanger)
        if deliver is not None:
            here = with_delivery(here, deliver)
        model = play(here).state.model
        return torch.cat([leaf.flatten() for leaf in model.parameters.values()])

    def moved_away(upload: Any) -> Any:
        far = tree.map(lambda leaf: leaf + 1.0, upload.trees)
        return fedglean.Upload.of(far, weight=upload.all_weights, report=upload.report)

    attack = poison(moved_away, (1, 0), (1, 4), (1, 7))
    honest = final(MEAN)
    hurt = torch.dist(final(MEAN, attack), honest)
    protected = torch.dist(final(trimmed("0.35"), attack), honest)
    assert protected < hurt / 2


def test_the_table_has_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    by_file = run(use=example("tracker"), track="csv", out=tmp_path / "file")
    by_place = run(track="own_tracker:Table", out=tmp_path / "place")
    for found in (by_file, by_place):
        assert found.folder is not None
        rows = list(csv.DictReader((found.folder / "rounds.csv").read_text().splitlines()))
        accuracies = [
            (str(line["round"]), model, str(accuracy))
            for line in found.history
            for model, accuracy in line["accuracy"].items()
        ]
        assert [(row["round"], row["model"], row["accuracy"]) for row in rows] == accuracies
        assert len(rows) >= 2


def test_the_timed_executor_computes_what_the_loop_does(capfd: pytest.CaptureFixture[str]) -> None:
    plain = run("semifl", labels="hub:20", threshold=0.0)
    timed = run("semifl", labels="hub:20", threshold=0.0, use=example("executor"), executor="timed")
    assert without_times(plain) == without_times(timed)
    assert re.search(r"Train \d+\.\d+ s", capfd.readouterr().err)


def run_at_once(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """A queue in this process: what the script of a job would do."""
    (line,) = [line for line in Path(command[-1]).read_text().splitlines() if "exec" in line]
    _, _, *words = shlex.split(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        runpy.run_path(words[0], run_name="__main__")
    return subprocess.CompletedProcess(command, 0)


def check_queue_equals_here(method: str, folder: Path, **options: Any) -> None:
    here = run(method, **options, out=folder / "here")
    queue = {"use": example("placement"), "placement": "queue"}
    away = run(method, **options, **queue, out=folder / "away")
    assert without_times(here) == without_times(away)
    assert here.folder is not None and away.folder is not None
    models = [(each.folder / "model.safetensors").read_bytes() for each in (here, away)]
    assert models[0] == models[1]
    assert list((folder / "queue").rglob("*.answer"))


@pytest.mark.parametrize(
    ("method", "options"),
    [("semifl", {"labels": "hub:20", "threshold": 0.0}), ("scaffold", {"labels": "each:10"})],
)
def test_jobs_give_the_bits_of_one_process(
    method: str, options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    monkeypatch.setenv("SUBMIT", "sh")
    monkeypatch.setattr("subprocess.run", run_at_once)
    check_queue_equals_here(method, tmp_path, block=2, **options)


def test_a_command_that_takes_scripts_is_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    monkeypatch.setenv("SUBMIT", "sh")  # takes a script, as sbatch does, and runs it at once
    check_queue_equals_here("fedavg", tmp_path, block=4, rounds=1, norm="group")


def test_a_job_that_fails_ends_the_run_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", str(tmp_path))
    queue = runpy.run_path(str(example("placement")))
    clients = prepare(configure("fedavg", **SMALL)).placement
    place = queue["Queue"](clients, configure("fedavg", **SMALL))
    (tmp_path / "a.answer").write_bytes(queue["pack"](None, error="no memory"))
    with pytest.raises(FedgleanError, match="no memory"):
        place.answer_to(tmp_path / "a.job")


def test_a_queue_that_is_not_there_is_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMIT", "no-such-queue")
    with pytest.raises(ConfigError, match="no-such-queue"):
        run(use=example("placement"), placement="queue")

"""Several seeds side by side are the runs that each of them would have been alone."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedglean import cli, tree
from fedglean.engine.lanes import StackTrainer
from fedglean.errors import ConfigError, StorageError
from fedglean.report.tracker import Lines, Trackers
from fedglean.runs.config import Config, configure
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import kind_of
from fedglean.runs.seeds import resume_seeds, train_seeds
from single_runs import resume, run

ROUNDS = 3  # and what SemiFL does after the last of them


def config(**options: Any) -> Config:
    small = {
        "data": "digits",
        "model": "mlp",
        "clients": 6,
        "rounds": ROUNDS,
        "labels": "hub:50",
        "active": 0.5,
        "epochs": 1,
        "threshold": 0.3,
        "device": "cpu",
        "executor": "stack",
        "block": 2,
    }
    return configure("semifl", **small | options)


def told(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "phases")}
        for line in history
    ]


def files(folder: Path) -> dict[str, bytes]:
    """What a run left that its bits show in; metrics without their seconds."""
    named = json.loads((folder / "checkpoint/current.json").read_text())["content"][
        "files"
    ].values()
    kept = {entry["file"]: (folder / "checkpoint" / entry["file"]).read_bytes() for entry in named}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return kept | {
        "model": (folder / "model.safetensors").read_bytes(),
        "metrics": json.dumps(told(lines)).encode(),
    }


def test_one_by_one_every_seed_has_the_bits_of_its_own_run(tmp_path: Path) -> None:
    group = train_seeds(config(executor="loop", rounds=2), 2, tmp_path / "group")
    for seed, result in enumerate(group):
        run(config(executor="loop", rounds=2, seed=seed), tmp_path / f"alone-{seed}")
        assert result.config.seed == seed
        assert files(tmp_path / f"group/seed-{seed}") == files(tmp_path / f"alone-{seed}")


@pytest.mark.parametrize("method", ["semifl", "hassle", "fed-shvr"])
def test_in_one_stack_every_seed_makes_the_choices_of_its_own_run(method: str) -> None:
    labels = {"semifl": "hub:50", "hassle": "LU:50%", "fed-shvr": "mismatch-digits:6"}[method]
    few = {
        "semifl": {"epochs": 1, "threshold": 0.3},
        "hassle": {"epochs": 1},
        "fed-shvr": {"rounds": 1},
    }[method]
    it = configure(
        method,
        data="digits",
        model="mlp",
        clients=5,
        labels=labels,
        device="cpu",
        executor="stack",
        dtype="float64",
        **{"rounds": 2} | few,
    )
    group = train_seeds(it, 2)
    for result in group:
        alone = run(replace(it, seed=result.config.seed))
        for name, predictor in alone.predictors.items():
            a, b = (
                tree.row(list(each))
                for each in (_models(predictor), _models(result.predictors[name]))
            )
            assert float((a - b).abs().max() / a.abs().max()) < 1e-10
        for mine, its in zip(told(alone.history), told(result.history), strict=True):
            assert mine["answered"] == its["answered"] and mine["bytes_up"] == its["bytes_up"]
            assert mine["pseudo"] == pytest.approx(its["pseudo"], rel=1e-9)


def _models(predictor: Any) -> Any:
    return getattr(predictor, "models", (predictor,))


def tiny(folder: Path) -> Path:
    """Noise at a hub and three clients, so little that a run takes no time."""
    path = folder / "tiny.npz"
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (50, 8, 8), np.uint8),
        np.arange(20) % 4,
    )
    np.savez(
        path,
        hub_images=images[:20],
        hub_labels=labels,
        client_images=images[20:],
        client_ids=np.arange(30) % 3,
        test_images=images[:20],
        test_labels=labels,
    )
    return path


def test_a_group_cut_off_at_any_move_of_a_file_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = config(
        rounds=2, active=1.0, data="npz", data_root=str(tiny(tmp_path)), clients=None, labels=None
    )
    train_seeds(it, 2, tmp_path / "whole")
    moved, moves = os.replace, 0

    def cut_off(new: Path, path: Path) -> None:
        nonlocal moves
        moves += 1
        if moves == last:
            raise KeyboardInterrupt
        moved(new, path)

    monkeypatch.setattr(os, "replace", cut_off)
    last = 0
    train_seeds(it, 2, tmp_path / "counted")
    assert moves > 30
    for stop in range(2, moves + 1, 3):
        moves, last = 0, stop
        folder = tmp_path / f"cut-{stop}"
        with pytest.raises(KeyboardInterrupt):
            train_seeds(it, 2, folder)
        last = 0
        resume_seeds(folder) if kind_of(folder) else train_seeds(it, 2, folder)
        for seed in ("seed-0", "seed-1"):
            assert files(folder / seed) == files(tmp_path / "whole" / seed), (
                f"cut off at move {stop}"
            )


def test_a_finished_group_is_returned_as_it_is_and_never_overwritten(tmp_path: Path) -> None:
    group = train_seeds(config(), 2, tmp_path / "group")
    played: list[Any] = []
    again = resume_seeds(tmp_path / "group", Trackers(on_round=played.append))
    assert not played and [told(each.history) for each in again] == [told(e.history) for e in group]
    with pytest.raises(StorageError, match="already holds a run"):
        train_seeds(config(), 2, tmp_path / "group")


def test_who_looks_at_a_group_at_work_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_seeds(config(), 2, tmp_path)
    for seed in ("seed-0", "seed-1"):  # as between the group's moment and the moves that follow it
        (tmp_path / seed / "model.safetensors").unlink()
        (tmp_path / seed / "checkpoint/current.json").rename(
            tmp_path / seed / "checkpoint/next.json"
        )

    def taken(place: Path, folder: Path) -> Any:
        raise StorageError(f"another process is working in {folder}")

    monkeypatch.setattr("fedglean.runs.folder.lock", taken)
    with pytest.raises(StorageError, match="another process is working"):
        resume_seeds(tmp_path)
    assert all((tmp_path / seed / "checkpoint/next.json").exists() for seed in ("seed-0", "seed-1"))


def test_a_seed_that_went_ahead_alone_waits_for_the_others(tmp_path: Path) -> None:
    stopped: list[Any] = []

    def stop(lines: Lines) -> None:
        stopped.append(lines)
        if len(stopped) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_seeds(config(), 2, tmp_path, Trackers(on_round=stop))
    resume(tmp_path / "seed-1")
    counts: list[int] = []
    trackers = Trackers(on_round=lambda lines: counts.append(len(lines)))
    group = resume_seeds(tmp_path, trackers)
    assert counts == [1, 1] and [len(each.history) for each in group] == [ROUNDS + 1] * 2


def test_mean_and_spread_are_those_of_the_seeds() -> None:
    group = train_seeds(config(), 3)
    values = torch.tensor([result.last.accuracy for result in group], dtype=torch.float64)
    spread = group.last.spread
    assert spread.mean == pytest.approx(float(values.mean())) and spread.deviation == pytest.approx(
        float(values.std())
    )
    assert (spread.worst, spread.best) == (min(values.tolist()), max(values.tolist()))
    assert len({result.last.accuracy for result in group}) > 1
    assert train_seeds(config(rounds=1), 1).last.spread.deviation == 0
    with pytest.raises(ConfigError, match="at least 1"):
        train_seeds(config(), 0)


def test_the_command_line_runs_resumes_and_shows_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--set", "epochs=1", "--rounds", "2", "--clients", "4", "--model", "mlp", "--quiet")
    result = CliRunner().invoke(
        cli.app, ["run", "semifl", "--seeds", "2", "--out", "pair", *options]
    )
    assert result.exit_code == 0, result.output
    assert "±" in result.output and "semifl on digits, 2 seeds, 2 rounds" in result.output
    assert (tmp_path / "pair/curves.png").exists() and RunFolder(
        tmp_path / "pair/seed-1"
    ).config().seed == 1
    again = CliRunner().invoke(cli.app, ["resume", "pair", "--quiet"])
    assert again.exit_code == 0 and "pair is already finished" in again.output
    wrong = CliRunner().invoke(cli.app, ["predict", "pair", "some.png"])
    assert wrong.exit_code == 4 and "such as pair/seed-0" in wrong.output
    (tmp_path / "pair/seed-0").rename(tmp_path / "gone-0")
    wrong = CliRunner().invoke(cli.app, ["predict", "pair", "some.png"])
    assert wrong.exit_code == 4 and "such as pair/seed-1" in wrong.output
    (tmp_path / "pair/seed-1").rename(tmp_path / "gone-1")
    empty = CliRunner().invoke(cli.app, ["resume", "pair", "--quiet"])
    assert empty.exit_code == 4 and "there is no folder pair/seed-0" in empty.output


def test_seeds_on_workers_are_run_one_after_the_other() -> None:
    counts: list[int] = []
    kinds = {"executor": "loop", "rounds": 1}
    group = train_seeds(
        config(placement="workers", workers=2, **kinds),
        2,
        None,
        Trackers(on_round=lambda lines: counts.append(len(lines))),
    )
    alone = train_seeds(config(**kinds), 2)
    assert counts == [1, 1, 1, 1]
    for mine, its in zip(group, alone, strict=True):
        assert torch.equal(tree.row(mine.predictors["model"]), tree.row(its.predictors["model"]))


def test_a_block_that_does_not_fit_memory_is_cut_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(config(dtype="float64", block=6))
    train, widths = StackTrainer.train, []

    def small_memory(self: StackTrainer, lanes: Any, signature: Any) -> Any:
        widths.append(len(lanes))
        if len(lanes) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(self, lanes, signature)

    monkeypatch.setattr(StackTrainer, "train", small_memory)
    cut = run(config(dtype="float64", block=6), tmp_path / "cut")
    assert max(widths[4:]) == 1, "a run that was cut once stays cut"
    assert [line["widest"] for line in cut.history] == [1] * (ROUNDS + 1)
    assert not any("widest" in line for line in whole.history)
    a, b = (tree.row(each.predictors["model"]) for each in (whole, cut))
    assert float((a - b).abs().max() / a.abs().max()) < 1e-10


def test_a_last_seed_that_is_too_large_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match="too large; use a smaller seed"):
        train_seeds(configure("hub-only", seed=2**63 - 2), 3)

"""A run folder is whole after every round; damage, full disks and killed processes are told in a
sentence.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglean import tree
from fedglean.errors import ConfigError, StorageError
from fedglean.models import Architecture
from fedglean.runs.checkpoint import Checkpoints
from fedglean.runs.config import Config, configure
from fedglean.runs.folder import RunFolder
from fedglean.runs.run import Run
from fedglean.sealed import pack, unpack, write_whole
from fedglean.tree import Record
from single_runs import resume, run

ROUNDS = 3
STATE = Record(
    model=Architecture("cnn", (1, 4, 4), 3, width=0.125, norm="running").initial(1),
    round=1,
    rate=0.1,
)
CLIENTS: dict[int, Any] = {
    0: {"momentum": torch.ones(3)},
    7: torch.arange(4, dtype=torch.float64),
    12: {},
}


class Killed(Exception):
    """Stands for the power cut."""


def config(**other: Any) -> Config:
    small = {"clients": 6, "rounds": ROUNDS, "labels": "hub:200"}
    quick = {
        "epochs": 1,
        "threshold": 0.2,
        "active": 0.3,
        "hub_batch": 20,
        "client_batch": 50,
        "mixup": False,
    }
    return configure("semifl", **{**small, **quick, **other})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, run(config(), folder)


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed after the second round."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    run_until(folder, 2)
    return folder


def kill_at(number: int) -> Callable[[dict[str, Any]], None]:
    def on_round(line: dict[str, Any]) -> None:
        if line["round"] == number:
            raise Killed

    return on_round


def run_until(folder: Path, number: int, **other: Any) -> None:
    with pytest.raises(Killed):
        run(config(**other), folder, kill_at(number))


def save(store: Checkpoints, *content: Any) -> None:
    store.stage(*content)
    store.commit()


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place / "copy"))


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "phases")}
        for line in history
    ]


def tensors(result: Run) -> dict[str, Tensor]:
    return tree.named(dict(result.predictors))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_same_result(one: Run, other: Run) -> None:
    assert timeless(one.history) == timeless(other.history)
    assert same(tensors(one), tensors(other))


def fails(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("broken", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_failing_write_leaves_the_old_file(
    broken: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    monkeypatch.setattr(os, broken, fails(number))
    with pytest.raises(
        StorageError, match=f"cannot write .*file: {os.strerror(number)}; nothing that was there"
    ):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    write_whole(path, b"newer")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [
        ("file", b"newer")
    ]


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 5, STATE, CLIENTS, set(CLIENTS), {"note": "x"})
    done, state, clients, notes = Checkpoints(tmp_path).load()
    assert (done, notes, sorted(clients)) == (5, {"note": "x"}, [0, 7, 12])
    assert (
        isinstance(state, Record)
        and state.round == 1
        and state.model.architecture == STATE.model.architecture
    )
    assert same(tree.named(state), tree.named(STATE)) and same(
        tree.named(clients), tree.named(CLIENTS)
    )


def test_only_clients_that_changed_are_written_anew(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1, STATE, CLIENTS, set(CLIENTS), {})
    store = Checkpoints(tmp_path)
    store.load()
    save(store, 2, STATE, {**CLIENTS, 7: torch.zeros(1)}, {7}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "client-000000-000001.safetensors",
        "client-000007-000002.safetensors",
        "client-000012-000001.safetensors",
        "current.json",
        "state-000002.safetensors",
    ]
    clients = Checkpoints(tmp_path).load()[2]
    assert clients[7].tolist() == [0.0] and clients[0]["momentum"].tolist() == [1, 1, 1]


def test_leftovers_of_a_killed_process_are_removed_and_never_read(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1, STATE, CLIENTS, set(CLIENTS), {})
    for name in (
        "state-000002.safetensors",
        ".current.json.partial",
        "client-000000-000002.safetensors",
    ):
        (tmp_path / name).write_bytes(b"half of it")
    assert Checkpoints(tmp_path).load()[0] == 1
    save(store, 2, STATE, CLIENTS, set(), {})
    assert len(list(tmp_path.iterdir())) == 5 and Checkpoints(tmp_path).load()[0] == 2


@pytest.mark.parametrize("moment", range(1, 6))
def test_dying_at_any_write_keeps_one_whole_round(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1, STATE, CLIENTS, set(CLIENTS), {})
    real, moves = os.replace, iter(range(1, 100))

    def replace(source: Any, target: Any) -> None:
        if next(moves) == moment:
            raise Killed
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Killed):
        save(
            store,
            2,
            Record(STATE, round=2),
            {n: torch.full((2,), 5.0) for n in CLIENTS},
            set(CLIENTS),
            {},
        )
    done, state, clients, _ = Checkpoints(tmp_path).load()
    assert (done, state.round) == (1, 1) and same(tree.named(clients), tree.named(CLIENTS))


def test_a_sound_file_of_another_round_is_not_taken_for_the_one_that_was_named(
    tmp_path: Path,
) -> None:
    save(Checkpoints(tmp_path), 1, STATE, CLIENTS, set(CLIENTS), {})
    (tmp_path / "state-000001.safetensors").write_bytes(pack(Record(STATE, round=9)))
    with pytest.raises(
        StorageError, match=r"state-000001.safetensors is damaged: its checksum does not match"
    ):
        Checkpoints(tmp_path).load()


@pytest.mark.parametrize("place", range(0, 1500, 31))
def test_a_flipped_bit_anywhere_in_a_packed_tree_is_noticed(place: int) -> None:
    content = bytearray(pack({"model": STATE.model, "n": 3}, classes=["a"]))
    content[place % len(content)] ^= 1
    with pytest.raises(StorageError, match="damaged"):
        unpack(bytes(content), Path("model.safetensors"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        b"\x02" + b"\0" * 7 + b"{}",
        b"\x02" + b"\0" * 7 + b"[]",
        b"x" * 300,
        b"[" * 10**5,
    ],
    ids=len,
)
def test_what_is_no_packed_tree_is_refused(content: bytes) -> None:
    with pytest.raises(StorageError, match="x is damaged"):
        unpack(content, Path("x"))


def test_no_read_only_or_missing_place_for_a_folder_goes_without_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot create the folder .*file/run"):
        run(config(), tmp_path / "file" / "run")
    with pytest.raises(StorageError, match="cannot create the folder"):
        save(Checkpoints(tmp_path / "file"), 1, STATE, {}, set(), {})
    with pytest.raises(StorageError, match="is not a run folder"):
        resume(tmp_path)


KINDS = [
    "checkpoint/state-*",
    "checkpoint/client-*",
    "checkpoint/current.json",
    "split.*",
    "metrics.jsonl",
]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_in_any_file_stops_a_resume(
    kind: str, share: float, halfway: Path, tmp_path: Path
) -> None:
    folder = copied(halfway, tmp_path)
    path = sorted(folder.glob(kind))[0]
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x15
    path.write_bytes(content)
    with pytest.raises(StorageError, match=path.name):
        resume(folder)


@pytest.mark.parametrize(
    "junk",
    [b"[" * 10**5, b'{"content": null, "sha256": null}', b"[1]"],
    ids=["deep", "null", "list"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_junk_in_the_place_of_any_file_stops_a_resume(
    kind: str, junk: bytes, halfway: Path, tmp_path: Path
) -> None:
    folder = copied(halfway, tmp_path)
    path = sorted(folder.glob(kind))[0]
    path.write_bytes(junk)
    with pytest.raises(StorageError, match=path.name):
        resume(folder)


@pytest.mark.parametrize("kind", [*KINDS[:2], *KINDS[3:]])
def test_a_missing_file_stops_a_resume(kind: str, halfway: Path, tmp_path: Path) -> None:
    folder = copied(halfway, tmp_path)
    path = sorted(folder.glob(kind))[0]
    path.unlink()
    with pytest.raises(StorageError, match=path.name):
        resume(folder)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_a_flipped_byte_in_the_final_model_is_noticed(
    share: float, finished: Any, tmp_path: Path
) -> None:
    folder = copied(finished[0], tmp_path)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[int(share * len(content))] ^= 0x15
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(StorageError, match=r"model.safetensors is damaged"):
        RunFolder(folder).model()


def test_a_truncated_history_is_noticed(halfway: Path, tmp_path: Path) -> None:
    folder = copied(halfway, tmp_path)
    os.truncate(folder / "metrics.jsonl", 100)
    with pytest.raises(StorageError, match=r"metrics.jsonl is damaged"):
        resume(folder)
    assert (folder / "metrics.jsonl").stat().st_size == 100


def test_a_configuration_changed_on_the_way_is_refused(halfway: Path, tmp_path: Path) -> None:
    folder = copied(halfway, tmp_path)
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("rounds = 3", "rounds = 4"))
    with pytest.raises(StorageError, match=r"config.toml was changed after the run started"):
        resume(folder)
    (folder / "config.toml").write_text(text.replace("rounds", "ruonds"))
    with pytest.raises(ConfigError, match=r"config.toml: unknown key .ruonds"):
        resume(folder)


def test_a_resumed_run_reads_its_split_and_draws_no_new_one(
    halfway: Path, finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedglean.runs.experiment.divide_up", fails(errno.EIO))
    assert_same_result(resume(copied(halfway, tmp_path)), finished[1])


def test_the_split_of_another_run_is_refused(halfway: Path, tmp_path: Path) -> None:
    folder = copied(halfway, tmp_path)
    run_until(tmp_path / "other", 1, seed=1)
    shutil.copy(tmp_path / "other/split.json", folder)
    with pytest.raises(StorageError, match=r"split.json is not the one that the run started with"):
        resume(folder)


@pytest.mark.parametrize("played", ["halfway", "to its end"])
def test_a_run_without_its_checkpoint_keeps_its_history(
    finished: Any, halfway: Path, tmp_path: Path, played: str
) -> None:
    origin = halfway if played == "halfway" else finished[0]
    folder = copied(origin, tmp_path)
    shutil.rmtree(folder / "checkpoint")
    with pytest.raises(
        StorageError, match=r"the checkpoint of .* is missing, so the run cannot continue"
    ):
        resume(folder)
    assert (folder / "metrics.jsonl").read_bytes() == (origin / "metrics.jsonl").read_bytes()


def test_a_folder_that_holds_a_run_is_never_overwritten(finished: Any) -> None:
    folder, _ = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match="already holds this very run; 'fedglean resume"):
        run(config(), folder)
    with pytest.raises(
        StorageError, match="holds a run with another configuration; choose another folder"
    ):
        run(config(seed=1), folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_returned_at_once_and_as_it_was(
    finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = finished
    model = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("fedglean.methods.semifl.SemiFL.fine_tune", fails(errno.EIO))
    again = resume(folder, kill_at(ROUNDS))
    assert again.history == result.history and same(tensors(again), tensors(result))
    assert (folder / "model.safetensors").read_bytes() == model


def test_no_file_of_a_run_can_be_executed(finished: Any) -> None:
    files = [path for path in finished[0].rglob("*") if path.is_file()]
    assert "lock" in {path.name for path in files}
    assert not [path for path in files if path.stat().st_mode & 0o111]


def test_a_folder_is_held_until_the_final_model_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, held = RunFolder.finish, list[bool]()

    def noting(self: RunFolder, *given: Any) -> None:
        held.append(self._lock is not None)
        finish(self, *given)

    monkeypatch.setattr(RunFolder, "finish", noting)
    run(config(rounds=1), tmp_path / "run")
    assert held == [True]


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_resuming_after_any_round_ends_bit_identical(
    number: int, finished: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run_until(folder, number)
    assert not (folder / "model.safetensors").exists()
    result = resume(folder)
    assert_same_result(result, finished[1])
    assert (folder / "model.safetensors").read_bytes() == (
        finished[0] / "model.safetensors"
    ).read_bytes()


def test_a_run_killed_before_its_first_checkpoint_starts_afresh(
    finished: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run_until(folder, 1, checkpoint_every=100)
    assert (folder / "metrics.jsonl").stat().st_size and not (folder / "checkpoint").exists()
    assert_same_result(resume(folder), finished[1])
    assert len((folder / "metrics.jsonl").read_bytes().splitlines()) == ROUNDS + 1


def test_rounds_since_the_last_checkpoint_are_played_again_and_not_counted_twice(
    finished: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "commit", committing_until(2))
        run_until(folder, 3, checkpoint_every=2)
    assert len((folder / "metrics.jsonl").read_bytes().splitlines()) == 3
    assert json.loads((folder / "checkpoint/current.json").read_bytes())["content"]["done"] == 2
    assert_same_result(resume(folder), finished[1])


def committing_until(last: int) -> Callable[[Checkpoints], None]:
    real = Checkpoints.commit

    def commit(self: Checkpoints) -> None:
        if json.loads(self.next.read_bytes())["content"]["done"] <= last:
            real(self)

    return commit


def test_a_line_cut_short_by_the_kill_is_repaired(
    finished: Any, halfway: Path, tmp_path: Path
) -> None:
    folder = copied(halfway, tmp_path)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 3, "accur')
    assert_same_result(resume(folder), finished[1])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert timeless(lines) == timeless(finished[1].history)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_ends_a_run_in_one_sentence(
    number: int, halfway: Path, finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(halfway, tmp_path)
    monkeypatch.setattr(os, "fsync", fails(number))
    with pytest.raises(StorageError, match=f"cannot write .*: {os.strerror(number)}"):
        resume(folder)
    with pytest.raises(StorageError, match="cannot write"):
        run(config(), tmp_path / "fresh")
    monkeypatch.undo()
    assert_same_result(resume(folder), finished[1])


def of_version_0_1(folder: Path) -> Path:
    """As that version left it: without a version in its checkpoint."""
    path = folder / "checkpoint/current.json"
    content = json.loads(path.read_bytes())["content"]
    del content["version"]
    seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"content": content, "sha256": seal}))
    return folder


def test_an_unfinished_run_of_0_1_is_told_which_version_ends_it(
    halfway: Path, finished: tuple[Path, Run], tmp_path: Path
) -> None:
    cut = of_version_0_1(copied(halfway, tmp_path / "cut"))
    with pytest.raises(StorageError, match=r"begun by fedglean 0\.1") as refused:
        resume(cut)
    assert "'fedglean<0.2'" in str(refused.value)
    assert_same_result(resume(of_version_0_1(copied(finished[0], tmp_path / "whole"))), finished[1])

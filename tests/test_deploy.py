"""The placement `flower` on a grid in this process: the same model as a simulation, whatever a branch sends."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message

from fedglean.config import Config, configure
from fedglean.deploy.apps import client_app_of
from fedglean.deploy.branch import Branch
from fedglean.deploy.flower import Flower
from fedglean.deploy.local import LocalGrid
from fedglean.deploy.post import Patience, Post, declared_of, parts_of, reply_to
from fedglean.deploy.states import States
from fedglean.deploy.wire import (
    Answer,
    Declaration,
    Malformed,
    Plan,
    Question,
    function_of,
    read,
    read_answer,
    trees_of,
    written,
)
from fedglean.engines.here import Kept
from fedglean.errors import ConfigError, RoundError
from fedglean.experiment import Experiment, prepare
from fedglean.folder import Progress
from fedglean.method import Upload
from fedglean.run import Run, play
from fedglean.testing.compare import difference
from fedglean.testing.faults import DAMAGES, drop, not_a_number, poison

COMMON: dict[str, Any] = {
    "clients": 5, "block": 2, "rounds": 2, "epochs": 1, "device": "cpu", "executor": "loop", "dtype": "float64",
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "semifl": {"labels": "hub:100", "client_batch": 50, "hub_batch": 50, "threshold": 0.2, "active": 1.0},
    "hassle": {"labels": "fraction:0.1", "residual_steps": 1, "active": 1.0, "batch": 100},
    "fed-shvr": {"labels": "fraction:0.1", "model": "cnn", "unlabelled_batch": 100},
}
QUICK = Patience(deadline=0.2, grace=0.1, gathering=0.3, poll=0.01)
ROUNDING = 1e-10


def small(method: str, **options: Any) -> Config:
    return configure(method, **COMMON | METHODS[method] | options)


def branches(experiment: Experiment, folder: Path) -> list[Branch]:
    """A branch for each client of a simulation, with its images and no others."""
    federation = experiment.federation

    def branch(number: int) -> Branch:
        held = federation.labelled[number], federation.unlabelled[number]
        return Branch(number, f"branch {number}", lambda classes: held, folder / str(number))

    return [branch(number) for number in range(len(federation.declared))]


def on_flower(experiment: Experiment, grid: LocalGrid, patience: Patience = QUICK, **changes: Any) -> Experiment:
    dataset, federation = experiment.dataset, experiment.federation
    post = Post(grid, dataset.classes, len(federation.declared), list(dataset.train_images.shape[1:]), patience)
    found = post.enrol()
    assert [declared_of(found[number]) for number in range(post.count)] == list(federation.declared)
    old = experiment.placement
    common = (federation, old.executor, old.block, changes.pop("quorum", old.quorum), old.stretch)
    plan = Plan.of(experiment.config, dataset)
    own = {"post": post, "method": experiment.method, "plan": plan, "run": "0123456789abcdef"}
    return replace(experiment, placement=Flower(*common, **own, **changes))


def played(experiment: Experiment, progress: Progress | None = None, rounds: int | None = None) -> Progress:
    if rounds is not None:
        experiment = replace(experiment, config=replace(experiment.config, rounds=rounds))
    progress = progress or Progress(0, experiment.start(), Kept(), [])
    play([Run(experiment, progress)], lambda lines: None)
    return progress


def same(ours: Progress, theirs: Progress, tolerance: float = ROUNDING) -> bool:
    found = difference(dict(ours.state), dict(theirs.state), tolerance)
    assert found is None, found
    return True


def refusals(progress: Progress) -> list[tuple[int, str]]:
    return [(each["client"], each["reason"]) for line in progress.history for each in line["refused"]]


def kept_at_branches(progress: Progress, folder: Path) -> dict[int, Any]:
    """What the branches have on disk under the versions that the hub names."""
    return {
        client: States(folder / str(client), "0123456789abcdef", client).load(state["version"])
        for client, state in progress.kept.states.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_ends_in_the_model_of_a_simulation(method: str, tmp_path: Path) -> None:
    experiment = prepare(small(method))
    here = played(experiment)
    there = played(on_flower(experiment, LocalGrid(branches(experiment, tmp_path))))
    assert [line["answered"] for line in there.history] == [line["answered"] for line in here.history]
    assert max(line["answered"] for line in here.history) == 5 and not refusals(there)
    assert same(here, there)
    kept = kept_at_branches(there, tmp_path)
    assert kept.keys() == here.kept.states.keys()
    assert all(difference(here.kept.states[client], kept[client], ROUNDING) is None for client in kept)


@pytest.mark.parametrize("method", METHODS)
def test_also_when_an_upload_was_refused_in_between(method: str, tmp_path: Path) -> None:
    experiment = prepare(small(method, rounds=3))
    fault = poison(not_a_number, (2, 1), (2, 3))
    here = played(replace(experiment, placement=replace(experiment.placement, deliver=fault)))
    there = played(on_flower(experiment, LocalGrid(branches(experiment, tmp_path)), deliver=fault))
    assert refusals(there) == refusals(here) and {client for client, _ in refusals(here)} == {1, 3}
    assert same(here, there)
    unharmed = played(experiment)
    assert difference(dict(here.state), dict(unharmed.state), ROUNDING) is not None


class Tampered(LocalGrid):
    """One node's answers to orders are changed on their way, in one round."""

    def __init__(self, own: list[Branch], node: int, round: int, change: Callable[[Message, bytes], Message]) -> None:
        super().__init__(own)
        self.node, self.group, self.change = 100 + node, f"{round}-", change

    def answer(self, node: int, message: Message) -> Message:
        reply = super().answer(node, message)
        if node != self.node or not message.metadata.group_id.startswith(self.group):
            return reply
        return self.change(message, parts_of(reply)["reply"])


def reworded(change: Callable[[bytes], bytes]) -> Callable[[Message, bytes], Message]:
    return lambda message, body: reply_to(message, change(body))


def damaged(damage: Callable[[Upload], Any]) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        answer, upload = read_answer(body, 1 << 30)
        harmed = damage(upload) if upload is not None else None
        return written(answer, trees_of(harmed) if isinstance(harmed, Upload) else harmed)

    return change


@pytest.fixture(scope="module")
def without_client_1(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Progress]:
    """Fed-SHVR where nothing of client 1 arrives in round 1."""
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    grid = LocalGrid(branches(experiment, tmp_path_factory.mktemp("without")))
    return experiment, played(on_flower(experiment, grid, deliver=drop((1, 1))))


TAKEN = {"trees": {"keep": {}}, "weights": {}}
GARBAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda body: b"", "JSONDecodeError|Expecting value"),
    "noise": (lambda body: bytes(range(256)) * 50, "."),
    "cut off": (lambda body: body[: len(body) // 2], "damaged"),
    "a bit turned": (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "checksum"),
    "a model": (lambda body: written(read(Answer, body, 1 << 30)[0], {"trees": _model(), "weights": {}}), "a model"),
    "too large": (lambda body: body + bytes(1 << 26), "bytes, where at most"),
    "deep": (lambda body: _raw('{"dict": [' * 5000), "."),
    "another letter": (lambda body: written(Question([])), "Answer"),
    "a name of ours": (lambda body: written(read(Answer, body, 1 << 30)[0], TAKEN), "keep"),
    "no trees": (lambda body: written(read(Answer, body, 1 << 30)[0]), "."),
}  # fmt: skip


def _model() -> Any:
    return {"change": prepare(small("semifl")).start().model}


def _raw(spec: str) -> bytes:
    header = json.dumps(
        {"__metadata__": {"fedglean": json.dumps({"tree": spec, "notes": "{}", "sha256": ""})}}
    ).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize("name", [*DAMAGES, *GARBAGE])
def test_a_bad_answer_is_refused_and_the_round_is_as_without_it(
    name: str, tmp_path: Path, without_client_1: tuple[Experiment, Progress]
) -> None:
    experiment, expected = without_client_1
    change = damaged(DAMAGES[name]) if name in DAMAGES else GARBAGE[name][0]
    grid = Tampered(branches(experiment, tmp_path), 1, 1, reworded(change))
    progress = played(on_flower(experiment, grid))
    assert {client for client, _ in refusals(progress)} == {1} and all(reason for _, reason in refusals(progress))
    if name in GARBAGE:
        assert re.search(GARBAGE[name][1], refusals(progress)[0][1]), refusals(progress)
    assert same(expected, progress, 0.0)


def test_an_error_of_flowers_is_a_refusal(tmp_path: Path, without_client_1: tuple[Experiment, Progress]) -> None:
    experiment, expected = without_client_1
    fails = Tampered(
        branches(experiment, tmp_path), 1, 1, lambda m, body: Message(Error(5, "Node Unavailable"), reply_to=m)
    )
    progress = played(on_flower(experiment, fails))
    assert refusals(progress)[0] == (1, "Node Unavailable (Flower's error 5)")
    assert same(expected, progress, 0.0)


def test_nobody_answers_for_another_or_for_another_round(
    tmp_path: Path, without_client_1: tuple[Experiment, Progress]
) -> None:
    experiment, expected = without_client_1
    for change, reason in (({"client": 2}, "answers as client 2"), ({"round": 9, "version": "9-0"}, "stale")):

        def altered(body: bytes, change: dict[str, Any] = change) -> bytes:
            answer, tree = read(Answer, body, 1 << 30)
            return written(replace(answer, **change), tree)

        grid = Tampered(branches(experiment, tmp_path), 1, 1, reworded(altered))
        progress = played(on_flower(experiment, grid))
        assert reason in refusals(progress)[0][1]
        assert same(expected, progress, 0.0)


class Unreadable(LocalGrid):
    """Flower itself cannot put together what branch 1 sent."""

    def pull_messages(self, message_ids: Any) -> Any:
        wanted = list(message_ids)
        if any(name.startswith("1-0-101-") for name in wanted):
            raise IndexError("list index out of range")
        return super().pull_messages(wanted)


def test_a_reply_that_flower_cannot_read_is_a_refusal(
    tmp_path: Path, without_client_1: tuple[Experiment, Progress]
) -> None:
    experiment, expected = without_client_1
    progress = played(on_flower(experiment, Unreadable(branches(experiment, tmp_path))))
    assert refusals(progress)[0] == (1, "its reply cannot be put together (IndexError)")
    assert same(expected, progress, 0.0)


def test_words_of_a_branch_are_shown_without_what_would_move_a_cursor(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))

    def shouting(body: bytes) -> bytes:
        return written(Answer(1, 0, 1, error="\x1b[2J\ud800 all is well"))

    grid = Tampered(branches(experiment, tmp_path), 1, 1, reworded(shouting))
    assert refusals(played(on_flower(experiment, grid)))[0] == (1, " [2J  all is well")


@pytest.mark.parametrize(
    "lie",
    [{"labelled": -1}, {"unlabelled": 10**15}, {"sums": []}, {"squares": [1, 2]},
     {"sums": [-1]}, {"squares": [0]}, {"squares": [10**30]}, {"sums": [10**4000], "squares": [10**4000]}],
    ids=str,
)  # fmt: skip
def test_a_branch_that_declares_the_impossible_is_refused(lie: dict[str, Any], tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    own, said = branches(experiment, tmp_path), []

    class Lying(Branch):
        def _declaration(self, question: Question) -> bytes:
            honest, _ = read(Declaration, super()._declaration(question))
            return written(replace(honest, **lie))

    own[1] = Lying(**vars(own[1]))
    dataset = experiment.dataset
    post = Post(LocalGrid(own), dataset.classes, 5, list(dataset.train_images.shape[1:]), QUICK, said.append)
    assert sorted(post.enrol(quorum=0.8)) == [0, 2, 3, 4]
    assert any("branch 1 declares what no images have" in sentence for sentence in said)


class Doubled(LocalGrid):
    """Every reply comes twice."""

    def pull_messages(self, message_ids: Any) -> Any:
        return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]


def test_a_duplicate_is_refused_and_the_first_counts(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    once = played(on_flower(experiment, LocalGrid(branches(experiment, tmp_path / "a"))))
    twice = played(on_flower(experiment, Doubled(branches(experiment, tmp_path / "b"))))
    assert [reason for _, reason in refusals(twice)] == ["duplicate: this client has answered already"] * 5
    assert same(once, twice, 0.0)


class Silent(LocalGrid):
    """A node that is listed, as a killed one is for a minute, but does not answer while it is `mute`."""

    mute: int | None = None
    unheard = 0
    waiting: dict[str, Message]

    def _push(self, message: Message) -> str:
        if message.metadata.dst_node_id != self.mute:
            return super()._push(message)
        before, self.gone = self.gone, {*self.gone, self.mute}
        self.unheard += 1
        name = super()._push(message)
        self.gone = before
        self.waiting = {name: message}
        return name


def test_a_silent_branch_is_waited_for_once_and_comes_back_with_the_state_it_had(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=4))
    grid = Silent(branches(experiment, tmp_path))
    flower = on_flower(experiment, grid, replace(QUICK, deadline=5.0, grace=0.3))
    progress = played(flower, rounds=1)
    grid.mute = 101
    began = time.monotonic()
    progress = played(flower, progress, rounds=2)
    assert time.monotonic() - began > 0.3 and refusals(progress) == [(1, "no answer in time")]
    began = time.monotonic()
    progress = played(flower, progress, rounds=3)
    assert refusals(progress)[1:] == [(1, "not there when it was asked")]
    name, message = next(iter(grid.waiting.items()))
    grid.mute = None
    grid.replies[name] = grid.answer(101, message)  # it worked on round 2 all the time
    progress = played(flower, progress, rounds=4)
    assert progress.history[-1]["answered"] == 5 and len(refusals(progress)) == 2
    lost = drop((2, 1), (3, 1))
    simulated = played(replace(experiment, placement=replace(experiment.placement, deliver=lost)))
    assert same(simulated, progress)


def test_without_a_quorum_it_waits_says_so_and_gives_up(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    grid, said = LocalGrid(branches(experiment, tmp_path)), []
    flower = on_flower(experiment, grid)
    assert isinstance(flower.placement, Flower)
    flower.placement.post.tell = said.append
    grid.gone = {100, 101, 102}
    began = time.monotonic()
    with pytest.raises(RoundError, match="only 2 of the 3 branches"):
        played(flower)
    assert time.monotonic() - began > QUICK.gathering and said == [
        "2 of 5 branches can be reached, 3 are needed; waiting"
    ]


def test_the_first_round_needs_every_branch_once(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    with pytest.raises(RoundError, match="branches 4 did not come"):
        on_flower(experiment, LocalGrid(branches(experiment, tmp_path)[:4]))


def test_two_nodes_with_one_number_are_refused(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    own = branches(experiment, tmp_path)
    with pytest.raises(ConfigError, match="two nodes say that they are branch 3"):
        on_flower(experiment, LocalGrid([*own, own[3]]))


def test_a_key_has_one_number_and_a_number_one_key(tmp_path: Path) -> None:
    """North's key is admitted as 0, south's as 1; south says that it is 0, and a node comes with no admitted key."""
    experiment = prepare(small("fed-shvr", model="mlp", clients=2))
    own, said = branches(experiment, tmp_path), []
    grid = LocalGrid([own[0], own[0], own[1]])
    grid.keys = {100: b"north", 101: b"south", 102: b"nobody's"}
    post = Post(grid, experiment.dataset.classes, 2, [1, 8, 8], QUICK, said.append, {0: b"north", 1: b"south"})
    with pytest.raises(RoundError, match="branches 1 did not come"):
        post.enrol()
    refused = [
        "the key of branch 1 says that it is branch 0",
        "a key that was admitted for no branch says that it is 1",
    ]
    assert [each for each in said if "refused" in each] == [
        f"a node with {each.replace(' is 1', ' is branch 1')}; refused" for each in refused
    ]
    del grid.apps[100]  # north is away: nobody takes its place
    grid.apps[101] = client_app_of(own[0])
    post.failed.clear()
    with pytest.raises(RoundError, match="branches 0, 1 did not come"):
        post.enrol()
    grid.apps |= {100: client_app_of(own[0]), 101: client_app_of(own[1])}
    grid.starts[101] = 1  # started again with its own number
    assert sorted(post.enrol()) == [0, 1] and post.nodes == {0: 100, 1: 101}


class Restarting(LocalGrid):
    """One node loses the first order of a round, and is started again when it should have answered."""

    lost = False

    def _push(self, message: Message) -> str:
        if self.lost or message.metadata.dst_node_id != 101 or not message.metadata.group_id.startswith("2-"):
            return super()._push(message)
        self.gone, self.lost, self.starts = {101}, True, {101: 1}
        name = super()._push(message)
        self.gone = set()
        return name


def test_a_node_that_was_started_again_in_mid_round_gets_its_order_once_more(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=2))
    grid = Restarting(branches(experiment, tmp_path))
    progress = played(on_flower(experiment, grid, replace(QUICK, deadline=30.0, grace=30.0)))
    assert grid.lost and not refusals(progress) and same(played(experiment), progress)


def test_a_node_that_was_started_again_owes_nothing(tmp_path: Path) -> None:
    """It was silent in round 2, so round 3 does not ask it; then it is started again, and has nothing to say to 2."""
    experiment = prepare(small("fed-shvr", model="mlp", rounds=4))
    grid = Silent(branches(experiment, tmp_path))
    flower = on_flower(experiment, grid)
    progress = played(flower, rounds=1)
    grid.mute = 101
    progress = played(flower, progress, rounds=3)
    grid.mute, grid.starts[101] = None, 1
    progress = played(flower, progress, rounds=4)
    assert [each["answered"] for each in progress.history] == [5, 4, 4, 5]


def test_a_node_that_cannot_say_who_it_is_is_not_asked_all_the_time(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    own, questions = branches(experiment, tmp_path), []

    def broken(classes: Any) -> Any:
        questions.append(classes)
        raise OSError("no images")

    own[4] = replace(own[4], images=broken)
    with pytest.raises(RoundError, match="branches 4 did not come"):
        on_flower(experiment, LocalGrid(own))
    assert len(questions) == 1


def test_a_node_that_never_says_who_it_is_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedglean.deploy.post.INTRODUCTION", 1.5)
    experiment = prepare(small("fed-shvr", model="mlp", rounds=2))
    own = branches(experiment, tmp_path)
    grid = Silent(own)
    flower = on_flower(experiment, grid, replace(QUICK, gathering=5.0))
    grid.apps[200] = grid.apps[100]
    grid.mute, grid.gone = 200, {104}
    began = time.monotonic()
    progress = played(flower, rounds=1)
    assert time.monotonic() - began >= 1.5
    progress = played(flower, progress, rounds=2)
    assert grid.unheard == 1 and refusals(progress) == [(4, "not there when it was asked")] * 2


def test_a_number_that_is_taken_is_free_again_when_its_node_is_gone(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=3))
    own, said = branches(experiment, tmp_path), []
    grid = LocalGrid(own)
    flower = on_flower(experiment, grid)
    assert isinstance(flower.placement, Flower)
    flower.placement.post.tell = said.append
    progress = played(flower, rounds=1)
    grid.apps[200] = grid.apps[103]
    progress = played(flower, progress, rounds=2)
    assert said == ["a second node says that it is branch 3; refused"] and flower.placement.post.nodes[3] == 103
    del grid.apps[103]
    progress = played(flower, progress, rounds=3)
    assert flower.placement.post.nodes[3] == 200
    assert same(played(experiment), progress)


def test_a_hub_that_is_resumed_goes_on_from_the_versions_it_knew(tmp_path: Path) -> None:
    """A round was asked and answered, but never checkpointed: it is asked again, from the older state."""
    experiment = prepare(small("fed-shvr", model="mlp", rounds=3))
    grid = LocalGrid(branches(experiment, tmp_path))
    first = played(on_flower(experiment, grid), rounds=1)
    saved = Progress(first.done, first.state, Kept(dict(first.kept.states)), list(first.history))
    first.kept.changed.clear()  # as a checkpoint does
    played(on_flower(experiment, grid), first, rounds=2)
    again = played(on_flower(experiment, grid), saved, rounds=3)
    assert same(played(experiment), again)


def test_a_branch_that_lost_its_state_says_so(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    flower = on_flower(experiment, LocalGrid(branches(experiment, tmp_path)))
    progress = played(flower, rounds=1)
    for path in (tmp_path / "2").rglob("*.safetensors"):
        path.unlink()
    played(flower, progress, rounds=2)
    assert refusals(progress)[0] == (2, "it has lost its state 1-0, which the run goes on from")


def test_a_branch_keeps_no_more_than_the_hub_may_ask_for(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=4))
    played(on_flower(experiment, LocalGrid(branches(experiment, tmp_path))))
    assert all(len(list(path.rglob("*.safetensors"))) <= 3 for path in tmp_path.iterdir())


def test_an_old_order_that_is_finished_late_takes_nothing_away(tmp_path: Path) -> None:
    states = States(tmp_path, "0123456789abcdef", 4)
    for version in ("2-0", "9-0", "10-0"):
        states.put(version, torch.tensor(1.0))
    states.put("1-0", torch.tensor(0.0))
    states.settle("1-0", "")
    assert all(states.load(version) is not None for version in ("2-0", "9-0", "10-0"))
    states.settle("11-0", "10-0", "9-0")
    assert sorted(path.name for path in states.folder.iterdir()) == ["state-10-0.safetensors", "state-9-0.safetensors"]


def test_branches_that_share_a_folder_keep_their_own_states(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=3))
    together = [replace(each, folder=tmp_path) for each in branches(experiment, tmp_path)]
    assert same(played(experiment), played(on_flower(experiment, LocalGrid(together))))


def test_a_branch_tells_nothing_of_its_files(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    own = branches(experiment, tmp_path)
    flower = on_flower(experiment, grid := LocalGrid(own))

    def broken(classes: Any) -> Any:
        raise OSError("/data/jane-doe.png cannot be read")

    object.__setattr__(own[1], "images", broken)
    progress = played(flower)
    assert grid.apps and refusals(progress)[0] == (1, "OSError at the branch; its own log says more")


def test_images_that_changed_are_noticed(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    own = branches(experiment, tmp_path)
    flower = on_flower(experiment, LocalGrid(own))
    held = own[1].images([])
    object.__setattr__(own[1], "images", lambda classes: (held[0], held[1].subset(torch.arange(len(held[1])) > 0)))
    assert "but declared" in refusals(played(flower))[0][1]


@pytest.mark.parametrize("name", ["os:system", "fedglean.methods.common:Model", "_secret", "sgd", "start.__call__", ""])
def test_a_hub_can_name_client_functions_only(name: str) -> None:
    with pytest.raises(Malformed, match="there is no client function"):
        function_of(name, prepare(small("semifl")).method)

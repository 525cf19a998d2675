"""A federation on a grid in this process: a simulation's model, whatever a branch sends."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message

from fedglean.federation.branch import Branch
from fedglean.federation.flower.carrier import parts_of, reply_to
from fedglean.federation.letters import (
    Answer,
    Declaration,
    Malformed,
    Question,
    read,
    read_answer,
    write,
    write_answer,
)
from fedglean.federation.states import States
from fedglean.method import Upload
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress
from fedglean.testing.difference import difference
from fedglean.testing.engines import with_delivery
from fedglean.testing.faults import DAMAGES, drop, not_a_number, poison
from flower_grid import (
    METHODS,
    ROUNDING,
    LocalGrid,
    branches,
    mailbox_of,
    on_flower,
    played,
    refusals,
    same,
    small,
)


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
    assert [line["answered"] for line in there.history] == [
        line["answered"] for line in here.history
    ]
    assert max(line["answered"] for line in here.history) == 5 and not refusals(there)
    assert same(here, there)
    kept = kept_at_branches(there, tmp_path)
    assert kept.keys() == here.kept.states.keys()
    assert all(
        difference(here.kept.states[client], kept[client], ROUNDING) is None for client in kept
    )


BESIDE = """
from dataclasses import dataclass
from fedglean import Ask, Method, Upload
from fedglean.tree import Record, map

async def shrink(me, message):
    model = map(lambda leaf: leaf * (1 - 0.1 / (1 + me.number)), message.model)
    return Upload(model=model, weight=1 + len(me.labelled))

@dataclass(frozen=True)
class Shrinking(Method):
    async def round(self, hub, state):
        reply = await Ask(shrink, to=hub.everyone, message={"model": state.model})
        return Record(model=reply.mean("model"))

METHODS = {"shrinking": Shrinking}
"""


def test_a_client_function_may_stand_beside_the_class(tmp_path: Path) -> None:
    """Each side finds it in its own copy of the file, whatever that is called."""
    for name in ("hub.py", "branch.py"):
        (tmp_path / name).write_text(BESIDE)
    options: dict[str, Any] = {"clients": 3, "labels": "each:5", "rounds": 2, "model": "mlp"}
    config = configure("shrinking", norm="group", device="cpu", use=tmp_path / "hub.py", **options)
    experiment = prepare(config)
    own = branches(experiment, tmp_path)
    own = [replace(branch, use=str(tmp_path / "branch.py")) for branch in own]
    here, there = played(experiment), played(on_flower(experiment, LocalGrid(own)))
    assert not refusals(there) and same(here, there)


@pytest.mark.parametrize("method", METHODS)
def test_also_when_an_upload_was_refused_in_between(method: str, tmp_path: Path) -> None:
    experiment = prepare(small(method, rounds=3))
    fault = poison(not_a_number, (2, 1), (2, 3))
    here = played(with_delivery(experiment, fault))
    there = played(on_flower(experiment, LocalGrid(branches(experiment, tmp_path)), deliver=fault))
    assert refusals(there) == refusals(here) and {client for client, _ in refusals(here)} == {1, 3}
    assert same(here, there)
    unharmed = played(experiment)
    assert difference(here.state, unharmed.state, ROUNDING) is not None


class Tampered(LocalGrid):
    """One node's answers to orders are changed on their way, in one round."""

    def __init__(
        self, own: list[Branch], node: int, round: int, change: Callable[[Message, bytes], Message]
    ) -> None:
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
        return write_answer(answer, harmed) if isinstance(harmed, Upload) else write(answer, harmed)

    return change


@pytest.fixture(scope="module")
def without_client_1(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Progress]:
    """Fed-SHVR where nothing of client 1 arrives in round 1."""
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    grid = LocalGrid(branches(experiment, tmp_path_factory.mktemp("without")))
    return experiment, played(on_flower(experiment, grid, deliver=drop((1, 1))))


TAKEN = {"trees": {"keep": {}}, "weights": {}}
NESTED = {"trees": {"change": [{"weight": torch.zeros(1)}]}, "weights": {"change": 1.0}}
GARBAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda body: b"", "JSONDecodeError|Expecting value"),
    "noise": (lambda body: bytes(range(256)) * 50, "."),
    "cut off": (lambda body: body[: len(body) // 2], "damaged"),
    "a bit turned": (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "checksum"),
    "a model": (
        lambda body: write(read(Answer, body, 1 << 30)[0], {"trees": _model(), "weights": {}}),
        "a model",
    ),
    "a tree in a tree": (
        lambda body: write(read(Answer, body, 1 << 30)[0], NESTED),
        "trees in trees",
    ),
    "too large": (lambda body: body + bytes(1 << 26), "bytes, but at most"),
    "deep": (lambda body: _raw('{"dict": [' * 5000), "."),
    "another letter": (lambda body: write(Question([])), "Answer"),
    "a name of ours": (lambda body: write(read(Answer, body, 1 << 30)[0], TAKEN), "keep"),
    "no trees": (lambda body: write(read(Answer, body, 1 << 30)[0]), "."),
}


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
    assert {client for client, _ in refusals(progress)} == {1} and all(
        reason for _, reason in refusals(progress)
    )
    if name in GARBAGE:
        assert re.search(GARBAGE[name][1], refusals(progress)[0][1]), refusals(progress)
    assert same(expected, progress, 0.0)


def test_an_error_of_flowers_is_a_refusal(
    tmp_path: Path, without_client_1: tuple[Experiment, Progress]
) -> None:
    experiment, expected = without_client_1
    fails = Tampered(
        branches(experiment, tmp_path),
        1,
        1,
        lambda m, body: Message(Error(5, "Node Unavailable"), reply_to=m),
    )
    progress = played(on_flower(experiment, fails))
    assert refusals(progress)[0] == (1, "Node Unavailable (Flower's error 5)")
    assert same(expected, progress, 0.0)


def test_nobody_answers_for_another_or_for_another_round(
    tmp_path: Path, without_client_1: tuple[Experiment, Progress]
) -> None:
    experiment, expected = without_client_1
    for change, reason in (
        ({"client": 2}, "answers as client 2"),
        ({"round": 9, "version": "9-0"}, "stale"),
    ):

        def altered(body: bytes, change: dict[str, Any] = change) -> bytes:
            answer, tree = read(Answer, body, 1 << 30)
            return write(replace(answer, **change), tree)

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
        return write(Answer(1, 0, 1, error="\x1b[2J\ud800 all is well"))

    grid = Tampered(branches(experiment, tmp_path), 1, 1, reworded(shouting))
    assert refusals(played(on_flower(experiment, grid)))[0] == (1, " [2J  all is well")


@pytest.mark.parametrize(
    "lie",
    [
        {"labelled": -1},
        {"unlabelled": 10**15},
        {"sums": []},
        {"squares": [1, 2]},
        {"sums": [-1]},
        {"squares": [0]},
        {"squares": [10**30]},
        {"sums": [10**4000], "squares": [10**4000]},
    ],
    ids=str,
)
def test_a_branch_that_declares_the_impossible_is_refused(
    lie: dict[str, Any], tmp_path: Path
) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    own, said = branches(experiment, tmp_path), []

    class Lying(Branch):
        def _declaration(self, question: Question) -> bytes:
            honest, _ = read(Declaration, super()._declaration(question))
            return write(replace(honest, **lie))

    own[1] = Lying(**vars(own[1]))
    mailbox = mailbox_of(LocalGrid(own), experiment, tell=said.append)
    assert sorted(mailbox.enrol(quorum=0.8)) == [0, 2, 3, 4]
    assert any("refused branch 1: it declares impossible images" in sentence for sentence in said)


def test_a_branch_cannot_have_the_hub_build_a_model_by_a_declaration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model's size is a number in its letter: building it would take all memory there is."""
    letter = write(Declaration(0, "north", 1, 1, [1, 8, 8], [1], [1]), _model())
    monkeypatch.setattr(
        "fedglean.tree.Architecture.from_json", lambda fields: pytest.fail("it was built")
    )
    with pytest.raises(Malformed, match="a model, but tensors were expected"):
        read(Declaration, letter)


class Doubled(LocalGrid):
    """Every reply comes twice."""

    def pull_messages(self, message_ids: Any) -> Any:
        return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]


def test_a_duplicate_is_refused_and_the_first_counts(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    once = played(on_flower(experiment, LocalGrid(branches(experiment, tmp_path / "a"))))
    twice = played(on_flower(experiment, Doubled(branches(experiment, tmp_path / "b"))))
    assert [reason for _, reason in refusals(twice)] == [
        "duplicate: this client has answered already"
    ] * 5
    assert same(once, twice, 0.0)

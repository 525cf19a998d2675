"""Branches that fall silent, come back, are started again or lose what they kept."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from fedglean.data.photos import AS_THEY_ARE
from fedglean.errors import ConfigError, DataError, RoundError, plain
from fedglean.exchange.states import ClientStates
from fedglean.federation.branch import Branch
from fedglean.federation.letters import Declaration, write
from fedglean.federation.placement import Branches
from fedglean.federation.plan import Unable, function_name, function_of
from fedglean.federation.states import States
from fedglean.methods.common import _measure
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress
from fedglean.testing.engines import with_delivery
from fedglean.testing.faults import drop
from flower_grid import (
    QUICK,
    LocalGrid,
    app_of,
    branches,
    mailbox_of,
    on_flower,
    played,
    refusals,
    same,
    small,
)


class Silent(LocalGrid):
    """A node that is listed, as a killed one is for a minute, but silent while it is `mute`."""

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


def test_a_silent_branch_is_waited_for_once_and_comes_back_with_the_state_it_had(
    tmp_path: Path,
) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=4))
    grid = Silent(branches(experiment, tmp_path))
    flower = on_flower(experiment, grid, {**QUICK, "deadline": 5.0, "grace": 0.3})
    progress = played(flower, rounds=1)
    grid.mute = 101
    began = time.monotonic()
    progress = played(flower, progress, rounds=2)
    assert time.monotonic() - began > 0.3 and refusals(progress) == [(1, "no answer in time")]
    began = time.monotonic()
    progress = played(flower, progress, rounds=3)
    assert refusals(progress)[1:] == [(1, "not there when it was asked")]
    to_five, to_four = (line["bytes_down"] for line in progress.history[1:])
    assert to_four == to_five * 4 / 5 > 0
    name, message = next(iter(grid.waiting.items()))
    grid.mute = None
    grid.replies[name] = grid.answer(101, message)  # it worked on round 2 all the time
    progress = played(flower, progress, rounds=4)
    assert progress.history[-1]["answered"] == 5 and len(refusals(progress)) == 2
    lost = drop((2, 1), (3, 1))
    simulated = played(with_delivery(experiment, lost))
    assert same(simulated, progress)


def test_without_a_quorum_it_waits_says_so_and_gives_up(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    grid, said = LocalGrid(branches(experiment, tmp_path)), []
    flower = on_flower(experiment, grid)
    assert isinstance(flower.placement, Branches)
    flower.placement.mailbox.nodes.tell = said.append
    grid.gone = {100, 101, 102}
    began = time.monotonic()
    with pytest.raises(
        RoundError, match=r"only 2 of 5 branches could be reached within .* the quorum is 3"
    ):
        played(flower)
    assert time.monotonic() - began > QUICK["gathering"] and said == [
        "2 of 5 branches can be reached, the quorum is 3; waiting"
    ]


def test_the_first_round_needs_every_branch_once(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    with pytest.raises(RoundError, match="branch 4 did not join"):
        on_flower(experiment, LocalGrid(branches(experiment, tmp_path)[:4]))


def test_two_nodes_with_one_number_are_refused(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp"))
    own = branches(experiment, tmp_path)
    with pytest.raises(ConfigError, match="two nodes claim to be branch 3"):
        on_flower(experiment, LocalGrid([*own, own[3]]))


def test_a_key_has_one_number_and_a_number_one_key(tmp_path: Path) -> None:
    """North's key is admitted as 0, south's as 1.

    South says that it is 0, and a node comes with no admitted key.
    """
    experiment = prepare(small("fed-shvr", model="mlp", clients=2))
    own, said = branches(experiment, tmp_path), []
    grid = LocalGrid([own[0], own[0], own[1]])
    grid.keys = {100: b"north", 101: b"south", 102: b"nobody's"}
    keys = {0: b"north", 1: b"south"}
    mailbox = mailbox_of(grid, experiment, tell=said.append, keys=keys)
    with pytest.raises(RoundError, match="branch 1 did not join"):
        mailbox.enrol()
    assert [each for each in said if "refused" in each] == [
        "refused a node that claims to be branch 0: it has the key of branch 1",
        "refused a node that claims to be branch 1: it has a key that was not admitted",
    ]
    del grid.apps[100]  # north is away: nobody takes its place
    grid.apps[101] = app_of(own[0])
    mailbox.nodes.here.clear()
    with pytest.raises(RoundError, match="branches 0, 1 did not join"):
        mailbox.enrol()
    grid.apps |= {100: app_of(own[0]), 101: app_of(own[1])}
    grid.starts[101] = 1  # started again with its own number
    assert sorted(mailbox.enrol()) == [0, 1] and mailbox.nodes.of_branch == {0: 100, 1: 101}


class Restarting(LocalGrid):
    """One node loses the first order of a round, and is started again before it answers."""

    lost = False

    def _push(self, message: Message) -> str:
        if (
            self.lost
            or message.metadata.dst_node_id != 101
            or not message.metadata.group_id.startswith("2-")
        ):
            return super()._push(message)
        self.gone, self.lost, self.starts = {101}, True, {101: 1}
        name = super()._push(message)
        self.gone = set()
        return name


def test_a_node_that_was_started_again_in_mid_round_gets_its_order_once_more(
    tmp_path: Path,
) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=2))
    grid = Restarting(branches(experiment, tmp_path))
    progress = played(on_flower(experiment, grid, {**QUICK, "deadline": 30.0, "grace": 30.0}))
    assert grid.lost and not refusals(progress) and same(played(experiment), progress)


def test_a_node_that_was_started_again_owes_nothing(tmp_path: Path) -> None:
    """It was silent in round 2, so round 3 does not ask it.

    Then it is started again, and has nothing to say to 2.
    """
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

    def broken(classes: Any, form: Any) -> Any:
        questions.append(classes)
        raise OSError("no images")

    own[4] = replace(own[4], images=broken)
    with pytest.raises(RoundError, match="branch 4 did not join"):
        on_flower(experiment, LocalGrid(own))
    assert len(questions) == 1


def test_a_node_that_never_says_who_it_is_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedglean.federation.nodes.INTRODUCTION", 1.5)
    experiment = prepare(small("fed-shvr", model="mlp", rounds=2))
    own = branches(experiment, tmp_path)
    grid = Silent(own)
    flower = on_flower(experiment, grid, {**QUICK, "gathering": 5.0})
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
    assert isinstance(flower.placement, Branches)
    flower.placement.mailbox.nodes.tell = said.append
    progress = played(flower, rounds=1)
    grid.apps[200] = grid.apps[103]
    progress = played(flower, progress, rounds=2)
    assert (
        said == ["refused a second node that claims to be branch 3"]
        and flower.placement.mailbox.nodes.of_branch[3] == 103
    )
    del grid.apps[103]
    progress = played(flower, progress, rounds=3)
    assert flower.placement.mailbox.nodes.of_branch[3] == 200
    assert same(played(experiment), progress)


def test_a_hub_that_is_resumed_goes_on_from_the_versions_it_knew(tmp_path: Path) -> None:
    """A round was asked, but never checkpointed: it is asked again, from the older state."""
    experiment = prepare(small("fed-shvr", model="mlp", rounds=3))
    grid = LocalGrid(branches(experiment, tmp_path))
    first = played(on_flower(experiment, grid), rounds=1)
    saved = Progress(
        first.done, first.state, ClientStates(dict(first.kept.states)), list(first.history)
    )
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
    assert refusals(progress)[0] == (2, "it has lost its state 1-0, from which the run continues")


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
    assert sorted(path.name for path in states.folder.iterdir()) == [
        "state-10-0.safetensors",
        "state-9-0.safetensors",
    ]


def test_branches_that_share_a_folder_keep_their_own_states(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=3))
    together = [replace(each, folder=tmp_path) for each in branches(experiment, tmp_path)]
    assert same(played(experiment), played(on_flower(experiment, LocalGrid(together))))


def test_a_branch_tells_nothing_of_its_files(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    own = branches(experiment, tmp_path)
    flower = on_flower(experiment, grid := LocalGrid(own))

    def broken(classes: Any, form: Any) -> Any:
        raise OSError("/data/jane-doe.png cannot be read")

    object.__setattr__(own[1], "images", broken)
    progress = played(flower)
    assert grid.apps and refusals(progress)[0] == (
        1,
        "OSError at the branch; its own log says more",
    )


def test_images_that_changed_are_noticed(tmp_path: Path) -> None:
    experiment = prepare(small("fed-shvr", model="mlp", rounds=1))
    own = branches(experiment, tmp_path)
    flower = on_flower(experiment, LocalGrid(own))
    held = own[1].images([], AS_THEY_ARE)
    object.__setattr__(
        own[1],
        "images",
        lambda classes, form: (held[0], held[1].subset(torch.arange(len(held[1])) > 0)),
    )
    assert "but declared" in refusals(played(flower))[0][1]


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "fedglean.methods.common:Model",
        "fedglean.methods.common:supervised",
        "_secret",
        "sgd",
        "start.__call__",
        ":with_momentum",
        ":SemiFL",
        ":",
        "",
    ],
)
def test_a_hub_can_name_client_functions_only(name: str) -> None:
    with pytest.raises(Unable, match="there is no client function"):
        function_of(name, prepare(small("semifl")).method)


def test_only_what_has_a_name_in_the_methods_module_can_be_asked_for() -> None:
    async def inner(me: Any, message: Any) -> None: ...

    method = prepare(small("semifl")).method
    assert function_name(method.client, method) == "client"
    assert function_of(function_name(_measure, method), method) is _measure
    with pytest.raises(TypeError, match="inner cannot be named to a branch"):
        function_name(inner, method)


@pytest.mark.parametrize(
    ("error", "bug"), [(DataError("/jane\x1b[2J.png is no image"), False), (ValueError("!"), True)]
)
def test_a_branch_that_cannot_take_part_is_named_and_finds_why_in_its_own_log(
    error: Exception, bug: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment, said = prepare(small("fed-shvr", model="mlp")), list[str]()
    own = branches(experiment, tmp_path)[1]

    def broken(classes: Any, form: Any) -> Any:
        raise error

    grid = LocalGrid([replace(own, images=broken)])
    mailbox = mailbox_of(grid, experiment, tell=said.append)
    with pytest.raises(RoundError):
        mailbox.enrol()
    kind = type(error).__name__
    assert (
        f"a node that calls itself branch 1 cannot take part: {kind} at the branch; its own log "
        "says more" in said
    )
    assert (
        plain(str(error)) in caplog.text
        and "\x1b" not in caplog.text
        and ("Traceback" in caplog.text) == bug
    )


def test_a_node_cannot_fill_the_hubs_log(tmp_path: Path) -> None:
    experiment, said = prepare(small("fed-shvr", model="mlp")), list[str]()
    own = branches(experiment, tmp_path)[1]

    class Talkative(Branch):
        def declare(self, question: bytes) -> bytes:
            return write(Declaration(1, "", 1, 1, [1] * 100_000, [], []))

    with pytest.raises(RoundError):
        mailbox_of(LocalGrid([Talkative(**vars(own))]), experiment, tell=said.append).enrol()
    assert max(map(len, said)) == 300

"""Answers that get lost on their way in a simulation."""

from typing import Any

import pytest

import fedglean
from fedglean.errors import RoundError

SHORT: dict[str, Any] = {
    "data": "digits",
    "clients": 20,
    "rounds": 8,
    "labels": "hub:20",
    "quorum": 0.1,
}


def test_about_that_share_of_those_who_were_asked_does_not_answer() -> None:
    whole = fedglean.run("semifl", active=1.0, **SHORT)
    some = fedglean.run("semifl", active=1.0, lost=0.3, **SHORT)
    answers = [line["answered"] + line["abstained"] for line in some.history[:8]]
    assert {line["answered"] + line["abstained"] for line in whole.history[:8]} == {20}
    assert len(set(answers)) > 1, "others are lost each time"
    assert 10 < sum(answers) / len(answers) < 18
    # They were sent the model all the same.
    assert some.bytes_sent[0] == whole.bytes_sent[0]
    assert some.bytes_sent[1] < whole.bytes_sent[1]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fed-shvr"])
def test_who_is_lost_depends_on_the_seed_alone(method: str) -> None:
    options = {**SHORT, "rounds": 3, "labels": "each:4", "lost": 0.3}
    runs = [
        fedglean.run(method, executor=executor, block=block, dtype="float64", **options)
        for executor, block in [("loop", 16), ("stack", 3)]
    ]
    one, other = ([line["answered"] for line in run.history] for run in runs)
    assert one == other
    assert runs[0].last.accuracy == runs[1].last.accuracy


def test_seeds_side_by_side_lose_what_each_loses_alone() -> None:
    together = fedglean.run("semifl", seeds=2, executor="loop", lost=0.3, **SHORT)
    alone = fedglean.run("semifl", seed=1, executor="loop", lost=0.3, **SHORT)
    assert together[1].history[-1]["answered"] == alone.history[-1]["answered"]
    assert together[1].last.accuracy == alone.last.accuracy


def test_too_many_lost_end_the_run_by_its_quorum() -> None:
    with pytest.raises(RoundError, match="95 % of the answers get lost, take a lower quorum"):
        fedglean.run("semifl", active=1.0, lost=0.95, **{**SHORT, "quorum": 0.5})

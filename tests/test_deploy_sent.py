"""What leaves a branch: the page about deployment lists it all, for every method."""

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from fedglean import tree
from fedglean.engine.clients import Clients
from fedglean.exchange.exchange import BlockResult, Exchange
from fedglean.exchange.states import ClientStates
from fedglean.federation.branch import Branch
from fedglean.federation.flower.carrier import parts_of
from fedglean.federation.letters import Answer, Declaration, Malformed, read
from fedglean.names import Names
from fedglean.runs.config import configure
from fedglean.runs.experiment import Experiment, prepare
from fedglean.runs.folder import Progress
from fedglean.runs.rounds import play_round
from fedglean.testing.engines import UploadLog, variant
from fedglean.testing.small_federation import small_experiment
from fedglean.tree import Tree
from flower_grid import LocalGrid, on_flower

METHODS = Names.of().tables["METHODS"]
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "deploy.md").read_text("utf-8")
#: Beside tensors, a letter has names, shapes and a checksum: so many bytes, and so many for each
#: tensor.
LETTER, TENSOR = 1500, 250


def listed() -> dict[str, tuple[list[str], str, list[str], str]]:
    """(message, its size, upload, its size) by method, off the page; sizes in models."""
    rows = re.findall(
        r"^\| ([a-z0-9, -]+) \| (.*) \| ([0-9.]+) \| (.*) \| ([0-9.]+) \|$", PAGE, re.M
    )
    return {
        name: (sorted(re.findall("`(.+?)`", sent)), down, sorted(re.findall("`(.+?)`", back)), up)
        for names, sent, down, back, up in rows
        for name in names.split(", ")
    }


class Noting(UploadLog):
    """`here` that notes what is sent to clients, too."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.sent: dict[str, Tree] = {}
        self.sizes: list[int] = []

    def serve(self, exchange: Exchange, blocks: Any, states: ClientStates) -> Iterator[BlockResult]:
        ask = exchange.ask
        for client in ask.to if ask.purpose == "train" else ():
            message = {**ask.message, **ask.each.get(client, {})}
            self.sent.update(message)
            self.sizes.append(tree.size_in_bytes(message))
        return super().serve(exchange, blocks, states)


def eager(name: str) -> Experiment:
    """The method with settings under which clients train from the first round on."""
    wanted = {"threshold": 0.0, "active": 1.0, "epochs": 1, "warmup_rounds": 0, "steps": 1}
    kind, own = METHODS[name].method, dict(METHODS[name].defaults.get("settings", {}))
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    chosen = own | {key: value for key, value in wanted.items() if key in known}
    if METHODS[name].defaults.get("split", {}).get("clients") == 1:
        options = {
            "model": "cnn",
            "norm": "static",
            "device": "cpu",
            "executor": "loop",
            "dtype": "float64",
        }
        return prepare(configure(name, rounds=2, settings=chosen, **options))
    return small_experiment(kind(**chosen), rounds=2)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_lists_what_every_method_sends(name: str) -> None:
    experiment = variant(eager(name), placement=Noting)
    placement = experiment.placement
    assert isinstance(placement, Noting)
    progress = Progress(0, experiment.start(), ClientStates(), [])
    for number in (1, 2):
        play_round(experiment, progress, number)
    trained = [each.upload.trees for each in placement.uploads]
    trained = [each for each in trained if not all(part.endswith("_sums") for part in each)]
    names = sorted(placement.sent), sorted({part for each in trained for part in each})
    sizes = placement.sizes, [tree.size_in_bytes(each) for each in trained]
    down, up = (f"{max(each, default=0) / one_model():.1f}" for each in sizes)
    row = (names[0], down, names[1], up)
    shown = [", ".join(f"`{part}`" for part in each) or "nothing" for each in names]
    assert listed().get(name) == row, (
        f"docs/deploy.md needs the row: | {name} | {shown[0]} | {down} | {shown[1]} | {up} |"
    )


@cache
def one_model() -> int:
    return tree.size_in_bytes(small_experiment(METHODS["fedavg"].method()).start().model)


class Recording(LocalGrid):
    """Keeps every letter that a branch sends."""

    letters: list[bytes]

    def answer(self, node: int, message: Message) -> Message:
        reply = super().answer(node, message)
        self.letters.append(parts_of(reply)["reply"])
        assert list(reply.content) == ["fedglean"] and list(parts_of(reply)) == ["reply"]
        return reply


def tensors(letter: bytes) -> dict[str, torch.Tensor]:
    return tree.named(read(Answer, letter, 1 << 30)[1])


def recorded(method: str, folder: Path) -> tuple[Experiment, list[bytes]]:
    options = {
        "epochs": 1,
        "rounds": 1,
        "clients": 3,
        "labels": "fraction:0.1",
        "device": "cpu",
        "executor": "loop",
    }
    if method == "semifl":
        options |= {"labels": "hub:100", "threshold": 0.2}
    if method != "fed-shvr":
        options["active"] = 1.0
    experiment = prepare(configure(method, **options))
    federation = experiment.federation

    def branch(number: int) -> Branch:
        held = federation.labelled[number], federation.unlabelled[number]
        return Branch(number, "north", lambda classes, form: held, folder / str(number))

    grid = Recording([branch(number) for number in range(3)])
    grid.letters = []
    flower = on_flower(experiment, grid, {})
    assert play_round(flower, Progress(0, experiment.start(), ClientStates(), []), 1)
    return experiment, grid.letters


@pytest.mark.parametrize("method", ["semifl", "hassle", "fed-shvr"])
def test_nothing_else_is_in_the_messages(method: str, tmp_path: Path) -> None:
    experiment, letters = recorded(method, tmp_path)
    declarations, answers = [], []
    for letter in letters:
        try:
            declarations.append(read(Declaration, letter)[0])
        except Malformed:
            answers.append(letter)
    assert len(declarations) == 3 and len(answers) >= 3
    message, _, upload, _ = listed()[method]
    allowed = {*upload, *(f"{name}_sums" for name in message)}
    images = {
        len(part)
        for side in (experiment.split.labelled, experiment.split.unlabelled)
        for part in side
    } - {0}
    for letter in answers:
        answer, body = read(Answer, letter, 1 << 30)
        found = tensors(letter)
        assert (
            body is not None
            and body.keys() == {"trees", "weights"}
            and body["trees"].keys() <= allowed
        )
        assert all(isinstance(weight, int | float) for weight in body["weights"].values())
        assert not [path for path, leaf in found.items() if images & set(leaf.shape)], (
            "something is sent for each image"
        )
        size = sum(leaf.numel() * leaf.element_size() for leaf in found.values())
        assert len(letter) < size + LETTER + TENSOR * len(found)
        assert (
            all(re.fullmatch("(.*_)?loss|objective", name) for name in answer.report or {})
            and not answer.error
        )
        assert all(isinstance(value, float) for value in (answer.report or {}).values())
    for letter in letters:
        assert str(tmp_path).encode() not in letter
        assert not [pixels for pixels in _pictures(experiment) if pixels in letter], (
            "an image left its branch"
        )


def _pictures(experiment: Experiment) -> Iterator[bytes]:
    for image in experiment.dataset.train_images[:200]:
        yield image.numpy().tobytes()

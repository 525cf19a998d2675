"""A hub and its branches read their own folders, together what a simulation reads."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from fedglean.cli import app
from fedglean.data.folders import from_folder
from fedglean.data.party_folders import branch_images, hub_images, with_branches
from fedglean.errors import ConfigError, DataError, RoundError, StorageError
from fedglean.federation import letters
from fedglean.federation.branch import Branch
from fedglean.federation.flower.carrier import FlowerCarrier
from fedglean.federation.flower.start_branch import run_branch
from fedglean.federation.flower.start_hub import run_hub
from fedglean.federation.hub import federate, serve
from fedglean.federation.letters import Declaration, Question, read, write
from fedglean.method import Mixture
from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.hub_table import row_of
from fedglean.report.page import page_data
from fedglean.runs.config import Config, configure, to_toml
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.folder import RunFolder
from fedglean.runs.predict import predict
from fedglean.runs.run import Run
from fedglean.sealed import write_whole
from fedglean.testing.difference import difference
from flower_grid import LocalGrid
from single_runs import run

OPTIONS: dict[str, dict[str, Any]] = {
    "semifl": {"epochs": 1, "threshold": 0.2, "active": 1.0},
    "hassle": {"epochs": 1, "residual_steps": 1, "active": 1.0},
    "fed-shvr": {"epochs": 1},
}


def picture(number: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((load_digits_once().images[number] * 15.9).astype(np.uint8)).save(path)


def load_digits_once(kept: list[Any] = []) -> Any:  # noqa: B006
    if not kept:
        kept.append(load_digits())
    return kept[0]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hub/CLASS, test/CLASS, clients/north without labels, clients/south with some."""
    place, labels = tmp_path_factory.mktemp("images"), load_digits_once().target
    for number in range(60):
        picture(number, place / "hub" / str(labels[number]) / f"{number}.png")
    for number in range(60, 100):
        picture(number, place / "test" / str(labels[number]) / f"{number}.png")
    for number in range(100, 140):
        picture(number, place / "clients" / "north" / "scans" / f"{number}.png")
    for number in range(140, 180):
        kind = str(labels[number]) if number < 155 else "unlabelled"
        picture(number, place / "clients" / "south" / kind / f"{number}.png")
    return place


def branches(root: Path, state: Path) -> list[Branch]:
    return [
        Branch(number, name, branch_images(root / "clients" / name), state / name)
        for number, name in enumerate(("north", "south"))
    ]


@dataclass(frozen=True)
class Plan:
    """How a hub is started."""

    config: Config
    options: HubOptions


def hosting(root: Path, out: Path, method: str = "semifl", **changes: Any) -> Plan:
    own = {"model": "mlp", "rounds": 2, "dtype": "float64", "device": "cpu"}
    config = configure(method, **own | OPTIONS.get(method, {}) | changes)
    times = {"deadline": 1.0, "grace": 0.2, "gathering": 0.3}
    return Plan(config, HubOptions(images=root, branches=2, out=out, **times))


def federated(
    grid: LocalGrid,
    plan: Plan,
    tell: Callable[[str], object] = print,
    on_row: Callable[[list[str]], object] = print,
) -> Run:
    """What the hub of that plan comes to on a grid of Flower's."""

    def on_round(line: Any, asked: int) -> None:
        on_row(row_of(line, asked, plan.config.rounds))

    return federate(FlowerCarrier(grid, 0.01), plan.config, plan.options, tell, on_round)


def models(result: Run) -> dict[str, Any]:
    return {
        name: list(each.models) if isinstance(each, Mixture) else each
        for name, each in result.predictors.items()
    }


@pytest.mark.parametrize("method", OPTIONS)
def test_a_federation_of_folders_is_the_simulation_of_them(
    method: str, root: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    result = federated(
        LocalGrid(branches(root, tmp_path)), hosting(root, tmp_path / "run", method), said.append
    )
    options = OPTIONS[method] | {"device": "cpu", "executor": "loop", "dtype": "float64"}
    simulated = run(
        configure(method, data="folder", data_root=root, model="mlp", rounds=2, **options)
    )
    found = difference(models(simulated), models(result), 1e-10)
    assert found is None, found
    accuracies = [[line["accuracy"] for line in each.history] for each in (simulated, result)]
    assert accuracies[0] == accuracies[1] and result.classes == tuple("0123456789")
    assert said == ["2 of 2 branches, 2 rounds of " + method]


def test_a_method_of_ones_own_lies_on_both_sides(root: Path, tmp_path: Path) -> None:
    """Its code is not sent: a branch that does not name the file cannot answer, and says so."""
    use = str(Path(__file__).resolve().parents[1] / "examples" / "own_method.py")
    options = {
        "use": use,
        "model": "mlp",
        "rounds": 1,
        "epochs": 1,
        "active": 1.0,
        "threshold": 0.2,
        "device": "cpu",
    }
    plan = replace(hosting(root, tmp_path / "run"), config=configure("pseudo-avg", **options))
    knowing, other = branches(root, tmp_path)
    rows: list[list[str]] = []
    federated(LocalGrid([replace(knowing, use=use), other]), plan, print, rows.append)
    assert rows[0][1] == "1 of 2" and "branch 1: ConfigError at the branch" in rows[0][-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed_before_any_work(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torch finds no CUDA device here"):
        federated(
            LocalGrid(branches(root, tmp_path)),
            hosting(root, tmp_path / "run", device="cuda"),
            print,
        )
    command = [
        "deploy",
        "branch",
        "--number",
        "0",
        "--images",
        str(root),
        "--hub",
        "hub:8000",
        "--state",
        str(tmp_path),
    ]
    said = CliRunner().invoke(app, [*command, "--insecure", "--device", "cuda"])
    assert said.exit_code == ConfigError.exit_code and "no CUDA device" in said.output
    said = CliRunner().invoke(app, [*command, "--insecure", "--device", "tpu"])
    assert said.exit_code == ConfigError.exit_code and "auto, cpu, cuda" in said.output


def test_keys_are_named_or_refused_to_be_named(root: Path, tmp_path: Path) -> None:
    hub = [
        "deploy",
        "hub",
        "semifl",
        "--images",
        str(root),
        "--branches",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    for more, reason in (
        ([], "or --insecure to use none"),
        (["--keys", "k"], "no branch is admitted"),
    ):
        said = CliRunner().invoke(app, [*hub, *more])
        assert said.exit_code == ConfigError.exit_code and reason in said.output
    assert not (tmp_path / "run").exists()


def test_the_run_folder_is_that_of_a_simulation(root: Path, tmp_path: Path) -> None:
    federated(
        LocalGrid(branches(root, tmp_path)), hosting(root, tmp_path / "run"), lambda sentence: None
    )
    shown = predict(
        tmp_path / "run",
        [root / "test" / "3" / f"{load_digits_once().target[60:].tolist().index(3) + 60}.png"],
    )
    assert shown[0].label in "0123456789"
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(0 < line["pseudo"]["confident_share"] <= 1 for line in lines if not line["final"])
    split = RunFolder(tmp_path / "run").split()
    assert split.names == ("north", "south") and [len(part) for part in split.labelled] == [0, 15]


def test_a_hub_alone_trains_without_branches_and_without_keys(root: Path, tmp_path: Path) -> None:
    options = ["--images", str(root), "--branches", "0", "--out", str(tmp_path / "run")]
    short = ["--model", "mlp", "--rounds", "2"]
    said = CliRunner().invoke(app, ["deploy", "hub", "hub-only", *options, *short])
    assert said.exit_code == 0, said.output
    assert (tmp_path / "run" / "curves.png").exists()
    again = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert again.exit_code == 0 and "already finished" in again.output
    options[-1] = str(tmp_path / "other")
    refused = CliRunner().invoke(app, ["deploy", "hub", "semifl", *options, *short])
    assert refused.exit_code == ConfigError.exit_code and "--branches" in refused.output


def test_a_page_names_a_floor_that_needs_no_branches(root: Path, tmp_path: Path) -> None:
    plan = hosting(root, tmp_path / "run")
    out = written_down(plan)
    north = branches(root, tmp_path)[:1]
    south = replace(north[0], number=1, name="south")
    federated(LocalGrid([*north, south]), plan)
    start, _ = page_data(gather([out]), ModelReport())["help"]["how"][-2:]
    arguments = shlex.split(start)
    assert "--branches 0" in start and "--keys" not in start and "--insecure" not in start
    assert CliRunner().invoke(app, arguments[1:]).exit_code == 0
    floor = arguments[arguments.index("--out") + 1]
    (answer,) = page_data(gather([out, Path(floor)]), ModelReport())["help"]["answers"]
    assert answer["floor"] == "hub-only"


class Stopping(LocalGrid):
    """The hub is stopped when it sends out the orders of a round."""

    round: str | None = None

    def _push(self, message: Message) -> str:
        name = super()._push(message)
        if self.round is not None and message.metadata.group_id.startswith(self.round):
            raise KeyboardInterrupt
        return name


class Late(Stopping):
    """A node comes when the orders of round 2 go out."""

    def _push(self, message: Message) -> str:
        if message.metadata.group_id.startswith("2-"):
            self.gone.clear()
        return super()._push(message)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_quorum_begins_and_who_comes_late_takes_part_from_then_on(
    stopped: bool, root: Path, tmp_path: Path
) -> None:
    """Also when the hub is stopped after it came: federation.json knows it.

    Images are normalised as before.
    """
    said: list[str] = []
    rows: list[list[str]] = []
    plan, grid = hosting(root, tmp_path / "run", rounds=4), Late(branches(root, tmp_path))
    grid.gone = {101}
    if stopped:
        grid.round = "3-"
        with pytest.raises(KeyboardInterrupt):
            federated(grid, plan, said.append, rows.append)
        grid.round = None
    federated(grid, plan, said.append, rows.append)
    assert (
        said[0] == "1 of 2 branches have joined, the quorum is 1; waiting up to 0.3 s for branch 1"
    )
    assert (
        "1 of 2 branches, 4 rounds of semifl" in said
        and "branch 1 has joined, and takes part from now on" in said
    )
    third = "2 of 2" if stopped else "1 of 2"  # in which the hub hears of it
    assert [row[1] for row in rows] == ["1 of 2", "1 of 2", third, "2 of 2", ""]
    assert rows[0][-1] == "branch 1: not there when it was asked" and not rows[3][-1]


@pytest.mark.parametrize("method", ["semifl", "fed-shvr"])
def test_a_hub_that_was_stopped_in_a_round_goes_on_from_the_last_finished_one(
    method: str, root: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    whole = federated(
        LocalGrid(branches(root, tmp_path / "a")),
        hosting(root, tmp_path / "whole", method),
        said.append,
    )
    grid = Stopping(branches(root, tmp_path / "b"))
    grid.round = "2-"
    plan = hosting(root, tmp_path / "stopped", method)
    with pytest.raises(KeyboardInterrupt):
        federated(grid, plan, said.append)
    fresh = LocalGrid(
        branches(root, tmp_path / "b")
    )  # node ids mean nothing: these come in another order
    fresh.apps = dict(zip((7, 8), reversed(fresh.apps.values()), strict=True))
    result = federated(fresh, plan, said.append)
    assert "continuing after round 1 of 2" in said
    assert difference(dict(whole.predictors), dict(result.predictors)) is None
    kinds = [[line["round"] for line in each.history] for each in (whole, result)]
    assert kinds[0] == kinds[1]


def test_another_configuration_does_not_go_on_with_it(root: Path, tmp_path: Path) -> None:
    grid = LocalGrid(branches(root, tmp_path))
    federated(grid, hosting(root, tmp_path / "run"), lambda sentence: None)
    with pytest.raises(StorageError, match="another configuration"):
        federated(grid, hosting(root, tmp_path / "run", threshold=0.5), lambda sentence: None)
    plan = hosting(root, tmp_path / "run")
    plan = replace(plan, options=replace(plan.options, branches=3))
    with pytest.raises(StorageError, match="a run with 2 branches"):
        federated(grid, plan, lambda sentence: None)


def test_a_branch_whose_images_changed_is_refused_by_a_run_that_knows_it(
    root: Path, tmp_path: Path
) -> None:
    grid, plan, said = (
        Stopping(branches(root, tmp_path)),
        hosting(root, tmp_path / "run", quorum=1.0),
        [],
    )
    grid.round = "2-"
    with pytest.raises(KeyboardInterrupt):
        federated(grid, plan, said.append)
    other = branches(root, tmp_path)
    other[1] = replace(other[1], images=branch_images(root / "clients" / "north"))
    with pytest.raises(RoundError, match="only 1 of 2 branches could be reached"):
        federated(LocalGrid(other), plan, said.append)
    assert any("this run began with" in sentence for sentence in said)


def test_a_hub_does_not_go_on_with_other_images(root: Path, tmp_path: Path) -> None:
    images = shutil.copytree(root, tmp_path / "images")
    grid, plan = Stopping(branches(root, tmp_path)), hosting(images, tmp_path / "run")
    grid.round = "2-"
    with pytest.raises(KeyboardInterrupt):
        federated(grid, plan, lambda sentence: None)
    (images / "hub" / "0" / "0.png").unlink()
    with pytest.raises(DataError, match="not those of the split"):
        federated(LocalGrid(branches(root, tmp_path)), plan, lambda sentence: None)
    shutil.copy(root / "hub" / "0" / "0.png", images / "hub" / "0")
    assert federated(LocalGrid(branches(root, tmp_path)), plan, lambda sentence: None).history[-1][
        "final"
    ]


def written_down(plan: Plan) -> Path:
    """The run folder, with how the hub is started, as the command line leaves it to the app."""
    out = plan.options.out
    (out / "flower").mkdir(parents=True)
    plan.options.save()
    (out / "flower" / "hub.toml").write_text(to_toml(plan.config))
    return out


def test_the_journal_ends_with_the_exit_code(root: Path, tmp_path: Path) -> None:
    good, bad = (
        written_down(hosting(root, tmp_path / name, quorum=1.0)) for name in ("good", "bad")
    )
    serve(FlowerCarrier(LocalGrid(branches(root, tmp_path)), 0.01), good)
    with pytest.raises(RoundError):
        serve(FlowerCarrier(LocalGrid(branches(root, tmp_path)[:1]), 0.01), bad)
    said = _journal(good)
    assert said[-1]["code"] == 0
    assert next((each["line"]["round"], each["asked"]) for each in said if "line" in each) == (1, 2)
    said = _journal(bad)
    assert said[-1]["code"] == RoundError.exit_code and "branch 1 did not join" in said[-1]["told"]


class Replaced(Stopping):
    """Another hub is started with the run folder before Flower interrupts the app of this one."""

    journal: Path

    def _push(self, message: Message) -> str:
        try:
            return super()._push(message)
        except KeyboardInterrupt:
            write_whole(self.journal, b"")
            raise


def test_the_last_words_of_a_killed_hubs_app_are_not_for_the_hub_that_was_started_since(
    root: Path, tmp_path: Path
) -> None:
    out = written_down(hosting(root, tmp_path / "run"))
    grid = Replaced(branches(root, tmp_path))
    grid.round, grid.journal = "2-", out / "flower" / "journal.jsonl"
    with pytest.raises(KeyboardInterrupt):
        serve(FlowerCarrier(grid, 0.01), out)
    assert not _journal(out)


class Unlike(LocalGrid):
    """Node 101 runs another version of the package."""

    def answer(self, node: int, message: Message) -> Message:
        with pytest.MonkeyPatch.context() as patch:
            if node == 101:
                patch.setattr(letters, "own_version", lambda: "9.9.9 (code 00000000)")
            return super().answer(node, message)


def test_a_branch_of_another_version_is_refused_before_it_trains(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    rows: list[list[str]] = []
    result = federated(
        Unlike(branches(root, tmp_path)), hosting(root, tmp_path / "run"), said.append, rows.append
    )
    theirs, ours = "fedglean 9.9.9 (code 00000000)", f"fedglean {letters.own_version()}"
    assert f"it comes from {theirs}, and this is {ours}; install the same" in " ".join(said)
    assert f"it comes from {ours}, and this is {theirs}; install the same" in caplog.text, (
        "the branch is told as well"
    )
    assert {row[-1] for row in rows[:2]} == {"branch 1: not there when it was asked"}
    alone = federated(
        LocalGrid(branches(root, tmp_path / "a")[:1]), hosting(root, tmp_path / "alone"), print
    )
    assert difference(models(alone), models(result)) is None


def test_a_branch_whose_file_of_methods_is_not_the_hubs_is_refused(
    root: Path, tmp_path: Path
) -> None:
    use = Path(__file__).resolve().parents[1] / "examples" / "own_method.py"
    other = tmp_path / "own_method.py"
    other.write_text(use.read_text() + "\n")
    options = {
        "use": str(use),
        "model": "mlp",
        "rounds": 1,
        "epochs": 1,
        "active": 1.0,
        "threshold": 0.2,
    }
    config = configure("pseudo-avg", device="cpu", **options)
    plan = replace(hosting(root, tmp_path / "run"), config=config)
    north, south = (
        replace(each, use=str(file))
        for each, file in zip(branches(root, tmp_path), (use, other), strict=False)
    )
    rows: list[list[str]] = []
    federated(LocalGrid([north, south]), plan, print, rows.append)
    assert rows[0][-1].startswith("branch 1: the --use file or package") and rows[0][-1].endswith(
        "copy the hub's here"
    )


def test_too_few_branches_give_up_and_the_same_command_goes_on_later(
    root: Path, tmp_path: Path
) -> None:
    plan, said = hosting(root, tmp_path / "run", quorum=1.0), []
    with pytest.raises(
        RoundError, match=r"branch 1 did not join within 0\.3 s, but the quorum is 2 of 2"
    ):
        federated(LocalGrid(branches(root, tmp_path)[:1]), plan, said.append)
    assert said == [
        "1 of 2 branches have joined, the quorum is 2; waiting up to 0.3 s for branch 1"
    ]
    result = federated(LocalGrid(branches(root, tmp_path)), plan, said.append)
    whole = federated(
        LocalGrid(branches(root, tmp_path / "b")),
        hosting(root, tmp_path / "whole", quorum=1.0),
        print,
    )
    assert difference(dict(whole.predictors), dict(result.predictors)) is None


def _journal(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (folder / "flower" / "journal.jsonl").read_text().splitlines()
    ]


def test_each_party_reads_its_own_part_of_what_a_simulation_reads(
    root: Path, tmp_path: Path
) -> None:
    whole, hub = from_folder(root), hub_images(root)
    declared = [
        read(Declaration, branch.declare(write(Question(list(hub.classes)))))[0]
        for branch in branches(root, tmp_path)
    ]
    own = with_branches(hub, declared)
    assert own.classes == whole.classes and own.pad == whole.pad
    assert own.mean == pytest.approx(whole.mean, rel=1e-14) and own.std == pytest.approx(
        whole.std, rel=1e-14
    )
    assert own.given is not None and whole.given is not None
    for ours, theirs in zip(
        own.given.labelled + own.given.unlabelled,
        whole.given.labelled + whole.given.unlabelled,
        strict=False,
    ):
        assert len(ours) == len(theirs)


def test_a_test_folder_in_which_nothing_lies_is_none_to_a_hub_and_to_a_simulation(
    root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "own", ignore=shutil.ignore_patterns("test"))
    (tmp_path / "own" / "test").mkdir()
    whole, hub = from_folder(tmp_path / "own"), hub_images(tmp_path / "own")
    assert whole.given is not None and len(whole.given.hub) == len(hub.train_images)
    assert torch.equal(whole.test_images, hub.test_images)


def test_a_hub_whose_test_set_lacks_a_class_is_refused_as_its_simulation_is(
    root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "own")
    shutil.rmtree(tmp_path / "own" / "test" / "3")
    for read_party in (hub_images, from_folder):
        with pytest.raises(DataError, match="has no images of the class '3', which has labels"):
            read_party(tmp_path / "own")


def test_a_hub_without_labels_takes_the_classes_from_its_test_images(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "test").symlink_to(root / "test")
    hub = hub_images(tmp_path)
    assert (
        len(hub.train_images) == 0
        and hub.classes == tuple("0123456789")
        and hub.test_images.shape[1:] == (1, 8, 8)
    )
    with pytest.raises(DataError, match="neither hub/CLASS nor test/CLASS"):
        hub_images(tmp_path / "nothing")


def test_a_federations_page_reads_the_hubs_images_and_names_commands_of_deploy(
    root: Path, tmp_path: Path
) -> None:
    """`fedglean run` cannot read a hub's folder: it has no clients in it."""
    own = tmp_path / "own"
    own.mkdir()
    for part in ("hub", "test"):
        (own / part).symlink_to(root / part)
    outs = [tmp_path / "run", tmp_path / "run-hub-only"]
    for out, method in zip(outs, ("semifl", "hub-only"), strict=True):
        federated(
            LocalGrid(branches(root, tmp_path / method)),
            hosting(own, out, method),
            lambda sentence: None,
        )
        options = HubOptions(
            images=own,
            branches=2,
            out=out,
            listen="hub:8000",
            keys=tmp_path / "keys",
            admit={0: tmp_path / "a.pub"},
            deadline=10,
            grace=5,
            gathering=5,
        )
        (out / "flower").mkdir()
        options.save()

    data = page_data(gather(outs), ModelReport())
    first = data["groups"][0]
    assert first["exam"]["tested"] == 40 and len(first["exam"]["confusion"]) == 10
    unlabelled = first["holders"]["unlabelled"]
    assert first["holders"]["names"] == ["hub", "north", "south"] and [
        row[-1] for row in unlabelled
    ] == [0, 40, 25]
    (answer,) = data["help"]["answers"]
    assert "test images of one seed" in answer["sentence"] and "--seeds" not in answer["sentence"]

    hub = (
        f"--images {own} --branches 2 --out {{}} --listen hub:8000 --deadline 10 --grace 5 "
        "--gathering 5"
    )
    hub += f" --keys {tmp_path / 'keys'} --admit 0={tmp_path / 'a.pub'}"
    again = hub.format(outs[0].parent / "run-again")
    assert first["command"] == f"fedglean deploy hub --config {outs[0] / 'config.toml'} {again}"
    start, report = page_data(gather(outs[:1]), ModelReport())["help"]["how"][-2:]
    assert (
        start.startswith("fedglean deploy hub ")
        and "--data" not in start
        and "--seeds" not in start
    )
    assert start.endswith(
        " --model mlp --norm static --rounds 2 --seed 0 " + hub.format(report.split()[-1])
    )


def test_a_hub_touches_nothing_of_a_run_that_is_another_or_at_work(
    root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    plan = hosting(root, out)
    own = plan.options
    federated(LocalGrid(branches(root, tmp_path)), plan)
    before = sorted(out.rglob("*"))
    with pytest.raises(StorageError, match="another configuration"):
        run_hub(configure("fed-shvr"), own, print, lambda line, asked: None)
    assert sorted(out.rglob("*")) == before
    (tmp_path / "new" / "flower").mkdir(parents=True)
    hold = "import sys, time, pathlib; from fedglean.sealed import lock; "
    hold += "held = lock(pathlib.Path(sys.argv[1]), None); print(flush=True); time.sleep(60)"
    place = tmp_path / "new" / "flower" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(place)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(StorageError, match="another process is working"):
            run_hub(
                configure("semifl"),
                replace(own, out=tmp_path / "new"),
                print,
                lambda line, asked: None,
            )
        with pytest.raises(StorageError, match="another process is working"):
            run_branch(["false"], tmp_path / "new", print)
        other.kill()

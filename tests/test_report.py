"""The page tells what the run folders hold, no more and no less, finished or not."""

import base64
import hashlib
import io
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image
from rich.console import Console
from scipy.stats import ttest_1samp

from fedglean.data.sources import load
from fedglean.exchange.states import ClientStates
from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.page import page_data, write_page
from fedglean.report.plots import curves_figure
from fedglean.report.terminal import results_table
from fedglean.runs.api import compare
from fedglean.runs.config import configure, read_toml, resolve
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress, RunFolder
from fedglean.runs.rounds import LiveRun, play
from fedglean.runs.run import Runs
from fedglean.runs.verdict import difference, over_seeds
from fedglean.schema import write
from fedglean.testing.engines import with_delivery
from fedglean.testing.faults import not_a_number, poison
from shown_runs import HOSTILE, Made, Reader, call, config, hostile_runs, lines, without_checkpoint
from single_runs import run


def shown(page: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Reader(page.read_text()).texts["data"])
    return data


def data_of(folders: Sequence[Path]) -> dict[str, Any]:
    """What the page of these folders shows."""
    return page_data(gather(folders), ModelReport())


def test_the_pages_numbers_are_those_of_the_metrics(made: Made, tmp_path: Path) -> None:
    (group,) = shown(write_page([made.all / "semifl"], tmp_path / "page.html"))["groups"]
    assert [run["seed"] for run in group["runs"]] == [0, 1] and group["predictors"] == made.semifl[
        0
    ].names
    for seed, told_of in enumerate(group["runs"]):
        history = lines(made.all / f"semifl/seed-{seed}")
        for name in (
            "round",
            "final",
            "bytes_down",
            "bytes_up",
            "seconds",
            "answered",
            "abstained",
        ):
            assert told_of[name] == [line[name] for line in history]
        for name in group["predictors"]:
            assert told_of["accuracy"][name] == [line["accuracy"][name] for line in history]
        assert set(told_of["pseudo"]) == set(history[1]["pseudo"])
        for kind, values in told_of["pseudo"].items():
            assert values == [line["pseudo"].get(kind) for line in history]
        assert told_of["per_class"] == history[-1]["per_class"][group["predictors"][0]]
        for phase, spent in told_of["phases"].items():
            assert spent == pytest.approx(sum(line["phases"][phase] for line in history))


def test_last_and_best_round_stay_apart_and_are_those_of_the_results(made: Made) -> None:
    (group,) = data_of([made.all / "semifl"])["groups"]
    for name in group["predictors"]:
        for part, score in zip(("last", "best"), made.semifl.score(name), strict=True):
            scores, spread = group[part][name], score.spread
            assert (scores["mean"], scores["deviation"]) == (spread.mean, spread.deviation)
            assert (min(scores["values"]), max(scores["values"])) == (spread.worst, spread.best)
    headline = data_of([made.all / "semifl"])["headline"]
    assert (
        headline["sentence"] == f"semifl reaches {100 * made.semifl.last.accuracy:.1f} % on digits"
    )
    assert (
        f"{100 * made.semifl.best.accuracy:.1f} %" in headline["detail"]
        and "2 seeds" in headline["detail"]
    )


def test_predictors_keep_the_methods_order_also_before_there_is_a_model(tmp_path: Path) -> None:
    it = configure("fixmatch", rounds=1, model="mlp", steps=1, device="cpu", executor="loop")
    result = run(it, tmp_path / "run")
    assert (
        result.names == ["average", "model"]
        and list(lines(tmp_path / "run")[0]["accuracy"]) == result.names
    )


def test_whether_unlabelled_clients_helped_is_a_paired_comparison_of_seeds(made: Made) -> None:
    answers = data_of([made.all])["help"]["answers"]
    pairs = zip(made.semifl, made.alone, strict=True)
    differences = [one.last.accuracy - other.last.accuracy for one, other in pairs]
    (answer,) = answers
    interval = ttest_1samp(differences, 0).confidence_interval(0.95)
    assert answer["gain"]["mean"] == pytest.approx(np.mean(differences))
    assert (answer["gain"]["low"], answer["gain"]["high"]) == pytest.approx(
        (interval.low, interval.high)
    )
    assert "2 seeds" in answer["sentence"] and (answer["label"], answer["floor"]) == (
        "semifl",
        "hub-only",
    )


def test_each_is_told_its_gap_to_the_best_as_the_comparison_tells_it(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "seeds": 2,
        "model": "mlp",
        "clients": 6,
        "rounds": 3,
        "labels": "hub:50",
        "device": "cpu",
    }
    found = compare(["semifl", "hub-only", "hub-all"], executor="loop", out=tmp_path / "c", **small)
    against = data_of([tmp_path / "c"])["against"]
    assert against.keys() == {row.label for row in found.rows} and against[found.best] is None
    for row in found.rows:
        assert against[row.label] == (row.against_best and asdict(row.against_best))


def test_the_best_is_the_best_of_each_task_and_nobodys_match_alone(
    made: Made, tmp_path: Path
) -> None:
    def against(*folders: Path) -> dict[str, Any]:
        found: dict[str, Any] = data_of(folders)["against"]
        return found

    others = [tmp_path / "fewer seeds", tmp_path / "better labels"]
    run(config("hub-only"), others[0])
    run(config("hub-only", labels="hub:900"), others[1])
    pair = against(made.all)
    assert sorted(pair) == ["hub-only", "semifl"] and list(pair.values()).count(None) == 1
    assert against(made.all / "semifl", *others) == {}
    assert len(gather([made.all / "semifl", made.all / "hub-only" / ".." / "semifl"])) == 1, (
        "named twice"
    )
    with_others = against(made.all, *others)
    assert sorted(filter(None, with_others.values()), key=str) == sorted(
        filter(None, pair.values()), key=str
    )


@pytest.mark.parametrize(
    ("gap", "word"),
    [((0.05, 0.06, 0.055), "Yes"), ((-0.05, -0.06, -0.055), "No"), ((0.1, -0.09, 0.02), "Too")],
)
def test_the_verdict_needs_an_interval_on_one_side_of_zero(
    made: Made, tmp_path: Path, gap: tuple[float, ...], word: str
) -> None:
    for name, shift in (("semifl", gap), ("hub-only", (0.0, 0.0, 0.0))):
        for seed, more in enumerate(shift):
            place = tmp_path / name / f"seed-{seed}"
            without_checkpoint(made.all / name / "seed-0", place)
            text = (place / "config.toml").read_text().replace("seed = 0", f"seed = {seed}")
            (place / "config.toml").write_text(text)
            line = lines(place)[0]
            line["accuracy"] = dict.fromkeys(line["accuracy"], 0.5 + more)
            (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (tmp_path / name / "seeds.json").write_text('{"seeds": [0, 1, 2]}')
    (answer,) = data_of([tmp_path])["help"]["answers"]
    assert answer["verdict"].startswith(word)
    assert (answer["gain"]["low"] > 0, answer["gain"]["high"] < 0) == (word == "Yes", word == "No")


def test_one_seed_is_judged_by_its_test_images_and_not_before_its_models_are_there(
    made: Made, tmp_path: Path
) -> None:
    assert over_seeds([0.3]) is None
    assert over_seeds([0.3, 0.1 + 0.2]) is None  # equal, and by chance: no certainty
    (answer,) = page_data(
        gather([made.all / "semifl/seed-0", made.all / "hub-only"]), ModelReport()
    )["help"]["answers"]
    pairs = [(made.semifl[0], made.alone[0])]
    assert answer["gain"] == asdict(difference(pairs, ModelReport().right))
    assert "--seeds" in answer["sentence"]
    assert answer["verdict"].endswith("with this seed")
    shutil.copytree(made.all / "semifl/seed-0", tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    (answer,) = data_of([tmp_path / "run", made.all / "hub-only"])["help"]["answers"]
    assert answer["verdict"] == "Too uncertain to say" and "this may change" in answer["sentence"]


def test_without_labels_alone_the_page_says_how_to_get_the_answer_and_that_works(
    made: Made, tmp_path: Path
) -> None:
    asked = data_of([made.all / "semifl"])["help"]
    train, report = (command.split() for command in asked["how"])
    assert not asked["answers"] and train[:3] == ["fedglean", "run", "hub-only"]
    here = tmp_path / "floor"
    assert call(*train[1:-1], here, "--quiet", "--device", "cpu").exit_code == 0
    assert call(*report[1:-1], here, "--out", tmp_path / "page.html").exit_code == 0
    assert len(shown(tmp_path / "page.html")["help"]["answers"]) == 1


def test_a_run_on_another_task_is_no_floor(made: Made, tmp_path: Path) -> None:
    def answers(*folders: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = data_of(folders)["help"]["answers"]
        return found

    run(config("hub-only", labels="hub:100"), tmp_path / "other")
    assert not answers(made.all / "semifl", tmp_path / "other")
    run(config("hub-only", clients=12), tmp_path / "more clients")
    assert answers(made.all / "semifl", tmp_path / "more clients"), "the hub has the same labels"
    run(config("hub-only", rounds=1), tmp_path / "shorter")
    assert not answers(made.all / "semifl", tmp_path / "shorter")
    run(config("fedavg-fixmatch", labels="each:2", rounds=1), tmp_path / "method")
    run(config("fedavg", labels="each:2", clients=12, rounds=1), tmp_path / "more labels")
    assert not answers(tmp_path / "method", tmp_path / "more labels")
    for name, method, hub in (("a", "semifl", 40), ("b", "hub-only", 80)):
        run(
            config(
                method, data="npz", data_root=own_images(tmp_path / f"{name}.npz", hub), rounds=1
            ),
            tmp_path / name,
        )
    assert not answers(tmp_path / "a", tmp_path / "b")


def test_a_floor_that_is_not_finished_is_waited_for(made: Made, tmp_path: Path) -> None:
    floor = shutil.copytree(made.all / "hub-only/seed-0", tmp_path / "floor")
    (floor / "model.safetensors").unlink()
    asked = data_of([made.all / "semifl", floor])["help"]
    assert asked == {
        "answers": [],
        "how": None,
        "why": "The run on the labels alone is not finished.",
    }


def test_what_a_run_is_for_is_read_off_its_split_where_the_images_are_the_users(
    tmp_path: Path,
) -> None:
    """`split.labels` of the configuration says nothing then: here it is what scaffold brings along,
    "all".
    """
    own: dict[str, Any] = {
        "data": "npz",
        "data_root": own_images(tmp_path / "own.npz"),
        "rounds": 1,
    }
    for method in ("fedavg-fixmatch", "scaffold"):
        run(config(method, **own), tmp_path / method)
    data = data_of([tmp_path / "fedavg-fixmatch", tmp_path / "scaffold"])
    assert [group["role"] for group in data["groups"]] == ["method", "labels alone"]
    assert [answer["floor"] for answer in data["help"]["answers"]] == ["scaffold"]
    hub, clients, report = data_of([tmp_path / "fedavg-fixmatch"])["help"]["how"]
    assert (
        "run hub-only" in hub
        and "run fedavg " in clients
        and report.endswith("/fedavg-fixmatch-fedavg")
    )


def test_ones_own_images_go_by_the_name_of_their_folder_or_file(tmp_path: Path) -> None:
    images = own_images(tmp_path / "scans $1$ [b].npz")
    result = run(config("fedavg", data="npz", data_root=images, rounds=1), tmp_path / "run")
    data = data_of([tmp_path / "run"])
    assert data["groups"][0]["data"] == "scans $1$ [b].npz"
    assert data["headline"]["sentence"].endswith(" on scans $1$ [b].npz")
    console = Console(file=io.StringIO(), width=100)
    runs = Runs(result.config, [result])
    console.print(results_table(runs))
    assert "fedavg on scans $1$ [b].npz, seed 0" in console.file.getvalue()  # type: ignore[attr-defined]
    texts = curves_figure({"fedavg": runs}, runs.title).axes[0].findobj(Text)
    assert [each.get_parse_math() for each in texts if each.get_text() == runs.title] == [False]


def own_images(path: Path, hub: int = 40) -> str:
    """The first digits, some of them at the hub; of the 160 at four clients, every other one has a
    label.
    """
    digits = load("digits")
    images, labels = (
        digits.train_images[: hub + 160, 0].numpy(),
        digits.train_labels[: hub + 160].numpy(),
    )
    np.savez(
        path,
        hub_images=images[:hub],
        hub_labels=labels[:hub],
        client_images=images[hub:],
        client_ids=np.arange(160) // 40,
        client_labels=np.where(np.arange(160) % 2, labels[hub:], -1),
        test_images=images,
        test_labels=labels,
    )
    return str(path)


def test_who_has_all_images_at_one_place_learns_from_unlabelled_ones_but_says_nothing_of_clients(
    made: Made, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"rounds": 1, "steps": 1, "clients": 1, "labels": "each:20"}
    for method in ("fixmatch", "uda"):
        run(config(method, **own), tmp_path / method)
    one = data_of([tmp_path / "fixmatch", made.all / "hub-only"])["help"]
    assert (
        one["why"].startswith("fixmatch has everybody's images in one place")
        and "a reference" in one["why"]
    )
    both = data_of([tmp_path])
    assert (
        both["help"]["why"].startswith("fixmatch and uda have everybody's images")
        and not both["help"]["how"]
    )
    assert {group["role"] for group in both["groups"]} == {"reference"}
    with_method = data_of([tmp_path, made.all])["help"]
    assert [answer["label"] for answer in with_method["answers"]] == ["semifl"]


def test_folders_are_told_apart_and_a_comparison_has_its_labels_in_order(
    made: Made, tmp_path: Path
) -> None:
    assert [group.name for group in gather([made.all])] == ["hub-only", "semifl"]
    twice = gather([made.all / "semifl/seed-0", made.all / "semifl/seed-1"])
    assert [group.label for group in twice] == ["semifl (seed-0)", "semifl (seed-1)"]
    shutil.copytree(made.all, tmp_path / "both")
    planned(
        tmp_path / "both",
        {"SemiFL, ours": "semifl", "late": "fedavg-fixmatch", "labels": "hub-only"},
    )
    both = gather([tmp_path / "both"])
    assert [(group.name, len(group)) for group in both] == [
        ("SemiFL, ours", 2),
        ("late", 0),
        ("labels", 2),
    ]


def test_a_copy_that_somebody_put_beside_the_seeds_is_no_seed(made: Made, tmp_path: Path) -> None:
    group = tmp_path / "semifl"
    shutil.copytree(made.all / "semifl", group)
    shutil.copytree(group / "seed-0", group / "seed-0-before")
    assert [run.folder and run.folder.name for run in gather([group])[0]] == ["seed-0", "seed-1"]


def planned(folder: Path, methods: dict[str, str]) -> None:
    """Make a folder that of a comparison under way: label by label, what is to run there."""
    entries = [
        {"label": label, "folder": method, "config": write(config(method))}
        for label, method in methods.items()
    ]
    (folder / "compare.json").write_text(json.dumps({"entries": entries}))


def test_what_a_comparison_has_yet_to_begin_is_named_and_waited_for(
    made: Made, tmp_path: Path
) -> None:
    def page(*begun: str) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "all", ignore_errors=True)
        for method in begun:
            shutil.copytree(made.all / method, tmp_path / "all" / method)
        planned(
            tmp_path / "all", {"ours": "semifl", "labels": "hub-only", "other": "fedavg-fixmatch"}
        )
        return shown(write_page([tmp_path / "all"], tmp_path / "page.html"))

    without_floor, without_methods, with_both = (
        page("semifl"),
        page("hub-only"),
        page("semifl", "hub-only"),
    )
    assert without_floor["coming"] == ["labels", "other"] and without_methods["coming"] == [
        "ours",
        "other",
    ]
    assert without_floor["help"] == {
        "answers": [],
        "how": None,
        "why": "labels is still to come, on the labels alone.",
    }
    assert without_methods["help"]["why"] == "ours and other are still to come."
    assert [each["label"] for each in with_both["help"]["answers"]] == ["ours"] and not with_both[
        "help"
    ]["why"]
    finished = json.loads((tmp_path / "all/compare.json").read_text()) | {"answer": "yes"}
    (tmp_path / "all/compare.json").write_text(json.dumps(finished))
    assert shown(write_page([tmp_path / "all"], tmp_path / "page.html"))["coming"] == []


def test_an_unfinished_run_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config(rounds=5), tmp_path / "run", stop)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    data = shown(write_page([tmp_path / "run"], tmp_path / "page.html"))
    (group,) = data["groups"]
    assert group["runs"][0]["round"] == [1, 2] and not group["finished"]
    assert "is at" in data["headline"]["sentence"] and "round 2 of 5" in data["headline"]["detail"]
    assert "not finished" in group["exam"]["missing"] and group["holders"]["clients"] == 6
    assert call(*group["resume"].split()[1:], "--quiet").exit_code == 0
    (group,) = shown(write_page([tmp_path / "run"], tmp_path / "page.html"))["groups"]
    assert group["finished"] and group["resume"] is None


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    LiveRun.new(prepare(config()), tmp_path / "run")
    data = shown(write_page([tmp_path / "run"], tmp_path / "page.html"))
    assert "no round has been tested yet" in data["headline"]["sentence"]
    assert data["groups"][0]["runs"][0]["round"] == []


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    place = hostile_runs(tmp_path)
    page = write_page([tmp_path], tmp_path / "page.html", title=HOSTILE)
    read = Reader(page.read_text())
    assert read.tags.count("script") == 2 and "img" not in read.tags and "b" not in read.tags
    data = json.loads(read.texts["data"])
    assert data["title"] == read.texts["title"] == HOSTILE
    assert data["groups"][0]["label"] == place.name
    assert (
        data["groups"][0]["holders"]["classes"][0]
        == data["groups"][0]["exam"]["classes"][0]
        == HOSTILE
    )
    assert "<" not in read.texts["data"]


def test_where_the_data_are_gone_the_page_says_so_and_shows_the_rest(tmp_path: Path) -> None:
    place = hostile_runs(tmp_path)
    (tmp_path / "own.npz").unlink()
    (group,) = shown(write_page([place], tmp_path / "page.html"))["groups"]
    assert "own.npz" in group["exam"]["missing"] and "own.npz" in group["holders"]["missing"]
    assert group["runs"][0]["accuracy"]["model"] == [
        line["accuracy"]["model"] for line in lines(place)
    ]


def test_other_test_images_than_the_runs_are_not_passed_off_as_them(
    made: Made, tmp_path: Path
) -> None:
    without_checkpoint(made.all / "semifl/seed-0", tmp_path / "run")
    history = lines(tmp_path / "run")
    history[-1]["accuracy"] = dict.fromkeys(history[-1]["accuracy"], 0.01)
    (tmp_path / "run/metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in history)
    )
    (group,) = data_of([tmp_path / "run"])["groups"]
    assert "these are other images" in group["exam"]["missing"]


def test_a_run_that_diverged_has_a_page_and_metrics_that_any_reader_of_json_takes(
    tmp_path: Path,
) -> None:
    run(
        configure("hub-only", labels="hub:20", norm="group", rate=1e9, rounds=1, epochs=1),
        tmp_path / "run",
    )
    assert lines(tmp_path / "run")[0]["loss"] == {"model": None}
    (group,) = shown(write_page([tmp_path / "run"], tmp_path / "page.html"))["groups"]
    assert "its training diverged" in json.dumps(group)


def test_confusion_and_examples_are_of_the_final_model(made: Made) -> None:
    (group,) = data_of([made.all / "semifl"])["groups"]
    exam, digits = group["exam"], load("digits")
    table = np.array(exam["confusion"])
    first = made.semifl[0]
    assert (
        table.sum(1).tolist() == np.bincount(digits.test_labels.numpy()).tolist()
        and table.sum() == 360
    )
    assert table.trace() / 360 == pytest.approx(first.last.accuracy)
    by_class = [line for line in first.history if "per_class" in line][-1]["per_class"][
        first.names[0]
    ]
    assert (table.diagonal() / table.sum(1)).tolist() == pytest.approx(by_class)
    assert exam["wrong"] == 360 - table.trace() and len(exam["examples"]) == min(24, exam["wrong"])
    sure = [each["sure"] for each in exam["examples"]]
    assert sure == sorted(sure, reverse=True)
    for each in exam["examples"]:
        assert each["truth"] == int(digits.test_labels[each["place"]]) != each["guess"]
        picture = Image.open(
            io.BytesIO(base64.b64decode(each["image"].removeprefix("data:image/png;base64,")))
        )
        assert np.array_equal(np.array(picture), digits.test_images[each["place"], 0].numpy())


def test_who_holds_what_is_counted_from_the_split(made: Made) -> None:
    holders = data_of([made.all / "semifl"])["groups"][0]["holders"]
    split, labels = RunFolder(made.all / "semifl/seed-0").split(), load("digits").train_labels
    assert (
        holders["names"][0] == "hub" and holders["clients"] == 6 and holders["total"] == [50, 1387]
    )
    for client, part in enumerate(split.unlabelled, 1):
        assert (
            holders["unlabelled"][client]
            == np.bincount(labels[part].numpy(), minlength=10).tolist()
        )
    assert holders["labelled"][0] == np.bincount(labels[split.hub].numpy(), minlength=10).tolist()


def test_refused_uploads_are_listed_with_their_reasons(tmp_path: Path) -> None:
    it = prepare(config(active=1.0))
    it = with_delivery(it, poison(not_a_number, (1, 2), (2, 2), (2, 4)))
    place = RunFolder.create(tmp_path / "run", it.config, it.split)
    play([LiveRun(it, Progress(0, it.start(), ClientStates(), []), place)], lambda lines: None)
    (group,) = data_of([tmp_path / "run"])["groups"]
    assert sum(each["count"] for each in group["refused"]) >= 3
    assert {client for each in group["refused"] for client in each["clients"]} == {2, 4}
    reasons = {each["reason"] for line in lines(tmp_path / "run") for each in line["refused"]}
    assert {each["reason"] for each in group["refused"]} == reasons


def test_phases_add_up_to_the_seconds_and_writing_is_told_a_round_late(made: Made) -> None:
    for folder in (made.all / "semifl/seed-1", made.all / "hub-only/seed-0"):
        history = lines(folder)
        for line in history:
            spent = dict(line["phases"])
            write = spent.pop("write")
            assert sum(spent.values()) == pytest.approx(line["seconds"], abs=5e-4)
            assert min(spent.values()) > -1e-3 and (write > 0) == (line is not history[0])
        clients = [line["phases"]["clients"] for line in history if not line["final"]]
        assert (min(clients) > 1e-3) == (folder.parent.name == "semifl")
        assert min(line["phases"]["hub"] for line in history if not line["final"]) > 0


def test_a_history_without_phases_still_has_a_page(made: Made, tmp_path: Path) -> None:
    without_checkpoint(made.all / "semifl/seed-0", tmp_path / "old")
    history = [
        {name: value for name, value in line.items() if name != "phases"}
        for line in lines(tmp_path / "old")
    ]
    old = "".join(json.dumps(line, sort_keys=True) + "\n" for line in history)
    (tmp_path / "old/metrics.jsonl").write_text(old)
    (group,) = shown(write_page([tmp_path / "old"], tmp_path / "page.html"))["groups"]
    assert group["runs"][0]["phases"] == {} and group["runs"][0]["seconds"] == [
        line["seconds"] for line in history
    ]


def test_the_configuration_on_the_page_and_its_command_repeat_the_run(
    made: Made, tmp_path: Path
) -> None:
    (group,) = data_of([made.all / "semifl"])["groups"]
    (tmp_path / "again.toml").write_text(group["config"])
    layer = read_toml(tmp_path / "again.toml")
    assert resolve(layer["method"], layer) == made.semifl[0].config
    words = group["command"].split()
    assert words[:3] == ["fedglean", "run", "--config"] and words[-2:] == ["--seeds", "2"]
    assert call(*words[1:], "--out", tmp_path / "again", "--quiet").exit_code == 0
    for seed in (0, 1):
        again, before = (
            lines(folder / f"seed-{seed}") for folder in (tmp_path / "again", made.all / "semifl")
        )
        assert [line["accuracy"] for line in again] == [line["accuracy"] for line in before]


@pytest.mark.parametrize(("device", "exact"), [("cpu", True), ("auto", False)])
def test_it_promises_the_same_bits_only_where_kernels_repeat_them(
    made: Made, tmp_path: Path, device: str, exact: bool
) -> None:
    shutil.copytree(made.all / "semifl/seed-0", tmp_path / "run")
    file = tmp_path / "run/config.toml"
    text = file.read_text().replace("deterministic = true", "deterministic = false")
    file.write_text(text.replace('device = "cpu"', f'device = "{device}"'))
    (group,) = data_of([tmp_path / "run"])["groups"]
    assert group["exact"] == exact


def test_the_command_writes_the_page_into_the_first_folder(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.all / "hub-only", tmp_path / "run")
    result = call("report", tmp_path / "run")
    assert result.exit_code == 0 and (tmp_path / "run/report.html").exists()
    assert str(tmp_path / "run/report.html") in result.output
    assert "None of these runs learns" in shown(tmp_path / "run/report.html")["help"]["why"]


def test_the_page_asks_nothing_of_anybody(made: Made, tmp_path: Path) -> None:
    text = write_page([made.all], tmp_path / "page.html").read_text()
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"https?://[^\s\"'<>\\)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"'](?!data:)", text)


#: How people see linear red, green and blue: most, those without red cones, those without green
#: ones (Machado, 2009).
EYES = (
    np.eye(3),
    np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
)


def seen_as(colour: str) -> list[Any]:
    """Its place in CIELAB for each kind of eye."""
    screen = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    light = np.where(screen <= 0.04045, screen / 12.92, ((screen + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(
        to_xyz @ np.clip(np.array(EYES) @ light, 0, 1).T / np.array([[0.9505], [1], [1.089]])
    )
    return list(np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], 1))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_the_colour_blind_tell_the_colours_of_methods_apart(theme: int) -> None:
    style = (files("fedglean.report") / "static" / "page.css").read_text()
    colours = re.findall(r"--c\d: (#\w+);", re.findall(r":root \{(.*?)\}", style, re.S)[theme])
    assert len(colours) == 7
    for one, other in itertools.combinations(colours, 2):
        assert (
            min(np.linalg.norm(a - b) for a, b in zip(seen_as(one), seen_as(other), strict=True))
            > 10
        )


def test_a_browser_may_use_the_pages_own_style_and_script_and_nothing_else(made: Made) -> None:
    text = write_page([made.all / "semifl"], made.all / "policy.html").read_text("utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy
    for element in ("style", "script"):
        (inner,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert rules[f"{element}-src"] == f"'sha256-{digest}'"

"""Methods beside each other: one split a seed for all, honest differences, and nothing lost when it
is stopped.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import binomtest
from torch import Tensor
from typer.testing import CliRunner
from typer.testing import Result as Called

from fedglean import cli, compare
from fedglean.cli import compare as commands
from fedglean.cli.compare import _settings_of_each, _table
from fedglean.data.sources import load
from fedglean.data.split_file import load_split
from fedglean.errors import ConfigError, RoundError, StorageError
from fedglean.methods.semifl import SemiFL
from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.page import page_data as page_of
from fedglean.report.plots import costs_figure
from fedglean.report.story import help_section
from fedglean.report.tracker import Lines
from fedglean.runs.compare import Comparison, carry_out
from fedglean.runs.config import configure
from fedglean.runs.plan import make_plan, read_record
from fedglean.runs.run import Run, Runs
from fedglean.runs.verdict import Difference, Help, answer, difference, judgement, over_images

SMALL: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "model": "mlp",
    "rounds": 2,
    "epochs": 1,
    "device": "cpu",
    "executor": "loop",
}


def call(*words: str | Path) -> Called:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def told(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "phases")}
        for line in lines
    ]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("compare") / "both"
    named = {"semifl": {}, "eager": {"method": "semifl", "threshold": 0.3}, "hub-all": {}}
    return compare(named, 2, out=out, labels="hub:20", **SMALL)


def test_every_method_gets_the_same_split_of_a_seed_and_another_for_another_seed(
    done: Comparison,
) -> None:
    assert done.folder is not None
    splits = {
        (name, seed): (done.folder / name / f"seed-{seed}" / "split.json").read_bytes()
        for name in ("semifl", "eager", "hub-only")
        for seed in (0, 1)
    }
    assert len({splits[name, 0] for name in ("semifl", "eager", "hub-only")}) == 1
    assert splits["semifl", 1] == splits["eager", 1] == splits["hub-only", 1] != splits["semifl", 0]


def test_labels_alone_are_added_and_references_know_more_but_are_never_the_best(
    done: Comparison,
) -> None:
    assert [entry.label for entry in done.plan.entries] == [
        "semifl",
        "eager",
        "hub-all",
        "hub-only",
    ]
    assert any("hub-only is added" in note for note in done.plan.notes)
    assert any("hub-all is a reference" in note for note in done.plan.notes)
    assert done.folder is not None and done.best != "hub-all"
    split = load_split(done.folder / "hub-all/seed-0/split.json")
    assert len(split.hub) == len(load("digits").train_images) and not any(
        map(len, split.unlabelled)
    )


def test_labels_alone_are_added_without_the_dropout_that_they_would_not_use() -> None:
    own = {"fed-shvr": {"perturb": "dropout", "dropout": 0.5}}
    shvr, alone = (entry.config.model for entry in make_plan(own, 1, {}).entries)
    assert (shvr.dropout, alone.dropout) == (0.5, 0.0) and shvr.name == alone.name == "mlp"


def test_the_numbers_written_down_are_those_of_the_runs(done: Comparison) -> None:
    assert done.folder is not None
    content = json.loads((done.folder / "compare.json").read_text())
    assert [entry["label"] for entry in content["entries"]] == [
        "semifl",
        "eager",
        "hub-all",
        "hub-only",
    ]
    rows = {row["label"]: row for row in content["rows"]}
    for entry in content["entries"]:
        ends = [
            told(done.folder / entry["folder"] / f"seed-{seed}")[-1]["accuracy"]["model"]
            for seed in (0, 1)
        ]
        assert rows[entry["label"]]["last"]["mean"] == pytest.approx(sum(ends) / 2)
    assert rows[content["best"]]["against_best"] is None
    other = next(row for row in content["rows"] if row["label"] != content["best"])
    gap = other["last"]["mean"] - rows[content["best"]]["last"]["mean"]
    assert other["against_best"]["mean"] == pytest.approx(gap)
    assert {help["label"] for help in content["helped"]} == {"semifl", "eager"}
    assert all(help["floor"] == "hub-only" for help in content["helped"])
    assert rows["hub-only"]["bytes_sent"] == 0 < rows["semifl"]["bytes_sent"]
    assert (done.folder / "curves.png").stat().st_size > 10_000
    assert "eager" in (done.folder / "report.html").read_text()


def test_the_picture_has_a_panel_for_rounds_bytes_and_seconds(done: Comparison) -> None:
    panels = costs_figure(done.results, "title", ["hub-all"]).axes
    assert [panel.get_xlabel() for panel in panels] == [
        "rounds",
        "MB per seed, down and up",
        "seconds per seed",
    ]
    sent = {line.get_label(): line for line in panels[1].get_lines()}
    assert set(sent) == set(done.results)
    total = sum(done.results["semifl"][0].bytes_sent) / 1e6
    assert sent["semifl"].get_xdata()[-1] == pytest.approx(total, rel=0.2)
    assert list(sent["hub-only"].get_xdata()) == [0, 1], "what sends nothing is a level"


def test_a_stopped_comparison_goes_on_and_keeps_what_was_finished(
    tmp_path: Path, done: Comparison
) -> None:
    plan = replace(done.plan, entries=done.plan.entries[:2])
    played: list[tuple[str, int]] = []

    class Listener:
        def __init__(self, stops: bool) -> None:
            self.stops, self.label = stops, ""

        def begin(self, runs: Runs) -> None:
            self.label = runs.name

        def round(self, lines: Lines) -> None:
            played.append((self.label, lines[0]["round"]))
            if self.stops and self.label == "eager":
                raise KeyboardInterrupt

        def end(self, runs: Runs) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, tmp_path / "cut", [Listener(stops=True)])
    assert played[-1] == ("eager", 1)
    played.clear()
    going_on = read_record(tmp_path / "cut").plan()
    found = carry_out(going_on, tmp_path / "cut", [Listener(stops=False)])
    assert {label for label, _ in played} == {"eager"} and played[0][1] == 2
    assert done.folder is not None
    for name in ("semifl", "eager"):
        for seed in ("seed-0", "seed-1"):
            assert told(tmp_path / "cut" / name / seed) == told(done.folder / name / seed)
    assert found.answer.startswith("Did the unlabelled clients help? No answer")
    with pytest.raises(StorageError, match="holds another comparison"):
        carry_out(done.plan, tmp_path / "cut")


def test_a_method_that_breaks_down_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    deaf = {"method": "semifl", "threshold": 0.1, "gate.stretch": 0.0}
    found = compare(
        {"deaf": deaf, "hub-only": {}}, 1, out=tmp_path / "one", labels="hub:20", **SMALL
    )
    assert set(found.failed) == {"deaf"} and "round 1" in found.failed["deaf"]
    assert found.best == "hub-only" and [row.label for row in found.rows] == ["hub-only"]
    again = call("resume", tmp_path / "one", "--quiet")
    assert again.exit_code == RoundError.exit_code and "deaf did not finish" in again.output
    groups = {
        group["label"]: group["failed"]
        for group in page_of(gather([tmp_path / "one"]), ModelReport())["groups"]
    }
    assert groups == {"deaf": found.failed["deaf"], "hub-only": None}


BROKEN = """
from dataclasses import dataclass
from fedglean.methods.semifl import SemiFL

@dataclass(frozen=True)
class Broken(SemiFL):
    async def round(self, hub, state):
        if hub.round == 2:
            raise ValueError("no such thing")
        return await super().round(hub, state)

METHODS = {"broken": Broken}
"""


def test_a_bug_in_a_method_of_ones_own_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BROKEN)
    found = compare(
        ["broken", "hub-only"], 1, use=str(tmp_path / "own.py"), labels="hub:20", **SMALL
    )
    assert [row.label for row in found.rows] == ["hub-only"]
    assert (
        "ValueError: no such thing" in found.failed["broken"]
        and "own.py, line 9)" in found.failed["broken"]
    )


def test_few_images_apart_are_no_evidence_and_none_apart_no_certainty() -> None:
    one = torch.ones(360).double()

    def against(wrong: int) -> Difference:
        return over_images(wrong / 360, one, one.clone().index_fill_(0, torch.arange(wrong), 0.0))

    # The exact sign test: 2 * 0.5**5 is above 0.05, 2 * 0.5**6 is below.
    assert [judgement(each.low, each.high) for each in map(against, (5, 6))] == [
        judgement(-0.1, 0.1),
        judgement(0.1, 0.2),
    ]
    assert against(0).low == -against(0).high < 0


@pytest.mark.parametrize(
    ("named", "options", "sentence"),
    [
        (
            {"semifl": {}, "fed-shvr": {}},
            {},
            "fed-shvr cannot be compared here: Fed-SHVR needs clients with labels",
        ),
        ({"semifl": {}, "fed-shvr": {}}, {}, r"these can: semifl, .*hub-only"),
        ({"semifl": {}, "semfl": {}}, {}, "did you mean 'semifl'"),
        (
            {"semifl": {}, "hub-only": {}},
            {"active": 0.5},
            "hub-only has no setting 'active'; .* semifl:active=0.5",
        ),
        (
            {"semifl": {}, "again": {"method": "semifl", "threshold": 0.9}},
            {},
            "'semifl' and 'again' are the same run",
        ),
        ({"semifl": {"labels": "hub:30"}}, {}, "all methods share these"),
        ({"semifl": {"seed": 4}}, {}, "all methods share these"),
        (
            {"a b": {"method": "semifl"}, "a/b": {"method": "fl2"}},
            {},
            "two labels lead to the same folder 'a-b'",
        ),
        ({}, {}, "no method was named"),
        ({"semifl": {}}, {"labels": "hub:25"}, "use hub:20 or hub:30"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_work(
    named: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_plan(named, 2, options)


def test_a_name_given_twice_is_refused_from_python_too() -> None:
    with pytest.raises(ConfigError, match="'semifl' is named twice"):
        compare(["semifl", "fl2", "semifl"], 1, labels="hub:20", **SMALL)


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        ((name for name in ("semifl", "semifl")), 1, "'semifl' is named twice"),
        ("semifl", "3", "must be a whole number of at least 1, not '3'"),
        (
            ["semifl:threshold=0.5"],
            1,
            "is a label of the command line; here, write {label: settings}, a dictionary",
        ),
        ("semifl", [0, 5], "must be a whole number of at least 1"),
        ({"semifl": None}, 1, "settings of 'semifl' must be a dictionary"),
        (["semifl", 3], 1, "unknown method '3'"),
    ],
)
def test_slips_in_python_are_told_in_a_sentence(methods: Any, seeds: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compare(methods, seeds)


def test_a_preset_is_named_in_python_as_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match="the data set 'cifar10' is read from disk"):
        compare(["hassle/cifar10-10"])


def test_a_class_in_place_of_a_methods_name_is_told_where_it_goes() -> None:
    with pytest.raises(
        ConfigError, match=r"a method is given by its name, not as <class .*SemiFL.*goes into `use`"
    ):
        configure(SemiFL)


def test_what_people_call_a_method_is_known() -> None:
    plan = make_plan({"semifl": {}, "labels-only": {}, "fixmatch-hub": {}}, 1, {})
    assert [each.config.method for each in plan.entries] == ["semifl", "hub-only", "fixmatch"]


def test_another_net_or_other_rounds_are_no_answer_to_whether_clients_helped(
    tmp_path: Path,
) -> None:
    named = {
        "semifl": {},
        "long": {"method": "semifl", "rounds": 3},
        "net": {"method": "semifl", "model": "cnn"},
    }
    found = compare(named | {"hub-only": {}}, 2, out=tmp_path / "c", labels="hub:20", **SMALL)
    assert [each.label for each in found.helped] == ["semifl"]
    notes = found.plan.notes[-2:]
    assert all(
        f"whether {name} gained cannot be said" in note
        for name, note in zip(("long", "net"), notes, strict=True)
    )
    page = page_of(gather([tmp_path / "c"]), ModelReport())
    assert [each["label"] for each in page["help"]["answers"]] == ["semifl"]
    assert page["against"] == {
        row.label: row.against_best and asdict(row.against_best) for row in found.rows
    }
    assert "2 to 3 rounds" in call("resume", tmp_path / "c", "--quiet").output


def test_an_answer_tells_floors_and_intervals_apart_where_they_differ() -> None:
    gains = [Difference(0.1, 0.05, 0.15, over) for over in ("3 seeds", "images")]
    one, two = (Help(label, "hub-only", gain) for label, gain in zip("ab", gains, strict=True))
    assert answer([one, two], True).endswith(
        "in points over hub-only with 95 % intervals over 3 seeds, or images."
    )
    apart = answer([one, replace(two, floor="fedavg")], True)
    assert (
        "+10.0 (+5.0 to +15.0) over hub-only;" in apart and "over fedavg, in points with" in apart
    )


def test_the_first_method_decides_what_the_user_left_open_and_the_plan_says_so() -> None:
    plan = make_plan(
        {"fed-shvr": {}, "fedmatch": {}, "long": {"method": "fed-mt", "rounds": 30}},
        1,
        {"rounds": None},
    )
    configs = {entry.label: entry.config for entry in plan.entries}
    assert {config.split.labels for config in configs.values()} == {"mismatch-digits:6"}
    assert {config.model.name for config in configs.values()} == {"mlp"}
    assert (configs["fedmatch"].rounds, configs["long"].rounds, configs["fedavg"].rounds) == (
        25,
        30,
        25,
    )
    assert (
        "labels is mismatch-digits:6 for all, as for fed-shvr (fedmatch would have each:2)"
        in plan.notes
    )
    assert "rounds is 25 for all, as for fed-shvr (fedmatch would have 40)" in plan.notes
    given = make_plan({"fed-shvr": {}, "fedmatch": {}}, 1, {"rounds": 3})
    assert not any(note.startswith("rounds") for note in given.notes)


def test_labels_at_the_hub_and_at_clients_both_count_as_a_floor(tmp_path: Path) -> None:
    digits = load("digits")
    images, labels = digits.train_images[:200, 0].numpy(), digits.train_labels[:200].numpy()
    known = np.where(
        np.arange(160) % 4 < 3, labels[40:], -1
    )  # three of four images at the clients have a label
    np.savez(
        tmp_path / "own.npz",
        hub_images=images[:40],
        hub_labels=labels[:40],
        client_images=images[40:],
        client_ids=np.arange(160) // 40,
        client_labels=known,
        test_images=images,
        test_labels=labels,
    )
    own = {**SMALL, "data": "npz", "data_root": str(tmp_path / "own.npz"), "clients": None}
    found = compare(["fedavg-fixmatch"], 1, **own)
    assert [row.label for row in found.rows] == ["fedavg-fixmatch", "hub-only", "fedavg"]
    ends = {row.label: row.last.mean for row in found.rows}
    assert found.helped[0].floor == max(("hub-only", "fedavg"), key=lambda label: ends[label])
    assert [entry.label for entry in make_plan({"fedavg": {}}, 1, own).entries] == [
        "fedavg",
        "hub-only",
    ]


def test_clients_that_never_sent_anything_did_not_help() -> None:
    found = compare(["semifl"], 2, labels="hub:20", **{**SMALL, "threshold": 1.0})
    assert (
        not found.helped[0].heard
        and "semifl: no, they never had anything to train on" in found.answer
    )
    sure = compare(["semifl"], 2, labels="hub:20", **{**SMALL, "threshold": 0.0})
    assert sure.helped[0].heard and "never sent" not in sure.answer


def test_one_site_and_all_labels_see_the_same_images_in_their_own_way() -> None:
    found = compare(
        ["fedavg", "fixmatch", "fedavg-all"],
        1,
        labels="each:6",
        **{**SMALL, "rounds": 1, "epochs": None},
    )
    images = len(load("digits").train_images)
    one, every = (found.results[label][0].config.split for label in ("fixmatch", "fedavg-all"))
    assert (one.clients, one.labels, every.labels) == (1, "each:24", "all")
    assert images == 1437 and found.best == "fedavg"
    assert found.answer.startswith("Did the unlabelled clients help? No answer")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("references") / "three"
    small = {**SMALL, "rounds": 1, "epochs": None}
    return compare(
        {"fedprox": {}, "fixmatch": {"steps": 2}, "fedavg-all": {}},
        2,
        out=out,
        labels="each:6",
        **small,
    )


def test_only_what_is_trained_at_one_site_sends_nothing(references: Comparison) -> None:
    """All labels at the clients is a reference too, and a federation."""
    assert [each.label for each in references.plan.entries if not each.federated] == ["fixmatch"]
    text = Console(record=True, width=200)
    text.print(_table(references, 200))
    cells = [
        [cell.strip() for cell in row.split("│")]
        for row in text.export_text().splitlines()
        if "│" in row
    ]
    sent = {row[1]: row[5] for row in cells}
    assert sent["fixmatch"] == "-" and all(
        "MB" in sent[label] for label in ("fedprox", "fedavg-all", "fedavg")
    )
    groups = page_of(gather([references.folder or Path()]), ModelReport())["groups"]
    assert [group["label"] for group in groups if not group["federated"]] == ["fixmatch"]


def test_the_pages_command_repeats_a_reference_that_was_given_anothers_split(
    references: Comparison, tmp_path: Path
) -> None:
    assert references.folder is not None
    groups = page_of(gather([references.folder]), ModelReport())["groups"]
    commands = {group["label"]: group["command"] for group in groups}
    assert commands["fedprox"].endswith("--seeds 2") and "--split-file" not in commands["fedprox"]
    for label in ("fixmatch", "fedavg-all"):
        for seed, line in enumerate(commands[label].splitlines()):
            again = tmp_path / label / str(seed)
            assert call(*line.split()[1:], "--out", again, "--quiet").exit_code == 0
            assert told(again) == told(references.folder / label / f"seed-{seed}")
        assert seed == 1


def test_shares_of_clients_that_differ_are_told() -> None:
    options = {**SMALL, "labels": "each:6", "epochs": None}
    notes = make_plan({"fedprox": {}, "fedavg": {}}, 2, options).notes
    assert any("(fedprox 0.4, fedavg 1)" in note for note in notes)
    assert not any(
        "share" in note
        for note in make_plan({"fedprox": {"active": 1.0}, "fedavg": {}}, 2, options).notes
    )


def test_a_single_seed_is_judged_by_its_test_images(done: Comparison) -> None:
    dataset = load("digits")
    mean, std = (torch.tensor(each)[:, None, None] for each in (dataset.mean, dataset.std))
    mine, its = done.results["semifl"][0], done.results["hub-all"][0]

    def right(run: Run) -> Tensor:
        guess = run.predictors["model"].evaluate((dataset.test_images / 255 - mean) / std)
        return (guess.argmax(-1) == dataset.test_labels).double()

    hits, others = right(mine), right(its)
    assert float(hits.mean()) == pytest.approx(mine.last.accuracy)
    gap = difference([(mine, its)], right)
    assert gap.mean == pytest.approx(mine.last.accuracy - its.last.accuracy)
    better, worse = int((hits > others).sum()), int((hits < others).sum())
    share = binomtest(better, better + worse).proportion_ci(0.95, "exact")
    ends = [(2 * end - 1) * (better + worse) / len(hits) for end in (share.low, share.high)]
    assert [gap.low, gap.high] == pytest.approx(ends)
    assert "one seed" in gap.over


def test_the_page_answers_as_the_comparison_does(done: Comparison, tmp_path: Path) -> None:
    for found in (done, compare(["semifl"], 1, out=tmp_path / "one", labels="hub:20", **SMALL)):
        assert found.folder is not None and found.helped
        answers = help_section(gather([found.folder]), ModelReport())["answers"]
        asked = [asdict(help) | {"verdict": help.answer.capitalize()} for help in found.helped]
        assert [{name: each[name] for name in asked[0]} for each in answers] == asked
        assert all(
            f'"{each["verdict"]}"' in (found.folder / "report.html").read_text() for each in answers
        )


def test_seeds_are_judged_by_students_interval(done: Comparison) -> None:
    pairs = list(zip(done.results["semifl"], done.results["hub-all"], strict=True))
    gap = difference(pairs, lambda run: None)
    gaps = torch.tensor([a.last.accuracy - b.last.accuracy for a, b in pairs], dtype=torch.float64)
    assert gap.mean == pytest.approx(float(gaps.mean()))
    assert gap.high - gap.mean == pytest.approx(12.7062 * float(gaps.std()) / 2**0.5, rel=1e-4)
    assert gap.over == "2 seeds (few, so wide)"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.01, 0.1, "yes"), (-0.1, -0.01, "no, they did harm"), (-0.1, 0.1, "too uncertain to say")],
)
def test_the_answer_is_yes_only_where_the_interval_says_so(
    low: float, high: float, word: str
) -> None:
    gain = Difference((low + high) / 2, low, high, "6 seeds")
    sentence = answer([Help("semifl", "hub-only", gain)], unlabelled=True)
    assert (
        f"semifl: {word}, " in sentence
        and "over hub-only" in sentence
        and "over 6 seeds" in sentence
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_a_narrow_screen_squeezes_out_no_name_and_no_number(done: Comparison, width: int) -> None:
    paper = Console(width=width)
    with paper.capture() as seen:
        paper.print(_table(done, paper.width))
    text = seen.get()
    assert all(row.label in text for row in done.rows) and "…" not in text
    assert text.count("±") == 1 + (2 if width > 40 else 1) * len(done.rows)
    assert ("differences" in text) == ("the best" in text) == (width > 60)
    assert max(map(len, text.splitlines())) <= width


def test_what_the_first_method_has_in_its_own_name_is_not_the_others() -> None:
    plan = make_plan(
        {"semifl": {"rounds": 3, "model": "cnn"}, "fedavg-fixmatch-hub": {}},
        1,
        {"rounds": 2, "model": "mlp"},
    )
    assert [each.config.rounds for each in plan.entries] == [3, 2, 2]
    assert [each.config.model.name for each in plan.entries] == ["cnn", "mlp", "mlp"]


def test_data_that_the_first_method_decides_for_all_are_told() -> None:
    plan = make_plan({"semifl": {}, "cell": {"preset": "semifl/cifar10-250-iid"}}, 1, {"rounds": 1})
    assert "data is digits for all, as for semifl (cell would have cifar10)" in plan.notes


def test_an_interrupted_comparison_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(plan: Any, folder: Path, shown: Any) -> None:
        folder.mkdir()
        (folder / "compare.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "carry_out", stopped)
    result = call("compare", "semifl", "--out", tmp_path / "both")
    assert (result.exit_code, result.stderr) == (
        130,
        f"stopped; 'fedglean resume {tmp_path / 'both'}' continues it\n",
    )


def test_settings_of_one_method_follow_a_colon() -> None:
    assert _settings_of_each(
        ["semifl:threshold=0.8,mixup=false", "heterofl:widths=1,0.5,rate=0.1", "hassle/cifar10-10"],
        None,
    ) == {
        "semifl:threshold=0.8,mixup=false": {"method": "semifl", "threshold": 0.8, "mixup": False},
        "heterofl:widths=1,0.5,rate=0.1": {"method": "heterofl", "widths": "1,0.5", "rate": 0.1},
        "hassle/cifar10-10": {"preset": "hassle/cifar10-10"},
    }
    with pytest.raises(ConfigError, match="named twice"):
        _settings_of_each(["semifl", "semifl"], None)


def test_the_command_says_it_all_and_goes_on_when_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--clients", "4", "--model", "mlp", "--rounds", "2", "--set", "epochs=1", "--quiet")
    words = (
        "compare",
        "semifl",
        "semifl:threshold=0.3",
        "--labels",
        "hub:20",
        "--seeds",
        "1",
        *small,
    )
    first = call(*words)
    assert first.exit_code == 0, first.output
    assert "note: hub-only is added" in first.output and "the best" in first.output
    assert (
        "Did the unlabelled clients help? semifl: " in first.output
        and "in points over hub-only" in first.output
    )
    folders = list((tmp_path / "runs").glob("compare-digits-*"))
    assert (
        len(folders) == 1
        and (folders[0] / "semifl-threshold=0.3/seed-0/model.safetensors").exists()
    )
    written = (folders[0] / "semifl/seed-0/metrics.jsonl").read_bytes()
    again, resumed = call(*words), call("resume", folders[0].relative_to(tmp_path), "--quiet")
    assert again.exit_code == resumed.exit_code == 0, again.output + resumed.output
    assert resumed.output in again.output, (
        "a resumed comparison says what the command says, but for the notes"
    )
    assert list((tmp_path / "runs").glob("compare-digits-*")) == folders
    assert (folders[0] / "semifl/seed-0/metrics.jsonl").read_bytes() == written, (
        "nothing was trained again"
    )
    wrong = call("compare", "semifl", "fedavg", "--labels", "hub:20", "--quiet")
    assert (
        wrong.exit_code == ConfigError.exit_code
        and "FedAvg needs clients with labels" in wrong.stderr
    )


def test_rounds_are_counted_in_whole_numbers(done: Comparison) -> None:
    panel = costs_figure(done.results).axes[0]
    assert all(float(tick).is_integer() for tick in panel.get_xticks())

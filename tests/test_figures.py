"""The papers' figures: what they are read off is what they say, and a tiny one on digits is drawn
from its own runs.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedglean.data.partition import Split
from fedglean.data.sources import load
from fedglean.errors import ConfigError, StorageError
from fedglean.method import Predict
from fedglean.methods.fed_shvr import FedSHVR
from fedglean.report.plots import ACCURACY, accuracy_of
from fedglean.runs.config import SplitConfig, configure, fingerprint
from fedglean.runs.experiment import divide_up, prepare
from fedglean.runs.folder import RunFolder
from fedglean.runs.run import Run, Runs
from fedglean.studies import StudyOptions
from fedglean_papers.presets import PRESETS
from fedglean_papers.reproduce import STUDIES, hassle_figures, semifl_figures, shvr_figures
from fedglean_papers.reproduce.loss_surface import direction, objective_of, summary, surface
from fedglean_papers.reproduce.panels import (
    Line,
    Panel,
    Trace,
    by_round,
    draw,
    full_title,
    line_of,
    rows_of,
)
from fedglean_papers.reproduce.trainings import (
    Training,
    config_of,
    first_clients,
    part_of_unlabelled,
    splits_of,
    train,
)

DECLARED = semifl_figures.DECLARED | shvr_figures.DECLARED | hassle_figures.DECLARED
FIGURES = {name: study for name, study in STUDIES.items() if "-fig" in name}
EXPECTED = [
    *(f"semifl-fig{n}" for n in (2, 5, 6, 7, 8, 9, 10)),
    *(f"fed-shvr-fig{n}" for n in (2, 3, 4, 5, 6)),
    *(f"hassle-fig{n}" for n in (2, 4, 5, 6, 7, 8, 9, 10, 11)),
]
DIGITS: tuple[tuple[str, Any], ...] = (
    ("data", "digits"),
    ("model", "cnn"),
    ("clients", 10),
    ("executor", "loop"),
    ("epochs", 1),
    ("steps", 1),
    ("residual_steps", 1),
    ("client_batch", 40),
    ("unlabelled_batch", 40),
    ("rounds", 2),
)


def tiny(out: Path, cell: str | None = None, seeds: int = 1, **changed: Any) -> StudyOptions:
    return StudyOptions(
        out, seeds=seeds, cell=cell, options=tuple((dict(DIGITS) | changed).items()), quiet=True
    )


def result_of(out: Path) -> dict[str, Any]:
    """Of all parts, or of the one that was asked for."""
    (written,) = out.glob("result*.json")
    found: dict[str, Any] = json.loads(written.read_bytes())
    return found


def picture_of(out: Path) -> Path:
    (drawn,) = out.glob("figure*.png")
    return drawn


def history(out: Path, name: str, seed: int = 0) -> list[dict[str, Any]]:
    text = (out / "runs" / name / f"seed-{seed}" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def lines_of(out: Path, panel: int = 0) -> dict[str, dict[str, Any]]:
    return {line["label"]: line for line in result_of(out)["panels"][panel]["lines"]}


def trainings_of(part: Any) -> list[Training]:
    """All that a panel is read off."""
    if isinstance(part, Training):
        return [part]
    inner: list[Any] = []
    if isinstance(part, Mapping):
        inner = list(part.values())
    elif is_dataclass(part):
        inner = [getattr(part, each.name) for each in fields(part)]
    return [training for each in inner for training in trainings_of(each)]


def is_picture(path: Path) -> bool:
    with Image.open(path) as image:
        return (
            image.format == "PNG"
            and image.width > 400
            and len(np.unique(np.asarray(image.convert("L")))) > 20
        )


def test_every_figure_that_was_asked_for_is_there() -> None:
    assert list(FIGURES) == EXPECTED
    assert all(study.title and study.cells for study in FIGURES.values())


@pytest.mark.parametrize("name", DECLARED)
def test_every_training_is_a_valid_one_on_the_papers_data_and_on_digits(
    name: str, tmp_path: Path
) -> None:
    digits = load("digits")
    seen: dict[str, str] = {}
    seen_splits: set[SplitConfig] = set()
    for panel in DECLARED[name].panels.values():
        for training in trainings_of(panel):
            paper = config_of(training, StudyOptions(tmp_path))
            preset = PRESETS[training.preset]
            assert (
                paper.rounds == preset.layer["rounds"]
                and paper.data.name == preset.layer["data"]["name"]
            )
            assert config_of(training, StudyOptions(tmp_path, scale=0.1)).rounds == max(
                1, int(paper.rounds * 0.1)
            )
            few = ("clients", min(20, preset.layer["split"]["clients"]))
            small = config_of(
                training,
                StudyOptions(tmp_path, options=(("data", "digits"), ("model", "cnn"), few)),
            )
            if small.split not in seen_splits:
                split = divide_up(small, digits)
                assert sum(map(len, (split.hub, *split.labelled, *split.unlabelled))) > 500
                seen_splits.add(small.split)
            # Runs are found by name: two trainings must not share one.
            mark = fingerprint(paper) + (training.part.name if training.part else "")
            assert seen.setdefault(training.name, mark) == mark


def test_options_that_only_other_methods_have_are_left_out_and_unknown_ones_refused(
    tmp_path: Path,
) -> None:
    training = Training("semifl/partially-cifar10-250")
    assert (
        "threshold"
        not in config_of(training, StudyOptions(tmp_path, options=(("threshold", 0.5),))).settings
    )
    with pytest.raises(ConfigError, match="treshold"):
        config_of(training, StudyOptions(tmp_path, options=(("treshold", 0.5),)))


def test_labels_of_other_data_are_as_many_by_its_size(tmp_path: Path) -> None:
    share = len(load("digits").train_images) / 50_000
    for preset, expected in (
        ("semifl/cifar10-4000-iid", f"hub:{10 * round(400 * share)}"),
        ("semifl/cifar10-250-iid", "hub:10"),
        ("hassle/cifar10-10", "ALL:10%"),
        ("fed-shvr/cifar10-mismatch-0.5", "mismatch:6,0.5"),
    ):
        config = config_of(
            Training(preset), StudyOptions(tmp_path, options=(("data", "digits"), ("model", "cnn")))
        )
        assert config.split.labels == expected
    chosen = StudyOptions(
        tmp_path, options=(("data", "digits"), ("model", "cnn"), ("labels", "hub:50"))
    )
    assert config_of(Training("semifl/cifar10-4000-iid"), chosen).split.labels == "hub:50"


def test_parts_of_a_split_keep_labels_and_shares() -> None:
    parts = tuple(torch.arange(10 * k, 10 * k + 10) for k in range(4))
    split = Split(torch.empty(0, dtype=torch.int64), parts[:2], parts[2:])
    half = part_of_unlabelled(0.5).take(split)
    assert half.labelled == split.labelled and [len(part) for part in half.unlabelled] == [5, 5]
    assert len(first_clients(1).take(split).labelled) == 1


def test_fig2_of_hassle_adds_unlabelled_clients_to_the_same_five(tmp_path: Path) -> None:
    row = trainings_of(hassle_figures.DECLARED["hassle-fig2"].panels["clients"])[:4]
    asked = StudyOptions(tmp_path, options=(("data", "digits"), ("model", "cnn")))
    splits = [(splits_of(each, config_of(each, asked), 1) or [])[0] for each in row]
    assert [len(split.labelled) for split in splits] == [5, 10, 15, 20]
    for split in splits:
        assert all(map(torch.equal, split.labelled[:5], splits[0].labelled))
        assert all(len(part) == 0 for part in split.labelled[5:])
    share = sum(map(len, splits[-1].labelled)) / len(load("digits").train_images)
    assert share == pytest.approx(0.1, abs=0.005)


def test_a_curve_is_the_runs_own_and_published_numbers_stand_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FIGURES["semifl-fig5"].run(tiny(tmp_path, "250", seeds=2, checkpoint_every=2))
    assert is_picture(picture_of(tmp_path))
    lines = lines_of(tmp_path)
    assert list(lines) == ["IID", "Dir(0.3)", "Dir(0.1)", "K = 2"]
    runs = [history(tmp_path, "semifl-cifar10-250-k2", seed) for seed in (0, 1)]
    both = [[100 * line["accuracy"]["model"] for line in run] for run in runs]
    assert lines["K = 2"]["x"] == [
        1,
        2,
        3,
    ]  # what comes after the last round stands one place further right
    assert lines["K = 2"]["mean"] == pytest.approx(np.mean(both, 0))
    assert lines["K = 2"]["low"] == pytest.approx(np.min(both, 0))
    assert ["best", 60.0] in lines["K = 2"]["published"] and [50, 49] in lines["IID"]["published"]
    level = result_of(tmp_path)["panels"][0]["levels"][0]
    alone = [history(tmp_path, "semifl-partially-cifar10-250", seed) for seed in (0, 1)]
    best = [max(line["accuracy"]["model"] for line in run) for run in alone]
    assert level["value"] == pytest.approx(100 * np.mean(best)) and level["published"] == 42.4
    told = capsys.readouterr().out
    assert "data=digits" in told and "88.2" in told


def test_a_second_call_goes_on_with_what_is_there(tmp_path: Path) -> None:
    training, asked = Training("hassle/fedavg-cifar10-10"), tiny(tmp_path, rounds=1)
    first = train(training, asked)[0]
    model = tmp_path / "runs" / training.name / "seed-0" / "checkpoint"
    before = {path: path.stat().st_mtime_ns for path in model.rglob("*") if path.is_file()}
    assert train(training, asked)[0].history == first.history
    assert {path: path.stat().st_mtime_ns for path in model.rglob("*") if path.is_file()} == before
    with pytest.raises(StorageError, match="another configuration"):
        train(training, tiny(tmp_path, rounds=2))


def test_fig2_and_fig9_of_semifl(tmp_path: Path) -> None:
    for name, expected in (
        ("semifl-fig2", "semifl-fedsgd-fixmatch-iid"),
        ("semifl-fig9", "semifl-table5-full-iid"),
    ):
        FIGURES[name].run(tiny(tmp_path / name, "iid", rounds=1))
        assert is_picture(picture_of(tmp_path / name))
        first = next(iter(lines_of(tmp_path / name).values()))
        assert first["mean"][0] == pytest.approx(
            100 * history(tmp_path / name, expected)[0]["accuracy"]["model"]
        )


def test_fig6_of_semifl_measures_the_labels_of_all_four_combinations(tmp_path: Path) -> None:
    FIGURES["semifl-fig6"].run(tiny(tmp_path, "k2-*", threshold=0.05))
    panels = result_of(tmp_path)["panels"]
    assert [panel["y_label"].partition(" ")[0] for panel in panels] == [
        "accuracy",
        "accuracy",
        "share",
    ]
    for number, measure in enumerate(("accuracy", "confident_accuracy", "confident_share")):
        lines = lines_of(tmp_path, number)
        for label, run in (
            ("fine-tune, global", "table2-fine-tune-global"),
            ("average, training", "table2-parallel-batch"),
        ):
            lines_there = [
                line for line in history(tmp_path, f"semifl-{run}-k2") if measure in line["pseudo"]
            ]
            assert lines[label]["mean"] == pytest.approx(
                [100 * line["pseudo"][measure] for line in lines_there]
            )
        assert len(lines) == 4 and all(line["mean"] for line in lines.values())


def test_fig10_of_semifl_shears_as_pillow_does(tmp_path: Path) -> None:
    FIGURES["semifl-fig10"].run(tiny(tmp_path))
    assert is_picture(picture_of(tmp_path))
    image = load("digits").train_images[:1]
    pixels = Image.fromarray(image[0, 0].numpy())
    change = []
    for level in semifl_figures.LEVELS:
        shear = pixels.transform(pixels.size, Image.Transform.AFFINE, (1, 0.03 * level, 0, 0, 1, 0))
        change.append(float(np.abs(np.asarray(shear, float) - np.asarray(pixels, float)).mean()))
    assert result_of(tmp_path)["mean_change_of_a_pixel"]["ShearX"] == pytest.approx(change)


def test_fig2_and_fig3_of_fed_shvr(tmp_path: Path) -> None:
    FIGURES["fed-shvr-fig2"].run(tiny(tmp_path, "noniid", rounds=1))
    assert [1, 82.2] in lines_of(tmp_path)["Fed-SHVR"]["published"]
    FIGURES["fed-shvr-fig3"].run(tiny(tmp_path / "3", "unlabelled", rounds=1))
    line = lines_of(tmp_path / "3")["Fed-SHVR"]
    assert line["x"] == [5940, 14850, 29700, 59400]
    name = "fed-shvr-mnist-iid-unlabelled-0.25"
    assert line["mean"][1] == pytest.approx(
        100 * history(tmp_path / "3", name)[-1]["accuracy"]["model"]
    )
    kept = RunFolder(tmp_path / "3" / "runs" / name / "seed-0").split()
    whole = RunFolder(tmp_path / "3" / "runs" / "fed-shvr-mnist-iid" / "seed-0").split()
    assert len(kept.unlabelled[0]) == round(0.25 * len(whole.unlabelled[0]))
    assert lines_of(tmp_path / "3")["FedAvg, 600 labels"]["mean"][0] == pytest.approx(
        lines_of(tmp_path / "3")["FedAvg, 600 labels"]["mean"][3]
    )


def test_fig4_of_fed_shvr_draws_the_objective_and_the_deviation_over_seeds(tmp_path: Path) -> None:
    FIGURES["fed-shvr-fig4"].run(tiny(tmp_path, seeds=2))
    runs = [history(tmp_path, "fed-shvr-fed-sh-mnist-noniid", seed) for seed in (0, 1)]
    objective = [[line["report"]["objective"] for line in run] for run in runs]
    assert lines_of(tmp_path)["Fed-SH"]["mean"] == pytest.approx(np.mean(objective, 0))
    accuracy = [[100 * line["accuracy"]["model"] for line in run] for run in runs]
    assert lines_of(tmp_path, 1)["Fed-SH"]["mean"] == pytest.approx(np.std(accuracy, 0))


def test_fig6_of_fed_shvr_counts_the_rounds_to_an_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shvr_figures, "TARGETS", (1.0, 101.0))
    FIGURES["fed-shvr-fig6"].run(tiny(tmp_path, "rounds", rounds=1))
    for line in lines_of(tmp_path).values():
        assert line["x"] == [1.0] and line["mean"] == [1.0]


def test_the_middle_of_the_loss_surface_is_the_methods_own_objective(tmp_path: Path) -> None:
    asked = tiny(tmp_path, "a2-0.1")
    result = train(Training("fed-shvr/mnist-noniid"), asked)[0]
    assert result.folder is not None
    place = RunFolder(result.folder)
    experiment, model = prepare(place.config(), place.split()), result.predictors["model"]
    method = experiment.method
    assert isinstance(method, FedSHVR)
    total = 0.0
    federation = experiment.federation
    for mine, others, declared in zip(
        federation.labelled, federation.unlabelled, federation.declared, strict=True
    ):
        parts = tuple(_answer(experiment, Predict(model, images)) for images in (mine, others))
        soft = method.soft_labels(parts[1].probabilities, method.unlabelled_weight)
        total += declared.total * method.objective(mine, parts, soft)
    expected = total / sum(client.total for client in federation.declared)
    objective = objective_of(experiment, model, seen=10**6)
    values = surface(objective, model, steps=3)
    assert values.shape == (3, 3) and values[1, 1] == pytest.approx(expected, rel=1e-4)
    assert values[1, 1] == pytest.approx(objective.at(model))
    name = next(name for name, each in model.parameters.items() if each.dim() > 1)
    way, own = direction(model, "first")[name].flatten(1), model.parameters[name].flatten(1)
    assert torch.allclose(way.norm(dim=1), own.norm(dim=1), rtol=1e-4)
    FIGURES["fed-shvr-fig5"].run(
        StudyOptions(tmp_path / "5", cell="a2-0.1", scale=0.01, options=asked.options, quiet=True)
    )
    assert is_picture(picture_of(tmp_path / "5"))


def _answer(experiment: Any, request: Predict) -> Any:
    """What a client would get."""
    from fedglean.engine.task import Call

    return experiment.executor.answer([Call(request, 0)])[0]


def test_the_summary_of_a_bowl() -> None:
    x, y = np.meshgrid(*[np.linspace(-1, 1, 21)] * 2)
    found = summary(3 + 2 * x**2 + 2 * y**2)
    assert found["centre"] == 3 and found["mean curvature"] == pytest.approx(4)


def test_fig5_and_fig9_of_hassle_show_both_models(tmp_path: Path) -> None:
    FIGURES["hassle-fig5"].run(tiny(tmp_path, rounds=1))
    run = history(tmp_path, "hassle-table2-none")
    assert lines_of(tmp_path)["UM without SUMA"]["mean"] == pytest.approx(
        [100 * line["accuracy"]["UM"] for line in run]
    )
    FIGURES["hassle-fig9"].run(tiny(tmp_path / "9"))
    run = history(tmp_path / "9", "hassle-cifar10-10")
    assert lines_of(tmp_path / "9")["SM"]["mean"] == [
        line["report"]["supervised_loss"] for line in run if "supervised_loss" in line["report"]
    ]


def test_fig4_and_fig11_of_hassle_vary_one_thing(tmp_path: Path) -> None:
    FIGURES["hassle-fig4"].run(tiny(tmp_path, rounds=1))
    lines = lines_of(tmp_path)
    assert lines["HASSLE-SM"]["x"] == [0.5, 1, 2, 4, 8]
    assert lines["HASSLE-SM"]["best"] == lines["HASSLE-SM"]["mean"], (
        "of one round the last is the best"
    )
    last = history(tmp_path, "hassle-cifar10-10-unlabelled-0.222222")[-1]["accuracy"]
    assert lines["HASSLE-UM"]["mean"][2] == pytest.approx(100 * last["UM"])
    FIGURES["hassle-fig11"].run(tiny(tmp_path / "11", rounds=1))
    assert lines_of(tmp_path / "11")["HASSLE-EM"]["x"] == ["0.0001", "0.001", "0.01", "0.1"]


def test_fig7_of_hassle_counts_what_the_split_holds(tmp_path: Path) -> None:
    FIGURES["hassle-fig7"].run(tiny(tmp_path))
    counts = result_of(tmp_path)["images_by_client_and_class"]
    held = np.array(counts["0.1"]["labelled"]) + np.array(counts["0.1"]["unlabelled"])
    labels = load("digits").train_labels
    assert held.sum(0).tolist() == torch.bincount(labels).tolist() and len(held) == 10
    kinds = {alpha: (np.array(each["unlabelled"]) > 0).sum() for alpha, each in counts.items()}
    assert kinds["0.01"] < kinds["1"] and is_picture(picture_of(tmp_path))


def test_rows_of_a_table_tell_last_and_best_apart() -> None:
    line = replace(
        line_of("a", [1, 2, 3], [[10.0], [30.0], [20.0]], [("best", 31.0), (2, 29.0)]), best=[30.5]
    )
    rows = rows_of(Panel("p", "round", "test accuracy in %", [line]), line)
    assert rows == [("round 2", 30.0, 29.0), ("last, 3", 20.0, None), ("best round", 30.5, 31.0)]


def test_a_curves_best_is_that_of_each_run_as_the_papers_take_it() -> None:
    runs = [[0.1, 0.5, 0.2], [0.4, 0.2, 0.3]]
    results = [
        Run(
            configure("semifl"),
            [{"round": place + 1, "accuracy": {"model": y}} for place, y in enumerate(run)],
        )
        for run in runs
    ]
    trace = Trace(Training("semifl/table5-full-iid"), accuracy_of())
    line = by_round("a", Runs(results[0].config, results), trace)
    assert line.best == [pytest.approx(45.0)] and max(line.mean) == pytest.approx(35.0)


def test_a_single_round_is_no_fraction_of_one_on_the_axis() -> None:
    axes = draw([Panel("p", "round", ACCURACY, [line_of("a", [1], [[10.0]], [])])], "title").axes[0]
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_published_best_rounds_stand_at_the_right_edge_and_all_words_fit() -> None:
    lines = [
        line_of("a", [1, 2], [[10.0], [12.0]], [("best", 41.0)]),
        line_of("b", [1, 2], [[9.0], [9.0]]),
    ]
    many = tuple((f"option_{number}", number) for number in range(20))
    canvas = draw(
        [Panel("p", "round", ACCURACY, lines)],
        full_title("title", StudyOptions(Path(), options=many)),
    )
    canvas.canvas.draw()
    axes, words = canvas.axes[0], canvas.get_suptitle()
    marks = [mark for mark in axes.lines if mark.get_marker() == "<"]
    assert [list(mark.get_data()) for mark in marks] == [[[1], [41.0]]]
    assert axes.get_position().width > 0.5 and max(map(len, words.splitlines())) <= 100
    assert "published best round" in axes.get_title(
        "left"
    ) and "x: published" not in axes.get_title("left")
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_words_and_numbers_have_places_on_the_axis() -> None:
    words = Line("a", ["PL", "LU"], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [("LU", 2.5)])
    axes = draw([Panel("p", "layout", "y", [words])], "title").axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["PL", "LU"]
    crosses = axes.lines[1]
    assert list(crosses.get_xdata()) == [1.0] and list(crosses.get_ydata()) == [2.5]


def test_best_rounds_are_drawn_where_the_papers_numbers_are_best_rounds() -> None:
    alphas = Line("a", ["0.1", "1"], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [("1", 5.0)], [3.0, 4.0])
    axes = draw([Panel("p", "alpha", ACCURACY, [alphas])], "title").axes[0]
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(dashed.get_ydata()) == [3.0, 4.0]
    assert axes.get_title("left") == "p  (dashed: best round, x: published best round)"


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean '250'"):
        FIGURES["semifl-fig5"].run(tiny(tmp_path, "25"))

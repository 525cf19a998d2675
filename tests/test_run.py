"""Whole runs: what is counted, what is tested, what the last and the best round came to, and
labelling new images.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedglean
from fedglean import tree
from fedglean.data.federation import Truth
from fedglean.data.sources import load
from fedglean.errors import ConfigError, DataError, StorageError
from fedglean.exchange.gate import Envelope
from fedglean.exchange.states import ClientStates
from fedglean.inputs.images import Images, Predictions
from fedglean.models import Model
from fedglean.runs.config import configure
from fedglean.runs.evaluate import Evaluator, Tally, logits
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import Progress, RunFolder
from fedglean.runs.predict import predict
from fedglean.runs.rounds import play_round
from fedglean.runs.run import Run, Runs, Score
from fedglean.runs.trained import TrainedModel
from fedglean.testing.engines import with_delivery
from single_runs import resume, run

SMALL: dict[str, Any] = {
    "clients": 6,
    "labels": "hub:200",
    "hub_batch": 20,
    "client_batch": 50,
    "epochs": 1,
}
QUICK: dict[str, Any] = {**SMALL, "rounds": 2, "threshold": 0.2, "active": 0.5, "mixup": False}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(configure("semifl", **QUICK), tmp_path_factory.mktemp("runs") / "run")


def made_up(*accuracies: float | None) -> Run:
    """A result with one line a round; None is a round without a test."""
    history = []
    for number, accuracy in enumerate(accuracies, start=1):
        line: dict[str, Any] = {"round": number, "seconds": 0.5, "bytes_down": 10, "bytes_up": 3}
        history.append(
            line if accuracy is None else line | {"accuracy": {"EM": accuracy, "SM": 1 - accuracy}}
        )
    predictors: Any = {"EM": None, "SM": None}
    model = TrainedModel(predictors, ("a", "b"), (0.5,), (0.5,))
    return Run(configure("semifl"), history, model_in_memory=model)


def test_the_last_and_the_best_round_are_never_mixed() -> None:
    result = made_up(0.5, 0.9, None, 0.7, 0.9, 0.6)
    assert result.last == Score("EM", (0.6,), (6,)) and result.best == Score("EM", (0.9,), (2,))
    assert result.score("SM") == (Score("SM", (0.4,), (6,)), Score("SM", (0.5,), (1,)))
    assert result.mean_of_last(2) == pytest.approx(0.75) and result.mean_of_last(
        3, "SM"
    ) == pytest.approx(0.8 / 3)


def test_what_clients_report_is_averaged_over_all_exchanges_of_a_round() -> None:
    options: dict[str, Any] = {
        "labels": "hub:100",
        "active": 1.0,
        "steps": 1,
        "threshold": 0.0,
        "norm": "group",
    }
    experiment = prepare(configure("fedrgd", clients=5, rounds=1, **options))
    losses: dict[int, float] = {}

    def noted(envelope: Envelope) -> list[Envelope]:
        losses[envelope.client] = envelope.upload.report["loss"]
        return [envelope]

    watched = with_delivery(experiment, noted)
    line = play_round(watched, Progress(0, watched.start(), ClientStates(), []), 1)
    images = [client.total for client in watched.federation.declared]
    assert line is not None and sorted(losses) == [0, 1, 2, 3, 4]  # in two groups
    assert line["report"]["loss"] == pytest.approx(
        np.average([losses[client] for client in range(5)], weights=images)
    )


def test_rounds_to_an_accuracy_is_the_first_that_reached_it() -> None:
    result = made_up(0.5, None, 0.7, 0.9, 0.7)
    assert (result.rounds_to(0.7), result.rounds_to(0.71), result.rounds_to(0.95)) == (3, 4, None)
    assert result.rounds_to(0.45, "SM") == 1 and result.rounds_to(0.0) == 1


def test_what_a_result_cannot_answer_it_refuses() -> None:
    result = made_up(0.5, 0.9)
    for ask in (
        result.score,
        lambda name: result.mean_of_last(1, name),
        lambda name: result.rounds_to(0.5, name),
    ):
        with pytest.raises(ConfigError, match="unknown predictor 'UM'"):
            ask("UM")
    with pytest.raises(ConfigError, match="no mean of the last 0 rounds"):
        result.mean_of_last(0)


def test_seconds_and_bytes_add_up_over_the_rounds() -> None:
    assert made_up(0.1, 0.2, None).seconds == 1.5 and made_up(0.1, 0.2).bytes_sent == (20, 6)


def test_bytes_of_a_semifl_round_are_those_one_counts_by_hand(result: Run) -> None:
    # cnn on 8 x 8 digits: 3 x 3 convolutions 1 -> 16 -> 32, two norms with weight and bias, 128 ->
    # 10 linear.
    shapes = {
        name: tuple(leaf.shape) for name, leaf in result.predictors["model"].parameters.items()
    }  # type: ignore[union-attr]
    parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    convolutions = sum(int(np.prod(shapes[f"conv{n}.weight"])) for n in (1, 2))
    assert convolutions == 16 * 9 + 32 * 16 * 9 and shapes["output.weight"] == (10, 128)
    model, statistics = 4 * parameters, 4 * 2 * (16 + 32)
    sums = 8 * (1 + 3 * (16 + 32) + 2)
    first, _, final = result.history
    assert first["bytes_down"] == 6 * model + 3 * (model + statistics)
    assert first["bytes_up"] == 6 * sums + first["answered"] * model
    # After the last round the hub tunes once more and measures, and nobody trains.
    assert (final["final"], final["bytes_down"], final["bytes_up"]) == (True, 6 * model, 6 * sums)


def test_a_line_tells_a_round_in_plain_numbers(result: Run) -> None:
    assert [(line["round"], line["final"]) for line in result.history] == [
        (1, False),
        (2, False),
        (2, True),
    ]
    for line in result.history[:2]:
        assert line["answered"] + line["abstained"] == 3 and line["refused"] == []
        assert 0 <= line["accuracy"]["model"] <= 1 and len(line["per_class"]["model"]) == 10
    assert result.history == json.loads(json.dumps(result.history))
    assert result.folder is not None
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.history


def test_what_is_reported_is_what_the_predictors_do(result: Run) -> None:
    experiment = prepare(result.config)
    images, labels = experiment.dataset.test_images, experiment.dataset.test_labels
    output = logits(result.predictors["model"], images, experiment.evaluator.setting)
    right = (output.argmax(-1) == labels).numpy()
    line = result.history[-1]
    assert (
        line["accuracy"]["model"] == pytest.approx(right.mean(), abs=1e-12) == result.last.accuracy
    )
    for digit in range(10):
        assert line["per_class"]["model"][digit] == pytest.approx(
            right[labels.numpy() == digit].mean(), abs=1e-12
        )
    chosen = output.double().softmax(-1)[torch.arange(len(labels)), labels]
    assert line["loss"]["model"] == pytest.approx(float(-chosen.log().mean()), rel=1e-9)


def test_two_runs_from_one_seed_are_bit_identical_and_another_seed_is_not(result: Run) -> None:
    again, other = run(configure("semifl", **QUICK)), run(configure("semifl", **QUICK, seed=1))
    first = tree.named(dict(result.predictors))
    assert all(
        torch.equal(first[name], leaf) for name, leaf in tree.named(dict(again.predictors)).items()
    )
    assert any(
        not torch.equal(first[name], leaf)
        for name, leaf in tree.named(dict(other.predictors)).items()
    )
    assert again.folder is None and again.last == result.last


def test_the_block_of_clients_changes_rounding_alone(result: Run) -> None:
    other = run(configure("semifl", **QUICK, block=1))
    first = tree.named(dict(result.predictors))
    for name, leaf in tree.named(dict(other.predictors)).items():
        torch.testing.assert_close(leaf, first[name], rtol=1e-3, atol=1e-4)


def test_rounds_between_tests_are_left_out_but_never_the_last() -> None:
    history = run(
        configure("fedavg", clients=4, labels="fraction:0.05", epochs=1, rounds=5, evaluate_every=3)
    ).history
    assert [line["round"] for line in history if "accuracy" in line] == [3, 5]


def test_watching_a_run_gives_every_line_once() -> None:
    seen: list[dict[str, Any]] = []
    config = configure("hub-only", clients=4, labels="hub:50", epochs=1, rounds=3)
    assert run(config, on_round=seen.append).history == seen and [
        line["round"] for line in seen
    ] == [1, 2, 3, 3]


def test_semifl_whose_clients_never_train_is_what_it_is_measured_against() -> None:
    common = {"clients": 4, "labels": "hub:50", "rounds": 2, "epochs": 2}
    alone = run(configure("hub-only", batch=10, **common))
    semifl = run(configure("semifl", hub_batch=10, threshold=1.0, statistics_from="hub", **common))
    assert not any(line["answered"] for line in semifl.history)
    assert torch.equal(
        *(tree.row(dict(each.predictors["model"].parameters)) for each in (alone, semifl))
    )


def test_a_method_without_an_ending_resumes_to_the_same_result(tmp_path: Path) -> None:
    config = configure("fedavg", clients=4, labels="ALL:10%", epochs=1, rounds=2)
    first = run(config, tmp_path / "run")
    assert resume(tmp_path / "run").history == first.history


def _more(images: Path) -> None:
    shutil.copy(images / "hub" / "0" / "0.png", images / "hub" / "0" / "another.png")


def _renamed(images: Path) -> None:
    for part in ("hub", "test"):
        (images / part / "1").rename(images / part / "9")


@pytest.mark.parametrize("change", [_more, _renamed])
def test_a_run_does_not_go_on_with_other_images(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    images = tmp_path / "images"
    for number in range(24):
        folder = (
            images / ("hub/0", "hub/1", "test/0", "test/1", "clients/a", "clients/b")[number % 6]
        )
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(folder / f"{number}.png")
    config = configure("hub-only", data="folder", data_root=images, model="mlp", epochs=1, rounds=3)

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", stop)
    kept = shutil.copytree(images, tmp_path / "kept")
    change(images)
    with pytest.raises(DataError, match="not those of the split"):
        resume(tmp_path / "run")
    shutil.rmtree(images)
    kept.rename(images)
    assert len(resume(tmp_path / "run").history) == 4


def test_a_federation_in_which_a_method_means_nothing_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError, match="SemiFL needs labelled images at the hub"):
        prepare(configure("semifl", labels="fraction:0.1"))
    with pytest.raises(ConfigError, match="FedAvg needs clients with labels"):
        prepare(configure("fedavg", labels="hub:20"))


def test_pseudo_labels_are_judged_where_the_truth_is_known() -> None:
    it = prepare(configure("semifl", **QUICK)).evaluator
    truth = torch.tensor([0, 1, 2, -1])
    rows = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.4, 0.1], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0]])
    watcher = Evaluator(it.test_images, it.test_labels, Truth(truth), it.setting)
    images = Images(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.arange(4))
    watcher.watch(Predictions(images, rows, 0.85))
    assert watcher.pseudo() == pytest.approx(
        {"accuracy": 2 / 3, "confident_share": 2 / 4, "confident_accuracy": 1.0}
    )
    assert watcher.pseudo() == {} and watcher.tally == Tally()
    nobody = Evaluator(it.test_images, it.test_labels, Truth(torch.full((4,), -1)), it.setting)
    nobody.watch(Predictions(images, rows, 0.85))
    assert nobody.pseudo() == {"confident_share": 2 / 4}


def test_mixtures_are_tested_as_they_predict_and_each_model_is_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = prepare(configure("hassle", rounds=1))
    predictors = experiment.method.predictors(experiment.start())
    it, runs = experiment.evaluator, list[Model]()

    def noted(predictor: Model, *rest: Any) -> torch.Tensor:
        runs.append(predictor)
        return logits(predictor, *rest)

    monkeypatch.setattr("fedglean.runs.evaluate.logits", noted)
    accuracy = it.test(predictors)["accuracy"]
    assert len(runs) == 4 and len(accuracy) == 3
    for name, predictor in predictors.items():
        right = logits(predictor, it.test_images, it.setting).argmax(-1) == it.test_labels
        assert accuracy[name] == pytest.approx(float(right.double().mean()))


def as_png(picture: torch.Tensor, path: Path) -> Path:
    Image.fromarray(picture[0].numpy()).save(path)
    return path


def test_labelling_a_written_png_equals_evaluating_the_model(result: Run, tmp_path: Path) -> None:
    assert result.folder is not None
    experiment = prepare(result.config)
    pictures = experiment.dataset.test_images[:12]
    paths = [as_png(picture, tmp_path / f"{place}.png") for place, picture in enumerate(pictures)]
    rows = (
        logits(result.predictors["model"], pictures, experiment.evaluator.setting)
        .double()
        .softmax(-1)
    )
    found = predict(result.folder, paths)
    assert [one.path for one in found] == paths
    for one, row in zip(found, rows, strict=True):
        assert one.label == result.classes[int(row.argmax())] and one.probability == pytest.approx(
            float(row.max())
        )
        assert list(one.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-6)
        assert list(one.probabilities) == list(result.classes)


def test_an_image_of_another_size_and_colour_is_brought_to_the_models(
    result: Run, tmp_path: Path
) -> None:
    assert result.folder is not None
    picture = prepare(result.config).dataset.test_images[0, 0].numpy()
    large = Image.fromarray(picture).resize((16, 16), Image.Resampling.NEAREST).convert("RGB")
    large.save(tmp_path / "large.png")
    small = large.convert("L").resize((8, 8), Image.Resampling.BILINEAR)
    small.save(tmp_path / "small.png")
    told: list[str] = []
    a, b = predict(result.folder, [tmp_path / "large.png", tmp_path / "small.png"], told.append)
    assert a.probabilities == b.probabilities
    assert told == [f"{tmp_path / 'large.png'}: 16 x 16 pixels, scaled to the model's 8 x 8"]
    assert predict(result.folder, []) == []


def test_a_picture_is_read_as_training_would_read_it(result: Run, tmp_path: Path) -> None:
    assert result.folder is not None
    upright = Image.fromarray(prepare(result.config).dataset.test_images[0, 0].numpy())
    turned, tag = upright.transpose(Image.Transpose.ROTATE_90), Image.Exif()
    tag[0x0112] = 6  # the camera was held so that it has to be turned back
    upright.save(tmp_path / "upright.png")
    turned.save(tmp_path / "turned.png", exif=tag)
    a, b = predict(result.folder, [tmp_path / "upright.png", tmp_path / "turned.png"])
    assert a.probabilities == b.probabilities
    Image.new("I;16", (8, 8)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep.png has pixels of kind 'I;16'"):
        predict(result.folder, [tmp_path / "deep.png"])


def test_what_is_no_image_is_named(result: Run, tmp_path: Path) -> None:
    assert result.folder is not None
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(DataError, match=r"text.png cannot be read as an image"):
        predict(result.folder, [tmp_path / "text.png"])
    with pytest.raises(DataError, match=r"there is no image .*nowhere.png"):
        predict(result.folder, [tmp_path / "nowhere.png"])


def test_a_result_labels_images_as_they_are_in_the_data_set(result: Run, tmp_path: Path) -> None:
    assert result.folder is not None
    dataset, runs = load("digits"), fedglean.open(result.folder)
    assert isinstance(runs, Runs)
    found = runs.predict(dataset.test_images)
    right = [int(label) for label in found.labels] == dataset.test_labels.numpy()
    assert right.mean() == pytest.approx(result.last.accuracy)
    assert torch.allclose(found.probabilities.sum(1), torch.ones(360).double())
    with pytest.raises(DataError, match="float32, 360 x 1 x 8 x 8"):
        runs.predict(dataset.test_images / 255)


def test_an_unfinished_run_has_no_model_yet(result: Run, tmp_path: Path) -> None:
    assert result.folder is not None
    (tmp_path / "config.toml").write_text((result.folder / "config.toml").read_text())
    with pytest.raises(StorageError, match="has no final model yet; 'fedglean resume"):
        predict(tmp_path, [])


def test_predictors_come_back_from_the_folder_in_order_and_as_they_were(tmp_path: Path) -> None:
    config = configure(
        "hassle", clients=4, labels="fraction:0.1", epochs=1, residual_steps=1, rounds=1
    )
    made = run(config, tmp_path / "run")
    model = RunFolder(tmp_path / "run").model()
    assert list(model.predictors) == made.names == ["EM", "SM", "UM"]
    assert model.classes == made.classes and (model.mean, model.std) == (
        made.model.mean,
        made.model.std,
    )
    pictures = prepare(config).dataset.test_images[:20]
    setting = prepare(config).evaluator.setting
    for name, predictor in model.predictors.items():
        assert torch.equal(
            logits(predictor, pictures, setting), logits(made.predictors[name], pictures, setting)
        )

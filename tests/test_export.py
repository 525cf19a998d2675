"""What leaves the package answers as what was trained: as ONNX, and as a state_dict in its torch
module.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

import fedglean
from fedglean.cli import app
from fedglean.errors import ConfigError, StorageError
from fedglean.export import (
    Classifier,
    check,
    classifier_of,
    load_classifier,
    need_onnx,
    read_run,
    save_onnx,
    save_state_dict,
)
from fedglean.method import Mixture
from fedglean.models import Architecture, Model
from fedglean.randomness import key, uniform
from fedglean.runs.trained import TrainedModel

with_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra export is missing",
)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
#: Every net and every norm at least once.
NETS = [
    ("cnn", "static"),
    ("mlp", "static"),
    ("lenet", "group"),
    ("resnet8", "instance"),
    ("resnet8", "layer"),
    ("cnn13", "running"),
    ("wrn-28-2", "static"),
]


def drawn(name: str, norm: str, width: float = 1.0) -> Model:
    """A model whose statistics are unlike 0 and 1, as a trained one's are."""
    model = Architecture(name, (3, 16, 16), 5, width, norm).initial(7)
    if norm not in ("static", "running"):
        return model
    statistics = {
        f"{layer}.{kind}": 0.5 + uniform(key(3, layer, kind), (channels,)).float()
        for layer, channels in model.architecture.plan.channels.items()
        for kind in ("mean", "variance")
    }
    return Model(model.architecture, model.parameters, statistics)


def trained(predictor: Model | Mixture) -> TrainedModel:
    return TrainedModel({"model": predictor}, tuple("abcde"), MEAN, STD)


def pixels(count: int) -> Tensor:
    return (uniform(key(1, "pixels"), (count, 3, 16, 16)) * 256).to(torch.uint8)


@pytest.mark.parametrize(("name", "norm"), NETS)
def test_a_state_dict_loads_into_the_stated_module_and_answers_as_the_model(
    name: str, norm: str, tmp_path: Path
) -> None:
    original, path = trained(drawn(name, norm)), tmp_path / "model.safetensors"
    save_state_dict(original, path)
    with safe_open(path, "pt") as file:
        about, state = (
            json.loads(file.metadata()["fedglean"]),
            {each: file.get_tensor(each) for each in file.keys()},  # noqa: SIM118
        )
    module = Classifier(
        [Architecture.from_json(each) for each in about["architectures"]], about["classes"]
    )
    module.load_state_dict(state, strict=True)
    found = check(module.eval(), original, pixels(9))
    assert found.difference <= 1e-6 and found.agreement == 1


@with_onnx
@pytest.mark.parametrize(
    ("name", "norm"), [("cnn", "static"), ("resnet8", "group"), ("cnn13", "running")]
)
def test_an_onnx_file_answers_as_the_model_for_any_number_of_images(
    name: str, norm: str, tmp_path: Path
) -> None:
    original = trained(drawn(name, norm))
    answer = save_onnx(original, tmp_path / "model.onnx")
    for count in (1, 2, 7):
        assert check(answer, original, pixels(count)).difference <= 1e-5


@with_onnx
def test_every_other_net_becomes_onnx_in_a_mixture(tmp_path: Path) -> None:
    models = tuple(drawn(*net) for net in (*NETS[1:3], *NETS[4:5], *NETS[6:]))
    original = trained(
        Mixture((*models, drawn("lenet", "instance", 0.25)), (1.0, 0.5, 0.25, 2.0, 1.0))
    )
    found = check(save_onnx(original, tmp_path / "model.onnx"), original, pixels(9))
    assert found.difference <= 1e-5 and found.agreement == 1


@with_onnx
def test_an_onnx_file_says_what_it_takes_and_names_no_place_on_this_machine(tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "model.onnx"
    save_onnx(trained(drawn("cnn", "group")), path)
    file = onnx.load(path)
    onnx.checker.check_model(file)
    about = {each.key: each.value for each in file.metadata_props}
    assert json.loads(about["classes"]) == list("abcde") and json.loads(about["std"]) == list(STD)
    assert about["input"].startswith("uint8") and about["output"].startswith("probabilities")
    shape = [
        each.dim_param or each.dim_value for each in file.graph.input[0].type.tensor_type.shape.dim
    ]
    assert shape == ["n", 3, 16, 16]
    assert b"fedglean/export.py" not in path.read_bytes()


def test_a_float64_model_leaves_in_float32(tmp_path: Path) -> None:
    model = drawn("cnn", "static")
    wide = Model(
        model.architecture,
        *(
            {n: v.double() for n, v in part.items()}
            for part in (model.parameters, model.statistics)
        ),
    )
    answer = save_state_dict(trained(wide), tmp_path / "model.safetensors")
    assert isinstance(answer, Classifier) and answer(pixels(1)).dtype == torch.float32
    assert 0 < check(answer, trained(wide), pixels(9)).difference <= 1e-5


def test_what_answers_otherwise_does_not_pass() -> None:
    original, other = trained(drawn("cnn", "static")), drawn("cnn", "static")
    bent = {
        name: -value if name.startswith("output") else value
        for name, value in other.parameters.items()
    }
    found = check(
        classifier_of(trained(Model(other.architecture, bent, other.statistics))),
        original,
        pixels(9),
    )
    assert not found.passed and found.agreement < 1


def test_a_model_whose_answers_depend_on_the_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Architecture("cnn", (3, 16, 16), 5).initial(7)
    model = TrainedModel({"model": bare}, tuple("abcde"), (0.4,) * 3, (0.2,) * 3)
    (tmp_path / "config.toml").write_text('method = "semifl"\n')
    monkeypatch.setattr("fedglean.runs.folder.RunFolder.model", lambda _: model)
    with pytest.raises(
        StorageError, match="has no batch-norm statistics, so it cannot be exported"
    ):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no safetensors", None])
def test_another_file_is_not_taken_for_a_state_dict(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match="fedglean export --state-dict"):
        load_classifier(path)


@pytest.mark.parametrize(
    "images", [pixels(2) / 255, pixels(2)[:, :1], pixels(2)[..., :8], pixels(1)[0]]
)
def test_the_module_refuses_what_it_was_not_made_for(images: Tensor) -> None:
    """Images in 0 to 1 would be answered like any others, and wrongly."""
    with pytest.raises(
        ValueError, match="images must be uint8 from 0 to 255, n x 3 x 16 x 16; these are"
    ):
        classifier_of(trained(drawn("wrn-28-2", "static")))(images)


def test_a_missing_package_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fedglean.export.find_spec", lambda name: None if name == "onnxscript" else object()
    )
    with pytest.raises(
        ConfigError, match=r"onnxscript; install with pip install 'fedglean\[export\]'"
    ):
        need_onnx()


@pytest.fixture(scope="module")
def hassle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "hassle"
    fedglean.run("hassle", rounds=2, epochs=1, residual_steps=1, out=folder)
    return folder


def invoke(*words: Any) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, [str(word) for word in words])
    return outcome.exit_code, outcome.output


@with_onnx
def test_the_command_writes_both_files_and_compares_them_on_the_test_images(
    hassle: Path, tmp_path: Path
) -> None:
    code, output = invoke(
        "export", hassle, "--onnx", tmp_path / "m.onnx", "--state-dict", tmp_path / "m.safetensors"
    )
    assert code == 0 and (tmp_path / "m.onnx").exists() and (tmp_path / "m.safetensors").exists()
    assert output.count("on 360 test images, 100.0 % of the labels agree") == 2
    images = pixels(3)[:, :1, :8, :8].contiguous()
    ours, theirs = (
        load_classifier(tmp_path / "m.safetensors")(images),
        read_run(hassle).predict(images).probabilities,
    )
    torch.testing.assert_close(ours, theirs, check_dtype=False)


def test_a_predictor_is_chosen_by_name(hassle: Path, tmp_path: Path) -> None:
    code, _ = invoke(
        "export", hassle, "--predictor", "UM", "--state-dict", tmp_path / "m.safetensors"
    )
    assert code == 0 and len(load_classifier(tmp_path / "m.safetensors").networks) == 2
    code, output = invoke(
        "export", hassle, "--predictor", "XM", "--state-dict", tmp_path / "m.safetensors"
    )
    assert code == 2 and "known: EM, SM, UM" in output


def test_a_file_that_answers_otherwise_is_removed_and_the_command_fails(
    hassle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bent(trained: TrainedModel, path: Path) -> Any:
        answer = save_state_dict(trained, path)
        return lambda images: answer(255 - images)

    monkeypatch.setattr("fedglean.cli.export.save_state_dict", bent)
    code, output = invoke("export", hassle, "--state-dict", tmp_path / "m.safetensors")
    assert code == 4 and "was removed, because it is not the run's model" in output
    assert not (tmp_path / "m.safetensors").exists()


def test_without_test_images_it_says_that_nothing_was_compared(
    hassle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> Any:
        raise AssertionError("the data set was read")

    monkeypatch.setattr("fedglean.cli.export.dataset_of_run", gone)
    code, output = invoke(
        "export", hassle, "--no-check", "--state-dict", tmp_path / "m.safetensors"
    )
    assert code == 0 and "not compared" in output


def test_a_net_of_ones_own_leaves_too(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def narrow(layers, images):\n"
        '    """A line of its own."""\n'
        "    x = layers.norm('deep.norm', layers.conv('deep.conv', images, 3))\n"
        "    return layers.linear('deep.output', x.flatten(1), layers.classes)\n\n\n"
        "MODELS = {'narrow': narrow}\n"
    )
    fedglean.run("hub-only", use=str(own), model="narrow", rounds=1, epochs=1, out=tmp_path / "run")
    code, output = invoke("export", tmp_path / "run", "--state-dict", tmp_path / "m.safetensors")
    assert code == 0, output
    with pytest.raises(ConfigError, match="unknown model 'narrow'"):
        load_classifier(tmp_path / "m.safetensors")
    assert load_classifier(tmp_path / "m.safetensors", use=own)(
        torch.zeros(2, 1, 8, 8).byte()
    ).shape == (2, 10)


def test_a_hub_of_branches_is_compared_on_its_own_test_images(tmp_path: Path) -> None:
    for number in range(12):
        for part in (f"hub/{number % 2}", f"test/{number % 2}", "clients/north"):
            folder = tmp_path / "images" / part
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 20 * number).save(folder / f"{number}.png")
    run = tmp_path / "run"
    fedglean.run(
        "hub-only", data="folder", data_root=tmp_path / "images", rounds=1, epochs=1, out=run
    )
    (tmp_path / "images" / "clients").rename(tmp_path / "elsewhere")
    (run / "federation.json").write_text("{}")
    code, output = invoke("export", run, "--state-dict", tmp_path / "m.safetensors")
    assert code == 0 and "on 12 test images" in output


def test_the_runs_own_model_is_not_written_over(hassle: Path) -> None:
    before = (hassle / "model.safetensors").read_bytes()
    code, output = invoke("export", hassle, "--state-dict", hassle / "model.safetensors")
    assert code == 2 and "choose another name" in output
    assert (hassle / "model.safetensors").read_bytes() == before


def test_nothing_to_write_is_a_mistake(hassle: Path) -> None:
    code, output = invoke("export", hassle)
    assert code == 2 and "--onnx model.onnx" in output


def test_onnx_is_imported_late() -> None:
    assert "fedglean.export" in sys.modules
    source = Path(sys.modules["fedglean.export"].__file__ or "").read_text()
    assert not [
        line for line in source.splitlines() if line.startswith(("import onnx", "from onnx"))
    ]


def test_a_file_of_other_weights_is_refused_in_a_sentence(tmp_path: Path) -> None:
    shape = {"architectures": [], "classes": ["a"]}
    for about in ({}, [], shape, {**shape, "architectures": 3}):
        save_file(
            {"some": torch.zeros(2)}, tmp_path / "other", metadata={"fedglean": json.dumps(about)}
        )
        with pytest.raises(StorageError, match="is not a file that"):
            load_classifier(tmp_path / "other")

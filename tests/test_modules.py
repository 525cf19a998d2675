"""Torch modules as models: against the modules themselves, and in runs."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from typer.testing import CliRunner

import fedglean
from fedglean import cli, from_module, tree
from fedglean.errors import ConfigError, FedgleanError, StorageError
from fedglean.methods import METHODS
from fedglean.methods.central import Central
from fedglean.methods.semifl import SemiFL
from fedglean.models import Architecture, Model
from fedglean.models.model import bring_frozen
from fedglean.models.nets import NetKind
from fedglean.randomness import key, normal
from fedglean.testing import check_method, check_model
from fedglean.testing.random_generators import positions

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/own_module.py"
SHAPE = (1, 8, 8)


class Residual(nn.Module):
    """What a module of today may do: ReLU and sums in place, batch norms with an eps of their own,
    dropout of channels.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, eps=1e-3, momentum=0.1)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout2d(0.2)
        self.fc = nn.Linear(4, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        y = self.norm(self.conv(x))
        y += x
        features: Tensor = self.drop(self.relu(y)).mean((2, 3))
        return self.fc(features)  # type: ignore[no-any-return]


class Dense(nn.Module):
    """Batch norms of features without positions, one of them without weights."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
            nn.Linear(16, 16),
            nn.BatchNorm1d(16, affine=False),
            nn.Linear(16, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A weight in two places, and group norm."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(64, 64), nn.Linear(64, 64)
        self.back.weight = self.into.weight
        self.norm, self.out = nn.GroupNorm(4, 64), nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.into(images.flatten(1)))
        return self.out(hidden + torch.tanh(self.back(hidden)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Torch's own transformer, whose fast path has no rule under `vmap`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.position = nn.Parameter(torch.randn(1, 8, 16) * 0.02)
        block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, classes)

    def forward(self, images: Tensor) -> Tensor:
        encoded = self.encoder(self.embed(images[:, 0]) + self.position)
        return self.head(self.norm(encoded).mean(1))  # type: ignore[no-any-return]


class Writing(nn.Module):
    """Writes into its buffers, and into its input."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("shift", torch.ones(64))
        self.fc = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        images -= 0.1
        self.seen += 1
        self.shift.mul_(0.9)  # type: ignore[operator]
        return self.fc(images.flatten(1) - self.shift)  # type: ignore[no-any-return]


class Looks(nn.Module):
    """Control flow that depends on numbers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(images.flatten(1))
        return logits if logits.sum() > 0 else 2 * logits


def architecture(kind: NetKind, norm: str = "static", **fields: Any) -> Architecture:
    return Architecture("mine", SHAPE, 10, norm=norm, kind=kind, **fields)


def images(count: int = 6) -> Tensor:
    return normal(key(3, "images"), (count, *SHAPE)).double()


def seeded(build: Callable[[int], nn.Module], seed: int, classes: int = 10) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(classes)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


CASES: dict[str, tuple[NetKind, str]] = {
    "residual": (from_module(Residual), "running"),
    "residual of group norm": (from_module(Residual, norm="group"), "static"),
    "dense": (from_module(Dense), "static"),
    "dense, its last layer": (from_module(Dense, train="head"), "static"),
    "tied": (from_module(Tied), "static"),
    "attention": (from_module(Attention), "static"),
    "attention in part": (from_module(Attention, train="head,encoder.*.self_attn"), "static"),
    "writing": (from_module(Writing), "static"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_module_passes_the_checks(name: str) -> None:
    kind, norm = CASES[name]
    passed = {result.check for result in check_model(kind, norm=norm) if result.outcome == "passed"}
    assert {"check_stacked", "check_workers", "check_branches", "check_exports"} <= passed


def vit(classes: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=classes,
    )
    return ViTForImageClassification(config)  # type: ignore[no-any-return]


def resnet(classes: int) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    config = ResNetConfig(**shape, num_labels=classes)
    return ResNetForImageClassification(config)  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [vit, resnet])
def test_models_of_transformers_pass_the_checks(build: Callable[[int], nn.Module]) -> None:
    pytest.importorskip("transformers")
    check_model(from_module(build), shape=(3, 32, 32))


def lora(classes: int) -> nn.Module:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    return inject_adapter_in_model(config, vit(classes))  # type: ignore[no-any-return]


def test_of_lora_by_peft_the_adapters_and_the_head_are_the_model() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    kind = from_module(lora, train="head,*lora_*")
    model = Architecture("mine", (3, 32, 32), 10, kind=kind).initial(1)
    assert model.size() == 2 * 2 * 2 * 2 * 16 + 170
    check_model(kind, shape=(3, 32, 32))


def test_a_method_keeps_its_contract_with_a_module() -> None:
    method = SemiFL(threshold=0.2, active=1.0, epochs=1)
    check_method(method, model="residual-module", norm="running", rounds=2, use=EXAMPLE)


def test_first_weights_are_those_of_the_seed_and_no_generator_moves() -> None:
    before = positions()
    model = architecture(from_module(Residual)).initial(5)
    assert positions() == before
    alone = dict(seeded(Residual, 5).named_parameters())
    assert list(model.parameters) == list(alone)
    for name, value in model.parameters.items():
        assert torch.equal(value, alone[name]), name


@pytest.mark.parametrize("build", [Residual, Dense])
def test_running_averages_are_torchs_own(build: Callable[[int], nn.Module]) -> None:
    module = seeded(build, 5).double()
    for part in module.modules():
        if isinstance(part, nn.Dropout | nn.Dropout2d):
            part.p = 0.0
    model = architecture(from_module(build), "running").initial(5, torch.float64)
    for _ in range(2):
        close(model(images()), module.train()(images()))
    close(model.evaluate(images()), module.eval()(images()))


def test_static_norms_use_the_batch_and_the_layers_own_epsilon() -> None:
    module = seeded(Residual, 5).double()
    module.drop.p = 0.0  # type: ignore[union-attr]
    model = architecture(from_module(Residual)).initial(5, torch.float64)
    close(model(images()), module.train()(images()))
    whole = model.with_statistics(model.record(images()))
    assert model.needs_statistics and set(whole.statistics) == {"norm.mean", "norm.variance"}
    close(whole.statistics["norm.mean"], module.conv(module.stem(images())).mean((0, 2, 3)))


def with_statistics(classes: int) -> nn.Module:
    module = Residual(classes)
    module.norm.running_mean += 0.3
    module.norm.running_var *= 2.0
    return module


def test_what_a_norm_came_with_is_where_running_averages_begin() -> None:
    model = architecture(from_module(with_statistics), "running").initial(5)
    assert torch.equal(model.statistics["norm.mean"], torch.full((4,), 0.3))
    assert torch.equal(model.statistics["norm.variance"], torch.full((4,), 2.0))


@pytest.mark.parametrize("options", [{"norm": "frozen"}, {"train": "fc,stem"}])
def test_frozen_norms_keep_what_they_came_with(options: dict[str, str]) -> None:
    kind = from_module(with_statistics, **options)  # type: ignore[arg-type]
    module = seeded(with_statistics, 0).double().eval()
    model = architecture(kind).initial(0, torch.float64)
    assert not model.needs_statistics and not model.statistics
    close(model(images()), module(images()))
    close(model.evaluate(images()), module(images()))


def test_a_norm_of_the_models_own_goes_before_the_default() -> None:
    kind = from_module(Residual, norm="group")
    assert architecture(kind).norm == "group"
    assert Architecture.from_json(architecture(kind).to_json(), lambda name: kind).norm == "group"
    with pytest.raises(ConfigError, match="is made with norm 'group', but the run says 'running'"):
        architecture(kind, "running")
    with pytest.raises(ConfigError, match="did you mean 'frozen'"):
        from_module(Residual, norm="frosen")


def test_dropout_is_drawn_from_the_key_alone() -> None:
    model = architecture(from_module(Dense)).initial(1, torch.float64)
    assert model.architecture.drops and not architecture(from_module(Tied)).drops
    one, again, other = (model(images(), key(seed, "drop")) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.equal(one, model(images()))


def test_what_trains_is_the_model_and_nothing_else() -> None:
    whole = architecture(from_module(Dense)).initial(1)
    head = architecture(from_module(Dense, train="head")).initial(1)
    some = architecture(from_module(Dense, train="layers.7, layers.1.weight")).initial(1)
    assert list(head.parameters) == ["layers.7.weight", "layers.7.bias"]
    assert list(some.parameters) == ["layers.1.weight", "layers.7.weight", "layers.7.bias"]
    assert len(whole.parameters) == 8 and head.size() == 170
    assert not head.needs_statistics and whole.needs_statistics


def without_gradients(classes: int) -> nn.Module:
    module = Residual(classes)
    module.stem.requires_grad_(False)
    return module


def test_all_means_what_requires_a_gradient() -> None:
    model = architecture(from_module(without_gradients)).initial(1)
    assert not any(name.startswith("stem") for name in model.parameters)


@pytest.mark.parametrize(
    ("train", "sentence"),
    [("fcc", "train 'fcc': no parameter is called so"), ("head,layer4.*", "'layer4.*'")],
)
def test_a_name_that_is_not_there_is_told(train: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        architecture(from_module(Residual, train=train))


def test_a_module_without_a_linear_last_layer_has_no_head() -> None:
    with pytest.raises(ConfigError, match="no linear layer with a row for each class"):
        architecture(from_module(lambda classes: nn.Conv2d(1, classes, 8), train="head"))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda classes: 3, "it builds something of type int, no module"),
        (lambda classes: nn.Flatten(), "has no parameters"),
        (lambda classes: nn.Linear(9, classes), "cannot take images of 1 x 8 x 8"),
        (lambda classes: nn.Conv2d(1, 3, 3), "returns n x 3 x 6 x 6 for n images"),
    ],
)
def test_what_is_no_classifier_is_told(build: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"the model 'mine'.*{sentence}"):
        architecture(from_module(build))


def test_a_module_has_one_width() -> None:
    with pytest.raises(ConfigError, match=r"whose width is always 1, not 0\.5"):
        architecture(from_module(Residual), width=0.5)


def saved(tmp_path: Path, module: nn.Module, **changes: Tensor | None) -> Path:
    state: dict[str, Any] = {**module.state_dict(), **changes}
    path = tmp_path / "weights.safetensors"
    save_file({name: value for name, value in state.items() if value is not None}, path)
    return path


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_of_weights_is_where_it_begins(tmp_path: Path, suffix: str) -> None:
    module = seeded(with_statistics, 9)
    path = saved(tmp_path, module)
    if suffix == "pt":
        path = tmp_path / "weights.pt"
        torch.save(module.state_dict(), path)
    model = architecture(from_module(Residual, path), "running").initial(1)
    for name, value in module.named_parameters():
        assert torch.equal(model.parameters[name], value)
    assert torch.equal(model.statistics["norm.variance"], torch.full((4,), 2.0))
    frozen = architecture(from_module(Residual, path, train="head")).initial(1, torch.float64)
    close(frozen.evaluate(images()), module.double().eval()(images()))


def test_buffers_of_the_file_are_used_too(tmp_path: Path) -> None:
    path = saved(tmp_path, Writing(10), shift=torch.full((64,), 5.0))
    model = architecture(from_module(Writing, path)).initial(1, torch.float64)
    logits = model(images())
    fc = model.parameters["fc.weight"], model.parameters["fc.bias"]
    close(logits, F.linear((images() - 0.1).flatten(1) - 5 * 0.9, *fc))


def test_a_head_of_other_classes_is_drawn_from_the_seed(tmp_path: Path) -> None:
    path = saved(tmp_path, seeded(Residual, 9, classes=1000))
    one, other = (architecture(from_module(Residual, path)).initial(seed) for seed in (1, 2))
    assert torch.equal(one.parameters["stem.weight"], other.parameters["stem.weight"])
    assert not torch.equal(one.parameters["fc.weight"], other.parameters["fc.weight"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"stem.bias": None, "stem.b": torch.zeros(4)}, "it lacks stem.bias, and has stem.b"),
        ({"norm.running_var": None}, "it lacks norm.running_var"),
        ({"conv.weight": torch.zeros(4)}, r"conv.weight \(4, not 4 x 4 x 3 x 3\)"),
        ({"stem.bias": torch.full((4,), torch.nan)}, "not finite in stem.bias"),
    ],
)
def test_weights_that_do_not_fit_are_told(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    kind = from_module(Residual, saved(tmp_path, Residual(10), **changes))
    with pytest.raises(ConfigError, match=sentence):
        architecture(kind).initial(1)


class Harmful:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('this must not be run')",)


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Harmful()), b"no weights", b"", pickle.dumps({"a": 1})],
    ids=["code", "text", "nothing", "numbers"],
)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_what_is_no_file_of_weights_is_told(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not a file of weights|something beside tensors"):
        architecture(from_module(Residual, path)).initial(1)


def test_a_whole_module_and_a_missing_file_are_told(tmp_path: Path) -> None:
    torch.save(Residual(10), tmp_path / "module.pt")
    with pytest.raises(ConfigError, match="save a module's state_dict"):
        architecture(from_module(Residual, tmp_path / "module.pt")).initial(1)
    with pytest.raises(ConfigError, match="cannot be read"):
        architecture(from_module(Residual, tmp_path / "none.pt")).initial(1)


def test_a_module_is_pickled_by_reference_and_is_the_same_again() -> None:
    kind = from_module(Residual, train="head")
    assert pickle.loads(pickle.dumps(kind)).net is kind.net
    assert copy.deepcopy(kind).net is kind.net


OWN = """
from torch import nn
from fedglean import from_module

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.fc = nn.Linear(32, classes)

    def forward(self, images):
        return self.fc(self.trunk(images))

class Gate(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return 2 * x

class Looks(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.gate, self.fc = Gate(), nn.Linear(64, classes)

    def forward(self, images):
        return self.fc(self.gate(images.flatten(1)))

class Convolution(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, classes)

    def forward(self, images):
        return self.fc(self.norm(self.conv(images)).relu_().mean((2, 3)))

MODELS = {
    "looks": from_module(Looks),
    "convolution": from_module(Convolution),
    "head": from_module(Net, weights="weights.safetensors", train="head"),
    "whole": from_module(Net, weights="weights.safetensors"),
    "unnamed": from_module(lambda classes: Net(classes)),
}
"""
SMALL: dict[str, Any] = {
    "clients": 4,
    "labels": "each:10",
    "rounds": 2,
    "epochs": 1,
    "executor": "loop",
    "device": "cpu",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a module, and its weights beside it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.py"
    path.write_text(OWN)
    net: dict[str, Any] = {"__name__": "own"}
    exec(OWN.partition("MODELS")[0], net)
    save_file(seeded(net["Net"], 3).state_dict(), tmp_path / "weights.safetensors")
    return path


def test_only_what_trains_is_sent_and_stored(own: Path, tmp_path: Path) -> None:
    stored = {}
    for model in ("head", "whole"):
        fedglean.run("fedavg", use=own, model=model, out=tmp_path / model, **SMALL)
        stored[model] = (tmp_path / model / "model.safetensors").read_bytes()
        assert b"fc.weight" in stored[model]
        assert (b"trunk.1.weight" in stored[model]) == (model == "whole")
    assert len(stored["head"]) < len(stored["whole"]) / 2


def test_other_weights_are_refused_by_resume_and_predict(own: Path, tmp_path: Path) -> None:
    for model in ("head", "whole"):
        fedglean.run("fedavg", use=own, model=model, out=tmp_path / model, **SMALL)
    fedglean.resume(tmp_path / "head")
    state = {"trunk.1.weight": torch.ones(32, 64), "trunk.1.bias": torch.ones(32)}
    state |= {f"trunk.2.{name}": torch.ones(32) for name in ("weight", "bias")}
    state |= {f"trunk.2.running_{name}": torch.ones(32) for name in ("mean", "var")}
    save_file(state, tmp_path / "weights.safetensors")
    for model in ("head", "whole"):
        with pytest.raises(StorageError, match="was changed after the run started"):
            fedglean.resume(tmp_path / model)


def test_stored_models_know_their_frozen_weights(tmp_path: Path) -> None:
    path = saved(tmp_path, seeded(Residual, 1))
    one, other = from_module(Residual, path, "head"), from_module(Residual, train="head")
    written = architecture(one).to_json()
    assert "frozen" in written and "frozen" not in architecture(from_module(Residual)).to_json()
    assert Architecture.from_json(written, lambda name: one).head == ("fc.weight", "fc.bias")
    with pytest.raises(StorageError, match="has other frozen weights here"):
        Architecture.from_json(written, lambda name: other)


@pytest.mark.parametrize("model", ["head", "whole"])
def test_workers_and_stacks_train_the_same(own: Path, model: str) -> None:
    options = {**SMALL, "dtype": "float64", "use": own, "model": model, "block": 2}
    here = fedglean.run("fedavg", **options)[0].history[-1]["loss"]
    for others in ({"placement": "workers", "workers": 2}, {"executor": "stack"}):
        there = fedglean.run("fedavg", **{**options, **others})[0].history[-1]["loss"]
        assert there == pytest.approx(here, rel=1e-9)


def test_what_cannot_be_sent_to_workers_is_a_sentence(own: Path) -> None:
    options = {**SMALL, "placement": "workers", "workers": 2, "use": own, "model": "unnamed"}
    with pytest.raises(FedgleanError, match="at the top level of their module"):
        fedglean.run("fedavg", **options)


def call(*words: str | Path) -> str:
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_learns_and_goes_all_the_way(tmp_path: Path) -> None:
    folder, image = tmp_path / "run", tmp_path / "some.png"
    command = "run semifl --model residual-module --labels hub:100 --rounds 8 --executor stack"
    call(*command.split(), "--use", EXAMPLE, "--out", folder)
    (found,) = fedglean.open(folder)
    assert found.last.accuracy > 0.75
    call("resume", folder)
    from PIL import Image

    Image.new("L", (8, 8)).save(image)
    assert "some.png" in call("predict", folder, image)
    exported = call("export", folder, "--state-dict", tmp_path / "model.safetensors")
    assert "100.0 % of the labels agree" in exported


def test_a_head_learns(tmp_path: Path) -> None:
    (found,) = fedglean.run(
        "fedavg", use=EXAMPLE, model="residual-head", labels="each:20", rounds=8, executor="stack"
    )
    assert found.last.accuracy > 0.5


def test_control_flow_that_cannot_be_stacked_is_a_sentence() -> None:
    with pytest.raises(AssertionError, match=r"cannot be lifted by torch\.func\.vmap"):
        check_model(from_module(Looks))


def test_a_layer_that_cannot_be_stacked_is_named(own: Path) -> None:
    options = {**SMALL, "use": own, "model": "looks", "labels": "each:100", "epochs": 6}
    line = OWN[: OWN.index("if x.sum")].count("\n") + 1
    told = rf"layer 'gate', a Gate, in .*own.py, line {line}: .*--executor loop"
    with pytest.raises(ConfigError, match=told):
        fedglean.run("fedavg", **{**options, "executor": "stack"})
    (found,) = fedglean.run("fedavg", **options)  # with more steps than it takes to record one
    assert found.last.accuracy > 0.5


#: Where a method cannot do with the labels of SMALL, or with settings that say nothing.
LABELS = {"semifl": "hub:20", "fedsgd-fixmatch": "hub:20", "fedrgd": "hub:20", "fl2": "hub:20"}
LABELS |= {"fedmatch-semifl": "hub:20", "hub-only": "hub:20", "hub-all": "hub:20"}
ONE_WIDTH: dict[str, Any] = {"heterofl": {"widths": "1"}, "hassle": {"residual_width": 1.0}}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_a_module(own: Path, method: str) -> None:
    options: dict[str, Any] = {"clients": 3, "rounds": 1, "device": "cpu", "executor": "stack"}
    options |= {"labels": LABELS.get(method, "each:10"), "use": own, "model": "convolution"}
    if issubclass(METHODS[method].method, Central):
        options["clients"] = 1
    (found,) = fedglean.run(method, **options, settings=ONE_WIDTH.get(method, {}))
    assert found.last.accuracy >= 0.0


@pytest.mark.parametrize("build", [Attention, Dense])
def test_a_step_is_traced_as_a_whole_as_a_gpu_wants_it(build: Callable[[int], nn.Module]) -> None:
    kind = from_module(build, train="head")
    models = [architecture(kind).initial(seed, torch.float64) for seed in (1, 2)]
    both = tree.map(lambda *leaves: torch.stack(leaves), *models)
    batch, label = torch.stack([images(), 2 * images()]), torch.arange(6)

    def slope(model: Model, images: Tensor) -> Any:
        return grad(lambda model: F.cross_entropy(model(images), label))(model)

    bring_frozen(both)
    lifted = vmap(slope)
    traced = torch.compile(lifted, backend="aot_eager", fullgraph=True)
    weight, _ = models[0].architecture.head
    close(traced(both, batch).parameters[weight], lifted(both, batch).parameters[weight])


class Plain(nn.Module):
    """The package's `cnn` as a module."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.output = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.output(x.flatten(1))  # type: ignore[no-any-return]


def slopes(lanes: Model) -> dict[str, Tensor]:
    found: Model = vmap(grad(lambda model: model(images()).square().mean()))(lanes)
    return found.parameters


def test_a_recorded_step_has_the_operations_of_the_same_net_of_layers() -> None:
    lists = []
    for it in (Architecture("cnn", SHAPE, 10), architecture(from_module(Plain))):
        models = [it.initial(seed, torch.float64) for seed in (1, 2)]
        both = tree.map(lambda *leaves: torch.stack(leaves), *models)
        graph = make_fx(slopes)(both).graph
        lists.append([str(node.target) for node in graph.nodes if node.op == "call_function"])
    assert lists[0] == lists[1] and len(lists[0]) > 50


def test_functional_form_equals_the_module() -> None:
    module = seeded(Tied, 4).double()
    model = architecture(from_module(Tied)).initial(4, torch.float64)
    close(model(images()), module(images()))
    moved = model.with_parameters({name: 2 * value for name, value in model.parameters.items()})
    with torch.no_grad():
        for value in module.parameters():
            value *= 2
    close(moved(images()), module(images()))
    assert F.cross_entropy(moved(images()), torch.zeros(6, dtype=torch.long)) > 0

"""Methods, models, data sets, partitions and label layouts of one's own: a file, or an installed
package.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import fedglean
from fedglean import cli
from fedglean.engine.task import PartyError
from fedglean.errors import ConfigError, DataError, StorageError, UntrustedError
from fedglean.inputs.views import Recipe, view
from fedglean.methods import METHODS
from fedglean.names import Names, installed
from fedglean.runs.config import SECTIONS, configure, fingerprint, resolve, to_toml
from fedglean.runs.experiment import prepare
from fedglean.runs.folder import RunFolder
from fedglean.runs.rounds import LiveRun, play_round
from fedglean.schema import write
from fedglean.testing import check_method
from fedglean.testing.difference import difference

OWN = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from fedglean import Ask, Method, Stream, Train, Upload, setting
from fedglean.data.dataset import Dataset, channel_statistics
from fedglean.methods.common import supervised
from fedglean.randomness import fold, uniform
from fedglean.optimiser import SGD
from fedglean.tree import Record


@dataclass(frozen=True)
class Plain(Method):
    """FedAvg, plainly."""

    epochs: int = setting(1, "local epochs", low=1)
    rate: float = 0.1
    view: str = "weak"

    async def round(self, hub, state):
        reply = await Ask(self.client, to=hub.everyone, message={"model": state.model})
        return Record(model=reply.mean("model"))

    async def client(self, me, message):
        if not len(me.labelled):
            return None
        streams = {"labelled": Stream(me.labelled, self.view)}
        sgd = SGD(self.rate)
        trained = await Train(message.model, streams, supervised, sgd, epochs=self.epochs)
        return Upload(model=trained.model, weight=len(me.labelled))


def hidden(layers, images):
    """One hidden layer of 8 units."""
    x = F.relu(layers.linear("hidden", images.flatten(1), 8))
    return layers.linear("output", x, layers.classes)


def stripes(root):
    """Horizontal and vertical stripes."""
    noise = np.random.default_rng(0).integers(0, 60, (120, 1, 8, 8))
    lines = np.zeros((120, 1, 8, 8))
    lines[::2, :, ::2] = lines[1::2, :, :, ::2] = 180
    images, labels = torch.from_numpy((lines + noise).astype("uint8")), torch.arange(120) % 2
    mean, std = channel_statistics(images[:80])
    halves = (images[:80], labels[:80], images[80:], labels[80:])
    return Dataset("stripes", ("rows", "columns"), *halves, mean, std, flip=False, pad=0)


def by_turns(groups, clients, draw, size):
    """Clients get SIZE images each, of all classes in turn."""
    rows = np.concatenate(groups)
    return [rows[k :: clients][: int(size)] for k in range(clients)]


def first(pool, spec, value):
    """The first half of every client's images is labelled."""
    held = pool.deal(pool.all(), pool.clients, "images")
    halves = [np.array_split(images, 2) for images in held]
    return np.empty(0, np.int64), [half[0] for half in halves], [half[1] for half in halves]


def turned(images, keys, recipe):
    """Turned by a right angle, half the time."""
    half = uniform(fold(keys, "turned"))[:, None, None, None] < 0.5
    return torch.where(half, images.rot90(1, (2, 3)), images)


def inverted(images, keys):
    """Black becomes white."""
    return 255 - images


METHODS = {"plain": Plain}
VIEWS = {"turned": turned}
STRONG = {"inverted": inverted}
MODELS = {"hidden": hidden}
DATASETS = {"stripes": stripes}
PARTITIONS = {"by-turns:SIZE": by_turns}
LAYOUTS = {"first-half": first}
'''
ALL_OWN = {
    "data": "stripes",
    "model": "hidden",
    "partition": "by-turns:12",
    "labels": "first-half",
    "clients": 4,
}
QUICK: dict[str, Any] = {**ALL_OWN, "rounds": 3, "executor": "loop"}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDGLEAN_CACHE", str(tmp_path / "cache"))  # which knows no code yet
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def flags(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def refused(result: Result, code: int = 2) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace("rate: float = 0.1", "rate: float = 0.2"))


def test_everything_of_ones_own_in_one_run(own: Path) -> None:
    result = fedglean.run("plain", use="own.py", **QUICK | {"rounds": 12})
    assert result.last.accuracy > 0.9
    assert result[0].classes == ("rows", "columns")
    assert result.predictors["model"].architecture.name == "hidden"


def test_views_of_ones_own_are_what_a_method_trains_on(own: Path) -> None:
    options = QUICK | {"strong": "inverted", "use": own}
    plain, turned, strong = (
        fedglean.run("plain", **options, view=name).predictors["model"]
        for name in ("plain", "turned", "strong")
    )
    assert difference(plain, turned) and difference(plain, strong)
    images, keys = torch.arange(128, dtype=torch.uint8).reshape(2, 1, 8, 8), torch.arange(2)
    augmentations = Names.of(own).tables["STRONG"]
    recipe = Recipe((0.0,), (1.0,), False, 0, "inverted", augmentations=augmentations)
    torch.testing.assert_close(
        view("strong", images, keys, recipe), 1 - view("plain", images, keys, recipe)
    )


def test_a_view_of_ones_own_is_a_choice_of_the_packages_methods(own: Path) -> None:
    before = fingerprint(configure("fedprox", view="turned", use=own))
    own.write_text(OWN.replace("< 0.5", "< 0.4"))
    assert fingerprint(configure("fedprox", view="turned", use=own)) != before
    with pytest.raises(ConfigError, match="unknown view 'turnd'; did you mean 'turned'"):
        configure("fedprox", view="turnd", use=own)
    with pytest.raises(ConfigError, match="unknown view 'turned'"):
        configure("fedprox", view="turned")


def test_a_strong_view_of_ones_own_is_part_of_what_a_run_is(own: Path) -> None:
    before = fingerprint(configure("semifl", strong="inverted", use=own))
    own.write_text(OWN.replace("255 - images", "254 - images"))
    assert fingerprint(configure("semifl", strong="inverted", use=own)) != before
    with pytest.raises(ConfigError, match="unknown strong augmentation 'inverted'"):
        configure("semifl", strong="inverted")


def test_a_view_that_makes_something_else_of_images_is_refused(own: Path) -> None:
    own.write_text(OWN.replace("255 - images", "images / 2"))
    with pytest.raises(
        DataError, match=r"'inverted' made torch.float32 \(\d+, 1, 8, 8\) of torch.uint8"
    ):
        fedglean.run("plain", **QUICK, use=own, strong="inverted", view="strong")


@pytest.mark.parametrize(
    "engine", [{"executor": "stack"}, {"placement": "workers", "workers": 2, "block": 2}]
)
def test_engines_agree_on_it(engine: dict[str, Any]) -> None:
    one, other = (
        fedglean.run("plain", use="own.py", dtype="float64", **QUICK | each)
        for each in ({}, engine)
    )
    assert difference(one.predictors["model"], other.predictors["model"], 1e-10) is None


def test_the_judge_takes_a_model_of_ones_own(own: Path) -> None:
    from fedglean.methods.supervised import HubTraining

    check_method(HubTraining(epochs=1), model="hidden", use=own)


def test_names_are_known_to_configurations_that_use_the_file_and_to_no_others() -> None:
    assert configure("plain", use="own.py", **ALL_OWN).method == "plain"
    for options in (
        {"method": "plain"},
        {"model": "hidden"},
        {"partition": "by-turns:2"},
        {"labels": "first-half"},
    ):
        with pytest.raises(ConfigError, match="unknown"):
            configure(**{"method": "semifl"} | options)
    with pytest.raises(ConfigError, match="unknown data set 'stripes'"):
        configure("semifl", data="stripes")
    assert "plain" not in METHODS


def test_two_files_may_use_one_name_in_one_process(tmp_path: Path, own: Path) -> None:
    (tmp_path / "other.py").write_text(OWN.replace("rate: float = 0.1", "rate: float = 0.5"))
    rates = [
        configure("plain", use=file).settings["rate"] for file in ("own.py", "other.py", "own.py")
    ]
    assert rates == [0.1, 0.5, 0.1]


def test_runs_that_use_different_files_go_on_side_by_side(tmp_path: Path, own: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(OWN.replace("255 - images", "254 - images").replace(", 8)\n", ", 9)\n"))
    options = QUICK | {"strong": "inverted", "view": "strong"}
    alone = [fedglean.run("plain", use=file, **options) for file in (own, other)]
    configs = [configure("plain", use=file, **options) for file in (own, other)]
    runs = [LiveRun.new(prepare(config), None) for config in configs]
    for number in range(1, 4):
        for each in runs:
            play_round(each.experiment, each.progress, number)
    for each, result in zip(runs, alone, strict=True):
        assert difference(each.progress.state.model, result.predictors["model"]) is None
    assert difference(*(each.predictors["model"] for each in alone))


def test_comparisons_that_use_different_files_live_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(OWN.replace("rate: float = 0.1", "rate: float = 0.5"))
    small: dict[str, Any] = QUICK | {"data": "stripes", "labels": "each:6", "partition": "iid"}
    files = ("own.py", "other.py")
    made = [
        fedglean.compare(["plain", "fedavg"], 1, use=use, out=use[:-3], **small) for use in files
    ]
    again = [fedglean.resume(use[:-3]) for use in (*files, *files)]
    for before, after in zip((*made, *made), again, strict=True):
        assert before.rows == after.rows
    assert made[0].results["plain"][0].history != made[1].results["plain"][0].history


def test_the_list_shows_what_a_file_adds_and_who_adds_it() -> None:
    shown = call("list", "--use", "own.py")
    assert shown.exit_code == 0
    for name, line in {
        "plain": "FedAvg, plainly.",
        "hidden": "One hidden layer of 8 units.",
        "stripes": "Horizontal and vertical stripes.",
        "by-turns:SIZE": "Clients get SIZE images each, of all classes in turn.",
        "first-half": "The first half of every client's images is labelled.",
    }.items():
        assert f"{line} [own.py]" in next(
            row for row in shown.output.splitlines() if row.startswith(f"{name} ")
        )
    assert "local epochs" in call("list", "plain", "--use", "own.py").output
    assert "own.py" not in call("list").output


def test_a_run_is_resumed_and_predicts_from_anywhere(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        raise Stop

    whole = fedglean.run("plain", use="own.py", out="whole", **QUICK)
    with pytest.raises(Stop):
        fedglean.run("plain", use="own.py", out="cut", on_round=stop, **QUICK)
    Image.new("L", (8, 8)).save("black.png")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert f'use = "{own}"' in (tmp_path / "cut/config.toml").read_text()
    assert call("resume", tmp_path / "cut", "--quiet").exit_code == 0
    models = [RunFolder(tmp_path / name).model().first for name in ("whole", "cut")]
    assert difference(whole.predictors["model"], models[0]) is None
    assert difference(*models) is None
    told = call("predict", tmp_path / "whole", tmp_path / "black.png")
    assert told.exit_code == 0 and ("rows" in told.output or "columns" in told.output)
    printed = call("config", "--config", tmp_path / "whole/config.toml")
    assert printed.output == (tmp_path / "whole/config.toml").read_text()


def test_seeds_go_on_with_it() -> None:
    words = [
        "run",
        "plain",
        "--use",
        "own.py",
        *flags(QUICK),
        "--quiet",
        "--seeds",
        "2",
        "--out",
        "group",
    ]
    assert call(*words).exit_code == 0
    assert call("resume", "group", "--quiet").exit_code == 0


def test_a_run_does_not_go_on_with_an_edited_file(own: Path) -> None:
    fedglean.run("plain", use="own.py", out="here", **QUICK)
    before = own.read_text()
    edited(own)
    Image.new("L", (8, 8)).save("black.png")
    commands = (["resume", "here"], ["predict", "here", "black.png"])
    for words in commands:
        assert str(own) in refused(call(*words), UntrustedError.exit_code)
    for words in commands:
        told = refused(call(*words, "--trust"), StorageError.exit_code)
        assert f"config.toml or {own} was changed after the run started" in told
    own.write_text(before)
    assert call("resume", "here").exit_code == 0


def test_a_finished_run_with_a_net_of_the_package_is_read_whatever_became_of_its_file(
    own: Path,
) -> None:
    for out, model in (("here", {"model": "mlp"}), ("own net", {})):
        fedglean.run("plain", use="own.py", out=out, **QUICK | model)
    small: dict[str, Any] = {
        "labels": "each:60",
        "partition": "iid",
        "clients": 4,
        "rounds": 1,
        "model": "mlp",
    }
    fedglean.compare(
        ["fedavg", "plain"], 1, use="own.py", out="both", data="digits", executor="loop", **small
    )
    edited(own)
    Image.new("L", (8, 8)).save("black.png")
    assert call("predict", "here", "black.png").exit_code == 0
    assert call("report", "here", "own net", "--out", "page.html").exit_code == 0
    assert "which you have not run as it is now" in Path("page.html").read_text()
    assert "'plain'" in refused(call("resume", "both", "--quiet"), UntrustedError.exit_code)
    assert call("report", "own net", "--trust", "--out", "page.html").exit_code == 0
    assert "was changed after the run started" in Path("page.html").read_text()
    resumed = refused(call("resume", "both", "--quiet"), StorageError.exit_code)
    assert "plain/seed-0/config.toml" in resumed, (
        "FedAvg, before it, owes the file nothing and still stands"
    )


def test_a_file_that_is_edited_while_a_run_goes_on_does_not_change_it(own: Path) -> None:
    whole = fedglean.run("plain", use="own.py", **QUICK)
    other = fedglean.run(
        "plain", use="own.py", out="here", on_round=lambda line: edited(own), **QUICK
    )
    assert difference(whole.predictors["model"], other.predictors["model"]) is None
    assert "was changed" in refused(call("resume", "here", "--trust"), StorageError.exit_code)


def test_an_edited_file_is_read_again_by_the_next_configuration(own: Path) -> None:
    first = configure("plain", use="own.py")
    edited(own)
    assert (first.settings["rate"], configure("plain", use="own.py").settings["rate"]) == (0.1, 0.2)


def test_the_fingerprint_sees_what_a_file_says_and_not_where_it_lies(
    tmp_path: Path, own: Path
) -> None:
    mark = fingerprint(configure("plain", use="own.py"))
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved/mine.py").write_text(OWN)
    assert fingerprint(configure("plain", use="moved/mine.py")) == mark
    edited(own)
    assert fingerprint(configure("plain", use="own.py", rate=0.1)) != mark


def test_a_toml_file_names_what_it_uses_from_where_it_lies(tmp_path: Path, own: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/mine.toml").write_text('use = "../own.py"\nmethod = "plain"\n')
    with pytest.raises(UntrustedError, match=str(own)):
        configure(file="deep/mine.toml")
    config = configure(file="deep/mine.toml", trust=True)
    assert config.use == str(own)
    assert resolve(None, {"method": "plain", "use": str(own)}) == config
    assert 'use = "' not in to_toml(configure(file="deep/mine.toml", method="semifl", use="none"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = (\n", "line 1: SyntaxError: '(' was never closed"),
        ("\nimport nowhere\n", "line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f():\n    raise ValueError('a\\nb')\n\nf()\n", "line 2: ValueError: a"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("x = 3\n", "defines none of METHODS, MODELS"),
        ("METHODS = [3]\n", "line 1: METHODS must be a dictionary, not a list"),
        (
            "MODELS = {\n    'a': 3}\n",
            "line 2: the model 'a' must be a function or its NetKind, but is of type int",
        ),
        (
            "METHODS = {'a': 3}\n",
            "line 1: the method 'a' must be a class or its Entry, but is of type int",
        ),
        (
            "METHODS = {'a': print}\n",
            "line 1: the method 'a' must be a subclass of fedglean.Method",
        ),
        (
            "MODELS = {'a': dict}\n",
            "line 1: the model 'a' is a class; give a function of layers and images",
        ),
        (
            "import torch\nMODELS = {'a': torch.nn.ReLU()}\n",
            "line 2: the model 'a' is a torch module; give a function",
        ),
        (
            "MODELS = {'a': lambda images: images}\n",
            "the model 'a' cannot be called with two arguments (too many",
        ),
        ("MODELS = {'a b': print}\n", "line 1: 'a b' is not a valid name for a model"),
        ("MODELS = {'a:K': print}\n", "line 1: 'a:K' is not a valid name for a model"),
        ("PARTITIONS = {'a': print, 'a:K': print}\n", "there are two forms of the partition 'a'"),
        (
            "MODELS = {'cnn': print}\n",
            "line 1: fedglean already has a model 'cnn'; choose another name",
        ),
        ("MODELS = {'wrn-28-5': print}\n", "fedglean already has a model 'wrn-28-5'"),
        ("PARTITIONS = {'classes': print}\n", "fedglean already has a partition 'classes'"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_with_its_line(
    own: Path, text: str, sentence: str
) -> None:
    own.write_text(text)
    told = refused(call("run", "semifl", "--use", "own.py"))
    assert str(own) in told and sentence in told
    assert [path.name for path in own.parent.iterdir()] == ["own.py"]
    assert configure("semifl").use is None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            '{"plain": Plain}',
            '{"semifl": Plain}',
            "fedglean already has a method 'semifl'; choose another name",
        ),
        (
            "@dataclass(frozen=True)\nclass Plain",
            "class Plain",
            "Plain is not a frozen dataclass; put @dataclass(frozen=True) above it",
        ),
        ("def round", "def rounds", "Plain does not define round"),
        (
            '= setting(1, "local epochs", low=1)\n    rate: float = 0.1',
            "\n    rate: float",
            "'epochs' of Plain has no def",
        ),
        (
            "rate: float = 0.1",
            "rate: tuple = (1,)",
            "setting 'rate' of Plain must be a number, text, or true or false",
        ),
        (
            "rate: float",
            "rate: 'flaot'",
            "the types of Plain's settings cannot be read: NameError: name 'flaot' is not",
        ),
    ],
)
def test_a_class_that_is_no_method_is_refused(own: Path, old: str, new: str, sentence: str) -> None:
    assert OWN.count(old) == 1
    own.write_text(OWN.replace(old, new))
    line = (
        own.read_text()
        .splitlines()
        .index(next(row for row in own.read_text().splitlines() if "METHODS =" in row))
    )
    assert f"{own}, line {line + 1}: " in (
        told := refused(call("run", "semifl", "--use", "own.py"))
    )
    assert sentence in told


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            'return Record(model=reply.mean("model"))',
            "return None",
            "the method returned a NoneType; the state for the",
        ),
        (
            'return Record(model=reply.mean("model"))',
            'return {"model": reply.mean("model")}',
            "returned a dict; the",
        ),
        (
            "    async def client",
            "    def predictors(self, state):\n        return state.model\n\n    async def client",
            "gave a Model; it must",
        ),
        (
            "    async def client",
            "    def predictors(self, state):\n        return {}\n\n    async def client",
            "gave no model; it must",
        ),
        (
            "to=hub.everyone",
            "to=hub.sample(3)",
            "share of the clients to draw must be from 0 to 1, not 3",
        ),
    ],
)
def test_a_round_that_goes_wrong_says_what_was_expected(
    own: Path, old: str, new: str, sentence: str
) -> None:
    assert OWN.count(old) == 1
    own.write_text(OWN.replace(old, new))
    with pytest.raises(PartyError, match=sentence):
        fedglean.run("plain", use="own.py", **QUICK)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    for name, why in {"none.py": "No such file or directory", ".": "Is a directory"}.items():
        assert f": {why}" in refused(call("list", "--use", name))
    assert "use must be text, not 3" in refused(
        call("run", "semifl", "--config", _toml(tmp_path, "use = 3\n"))
    )
    assert "use --use" in refused(call("run", "semifl", "--set", "use=own.py"))


def _toml(folder: Path, text: str) -> Path:
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


def test_a_setting_that_no_option_could_give_is_refused(own: Path) -> None:
    own.write_text(OWN.replace("rate", "clients"))
    assert "the setting 'clients' of plain has the same name as an option" in refused(
        call("config", "plain", "--use", "own.py")
    )


@pytest.mark.parametrize(
    ("old", "new", "kind", "sentence"),
    [
        (
            "images[:80], labels[:80]",
            "images[:80] / 2, labels[:80]",
            DataError,
            "must be uint8 .* not torch.float32",
        ),
        (
            "images[80:], labels[80:]",
            "images[:0], labels[:0]",
            DataError,
            "the test images of 'stripes' must be",
        ),
        (
            "torch.arange(120) % 2",
            "torch.arange(120) % 3",
            DataError,
            "training labels of 'stripes' must be from -1 to 1",
        ),
        (
            "    halves = (",
            "    return images\n    halves = (",
            DataError,
            "'stripes' must return a fedglean.data.dataset.Dataset, not a Tensor",
        ),
        (
            "for k in range(clients)]",
            "for k in range(clients)].clear()",
            ConfigError,
            "gave a NoneType, not a list",
        ),
        (
            "for k in range(clients)]",
            "for k in range(3)]",
            ConfigError,
            "made 3 parts for 4 clients",
        ),
        (
            ", [half[1] for half in halves]",
            "",
            ConfigError,
            "'first-half' must return the hub's, the labelled and ",
        ),
        (
            "[half[1] for half in halves]",
            "[]",
            ConfigError,
            "4 labelled and 0 unlabelled parts for 4 clients",
        ),
    ],
)
def test_what_a_users_function_gives_back_is_looked_at(
    own: Path, old: str, new: str, kind: type[Exception], sentence: str
) -> None:
    assert OWN.count(old) == 1
    own.write_text(OWN.replace(old, new))
    with pytest.raises(kind, match=sentence):
        fedglean.run("plain", use="own.py", **QUICK)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which Python looks for packages, and which it has forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    look_again()


def look_again() -> None:
    sys.modules.pop("their_methods", None)
    installed.cache_clear()


def install(site: Path, text: str, version: str = "1.0") -> None:
    """What pip leaves behind."""
    about = site / "their_methods-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: their-methods\nVersion: {version}\n"
    )
    (about / "entry_points.txt").write_text("[fedglean]\ntheirs = their_methods\n")
    (site / "their_methods.py").write_text(text)
    look_again()


def test_the_papers_come_in_like_anybodys_package() -> None:
    names = Names.of()
    held = {names.holder("PRESETS", name) for name in names.tables["PRESETS"]}
    assert held == {names.holder("STUDIES", name) for name in names.tables["STUDIES"]}
    (papers,) = held
    assert papers is not None and "fedglean_papers" in papers.text.decode()


def test_an_installed_package_is_found_without_being_named(site: Path) -> None:
    install(site, OWN)
    assert "FedAvg, plainly. [the package their-methods]" in call("list", "methods").output
    fedglean.run("plain", out="here", **QUICK)
    assert "use =" not in Path("here/config.toml").read_text()
    assert call("resume", "here").exit_code == 0
    taken = refused(call("list", "--use", "own.py"))
    assert "the package their-methods already has a method 'plain'; choose another name" in taken


def test_a_run_does_not_go_on_with_another_version_of_a_package(site: Path) -> None:
    install(site, OWN)
    fedglean.run("plain", out="here", **QUICK)
    fedglean.run("hub-only", out="plain", rounds=1, executor="loop")
    install(site, OWN, version="1.1")
    assert "was changed after the run started" in refused(
        call("resume", "here"), StorageError.exit_code
    )
    assert call("resume", "plain").exit_code == 0


def test_a_fresh_process_finds_a_package_and_says_where_it_is_broken(site: Path) -> None:
    install(site, "import nowhere\n")
    command = [sys.executable, "-m", "fedglean", "list"]
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    broken = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert broken.returncode == 2
    assert broken.stderr == (
        "error: the package their-methods cannot be loaded as their_methods: "
        "ModuleNotFoundError: No module named 'nowhere'; repair or uninstall it\n"
    )


def test_a_run_without_anything_of_ones_own_is_called_what_it_was_before() -> None:
    parts = write(configure("hub-only"))
    del parts["use"], parts["engine"]["checkpoint_every"], parts["engine"]["workers"]
    for name in SECTIONS:  # what is not set is left out
        parts[name] = {key: value for key, value in parts[name].items() if value is not None}
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    assert fingerprint(configure("hub-only")) == hashlib.sha256(text.encode()).hexdigest()

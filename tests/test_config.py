"""A configuration is what its layers add up to, or one sentence about what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglean.errors import ConfigError
from fedglean.names import Names
from fedglean.runs.config import (
    FLAT,
    SECTIONS,
    Config,
    configure,
    fingerprint,
    make_method,
    read_toml,
    resolve,
    to_toml,
)
from fedglean.schema import fields_of, write

METHODS = Names.of().tables["METHODS"]


def test_a_method_alone_is_a_whole_configuration() -> None:
    config = resolve("semifl")
    assert config.method == "semifl"
    assert config.settings.keys() == set(fields_of(METHODS["semifl"].method))
    assert make_method(config) == METHODS["semifl"].method(**config.settings)


def test_a_later_layer_outdoes_an_earlier_one_key_by_key() -> None:
    config = resolve(
        "semifl",
        {"split": {"clients": 7, "labels": "hub:30"}, "rounds": 3},
        {"split": {"clients": 9}},
    )
    assert (config.split.clients, config.split.labels, config.rounds) == (9, "hub:30", 3)


def test_what_a_method_brings_along_is_weaker_than_any_layer(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from fedglean.methods import METHODS, Entry\n"
        "SPLIT = {'labels': 'each:5', 'clients': 4}\n"
        "DEFAULTS = {'split': SPLIT, 'settings': {'rate': 0.5}, 'rounds': 6}\n"
        "METHODS = {'mine': Entry(METHODS['fedavg'].method, '', DEFAULTS)}\n"
    )
    config = resolve("mine", {"split": {"clients": 8}, "use": str(own)})
    assert (config.split.labels, config.split.clients, config.rounds) == ("each:5", 8, 6)
    assert config.settings["rate"] == 0.5


def test_the_strongest_layer_names_the_method_unless_it_is_named_outright() -> None:
    layers: tuple[dict[str, Any], ...] = ({"method": "semifl"}, {"method": "fedavg"})
    assert resolve(None, *layers).method == "fedavg"
    assert resolve("hassle", *layers).method == "hassle"


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (
            {"split": {"lables": "hub:20"}},
            "unknown key 'split.lables'; did you mean 'split.labels'?",
        ),
        ({"round": 3}, "unknown key 'round'; did you mean 'rounds'?"),
        ({"labels": "hub:20"}, "unknown key 'labels'; did you mean 'split.labels'?"),
        ({"rate": 0.1}, "unknown key 'rate'; did you mean 'settings.rate'?"),
        (
            {"settings": {"treshold": 0.9}},
            "unknown key 'settings.treshold'; did you mean 'settings.threshold'?",
        ),
        ({"split": "iid"}, "split must be a table, not the text 'iid'"),
        (
            {"split": {"clients": "many"}},
            "split.clients must be a whole number, not the text 'many'",
        ),
        ({"split": {"clients": True}}, "split.clients must be a whole number, not true"),
        ({"split": {"clients": 2.5}}, "split.clients must be a whole number, not 2.5"),
        ({"gate": {"quorum": "0.5"}}, "gate.quorum must be a number, not the text '0.5'"),
        ({"settings": {"rate": False}}, "settings.rate must be a number, not false"),
        ({"settings": {"rate": float("nan")}}, "settings.rate must be a finite number, not nan"),
        ({"settings": {"mixup": 1}}, "settings.mixup must be true or false, not 1"),
        ({"strong": 3}, "strong must be text, not 3"),
        ({"rounds": {"a": 1}}, "rounds must be a whole number, not a table"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"seed": -1}, "seed must be from 0 to 9223372036854775807, not -1"),
        ({"split": {"clients": 0}}, "split.clients must be at least 1, not 0"),
        ({"gate": {"quorum": 1.5}}, "gate.quorum must be from 0 to 1, not 1.5"),
        (
            {"engine": {"threads": 10**11}},
            "engine.threads must be from 1 to 1024, not 100000000000",
        ),
        ({"settings": {"threshold": 2}}, "settings.threshold must be from 0 to 1, not 2.0"),
        (
            {"settings": {"statistics_from": "hubb"}},
            "unknown settings.statistics_from 'hubb'; did you mean 'hub'? The choices are "
            "everyone, hub.",
        ),
        (
            {"settings": {"combine": "parallel"}},
            "semifl has no setting 'combine' any more and does what combine = fine-tune did; for "
            "another value take semifl-table2",
        ),
        (
            {"engine": {"device": "gpu"}},
            "unknown engine.device 'gpu'; did you mean 'cpu'? The choices are auto, cpu, cuda.",
        ),
        ({"data": {"name": "minst"}}, "unknown data set 'minst'; did you mean 'mnist'?"),
        ({"model": {"name": "resnet9"}}, "unknown model 'resnet9'; did you mean 'resnet8'?"),
        ({"model": {"norm": "groop"}}, "unknown norm 'groop'; did you mean 'group'?"),
        (
            {"strong": "fixmatch"},
            "unknown strong augmentation 'fixmatch'; did you mean 'fixmatch-ra'? "
            "The choices are fixmatch-ra, semifl-ra.",
        ),
        (
            {"split": {"partition": "dirichlt:1"}},
            "unknown partition 'dirichlt'; did you mean 'dirichlet'?",
        ),
        ({"split": {"labels": "hup:20"}}, "unknown label layout 'hup'; did you mean 'hub'?"),
    ],
)
def test_a_mistake_becomes_a_sentence_that_names_the_key(
    layer: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("semifl", layer)
    assert str(caught.value) == sentence


def test_an_unknown_method_gets_a_suggestion_and_no_method_a_list() -> None:
    with pytest.raises(ConfigError, match="unknown method 'semfl'; did you mean 'semifl'"):
        resolve("semfl")
    with pytest.raises(ConfigError, match="no method was named; name one, such as semifl"):
        resolve(None, {"rounds": 3})


def test_a_method_may_refuse_settings_that_are_fine_one_by_one() -> None:
    with pytest.raises(ConfigError, match="mixup"):
        resolve("semifl-table2", {"settings": {"labels_from": "batch", "mixup": True}})


@pytest.mark.parametrize("name", METHODS)
def test_dropout_is_refused_where_no_unit_would_be_dropped(name: str) -> None:
    dropping = {"model": {"name": "mlp", "dropout": 0.5}}
    with pytest.raises(
        ConfigError, match=f"model.dropout = 0.5 has no effect with {name} as set here; set it to 0"
    ):
        resolve(name, dropping)
    if "perturb" in METHODS[name].method.__dataclass_fields__:  # type: ignore[attr-defined]
        assert resolve(name, dropping, {"settings": {"perturb": "dropout"}}).model.dropout == 0.5


def test_a_wide_resnet_of_any_width_is_a_model() -> None:
    assert resolve("semifl", {"model": {"name": "wrn-28-3"}}).model.name == "wrn-28-3"


def test_a_whole_number_is_a_number_and_the_same_one() -> None:
    whole, real = (
        resolve("semifl", {"settings": {"rate": 1}}),
        resolve("semifl", {"settings": {"rate": 1.0}}),
    )
    assert isinstance(whole.settings["rate"], float)
    assert fingerprint(whole) == fingerprint(real)


def test_numbers_of_numpy_and_paths_are_taken_as_what_they_are() -> None:
    config = configure(
        "semifl", seed=np.int64(3), rate=np.float32(0.5), data_root=Path("/somewhere")
    )
    assert (config.seed, config.settings["rate"], config.data.root) == (3, 0.5, "/somewhere")
    json.dumps(write(config))


def test_places_stay_what_they_were_wherever_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = configure("semifl", data="folder", data_root="images", split_file="split.json")
    assert (here.data.root, here.split.file) == (f"{tmp_path}/images", f"{tmp_path}/split.json")
    (tmp_path / "below").mkdir()
    file = tmp_path / "below" / "own.toml"
    file.write_text('[data]\nname = "folder"\nroot = "images"\n[split]\nfile = "../split.json"\n')
    beside = configure("semifl", file=file)
    assert (beside.data.root, beside.split.file) == (
        f"{tmp_path}/below/images",
        f"{tmp_path}/split.json",
    )


def test_flat_options_nested_ones_and_dotted_keys_say_the_same() -> None:
    flat = configure(
        "semifl", data="digits", labels="hub:30", clients=5, model="mlp", rounds=4, rate=0.2
    )
    nested = configure(
        "semifl",
        data={"name": "digits"},
        split={"labels": "hub:30", "clients": 5},
        model={"name": "mlp"},
        settings={"rate": 0.2},
        rounds=4,
    )
    dotted = configure(
        "semifl",
        **{
            "split.labels": "hub:30",
            "split.clients": 5,
            "model.name": "mlp",
            "rounds": 4,
            "settings.rate": 0.2,
        },
    )
    assert flat == nested == dotted


def test_an_option_that_is_none_was_not_given() -> None:
    assert configure("semifl", rounds=None, labels=None) == resolve("semifl")


def test_an_unknown_option_gets_a_suggestion_from_options_and_settings() -> None:
    with pytest.raises(
        ConfigError, match="unknown option of semifl 'treshold'; did you mean 'threshold'"
    ):
        configure("semifl", treshold=0.9)
    with pytest.raises(
        ConfigError, match="unknown option of semifl 'client'; did you mean 'clients'"
    ):
        configure("semifl", client=3)


@pytest.mark.parametrize("name", METHODS)
def test_no_setting_of_a_method_hides_behind_an_option(name: str) -> None:
    assert not set(fields_of(METHODS[name].method)) & {*FLAT, *SECTIONS, "method", "preset", "file"}


def test_flags_outdo_the_file_and_the_file_outdoes_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("rounds = 30\nseed = 5\n[split]\nclients = 50\n")
    config = configure(preset="semifl/cifar10-250-iid", file=file, seed=6)
    assert (config.rounds, config.seed, config.split.clients, config.split.labels) == (
        30,
        6,
        50,
        "hub:250",
    )


def test_a_preset_of_another_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="is for semifl, not fedavg"):
        configure("fedavg", preset="semifl/cifar10-250-iid")
    with pytest.raises(ConfigError, match="did you mean 'semifl/cifar10-250-iid'"):
        configure(preset="semifl/cifar10-250-idd")


def test_a_file_that_is_missing_or_no_toml_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*: No such file"):
        configure("semifl", file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        configure("semifl", file=tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        configure("semifl", file=tmp_path / "binary.toml")


def _through_toml(config: Config, folder: Path) -> Config:
    (folder / "config.toml").write_text(to_toml(config), "utf-8")
    return resolve(None, read_toml(folder / "config.toml"))


@pytest.mark.parametrize(
    ("own", "says"),
    [({"data": "folder", "data_root": "a"}, "data.root"), ({"split_file": "b"}, "file")],
)
def test_a_file_says_which_of_its_lines_do_not_count(
    own: dict[str, str], says: str, tmp_path: Path
) -> None:
    config = configure("semifl", **own)
    assert (
        f"[split]\n# {says} says who holds what; partition, labels and clients do not\n"
        in to_toml(config)
    )
    assert _through_toml(config, tmp_path) == config
    assert "#" not in to_toml(configure("semifl"))


@pytest.mark.parametrize("name", METHODS)
def test_a_configuration_survives_toml(name: str, tmp_path: Path) -> None:
    config = resolve(name, {"seed": 11, "data": {"root": "a b"}, "gate": {"stretch": 1e22}})
    assert _through_toml(config, tmp_path) == config


@given(
    root=st.none()
    | st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text != "none"),
    rate=st.floats(0, allow_infinity=False, allow_nan=False),
    seed=st.integers(0, 2**63 - 1),
    mixup=st.booleans(),
)
def test_any_text_and_number_survives_toml(
    tmp_path_factory: pytest.TempPathFactory, root: str | None, rate: float, seed: int, mixup: bool
) -> None:
    config = configure("semifl", data_root=root, rate=rate, seed=seed, mixup=mixup)
    assert _through_toml(config, tmp_path_factory.getbasetemp()) == config


@given(
    st.sampled_from(
        [
            ("seed", 1),
            ("rounds", 9),
            ("clients", 3),
            ("labels", "hub:40"),
            ("rate", 0.5),
            ("threads", 2),
        ]
    )
)
def test_the_fingerprint_sees_what_changes_the_result(change: tuple[str, Any]) -> None:
    assert fingerprint(configure("semifl", **dict([change]))) != fingerprint(configure("semifl"))


def test_a_configuration_of_before_keeps_its_fingerprint() -> None:
    """What 0.1 wrote of settings that are retired is read, not written, and counts as it did."""
    before = configure("semifl", combine="fine-tune", labels_from="global")
    assert before == configure("semifl") and "combine" not in to_toml(before)
    recorded = "b1fdc24dedb104249d20d5b8a1281b8314896f93c7cf923d1d1190d6b38bbf48"
    assert fingerprint(before) == recorded


@pytest.mark.parametrize(
    ("method", "setting", "today"),
    [("semifl", "combine", "semifl-table2"), ("hassle", "variant", "hassle-release")],
)
def test_a_stored_method_whose_setting_is_retired_has_another_name_today(
    method: str, setting: str, today: str
) -> None:
    value = {"combine": "parallel", "variant": "release"}[setting]
    stored = {"method": method, "settings": {setting: value}}
    assert resolve(None, stored, foreign=stored).method == today
    with pytest.raises(ConfigError, match=today):
        configure(method, **{setting: value})


def test_the_fingerprint_does_not_see_what_changes_nothing() -> None:
    mnist = configure("semifl", data="mnist", data_root="here")
    assert fingerprint(mnist) == fingerprint(
        configure("semifl", data="mnist", data_root="there", checkpoint_every=5)
    )
    own = configure("semifl", data="folder", data_root="here")
    assert fingerprint(own) != fingerprint(configure("semifl", data="folder", data_root="there"))


def test_half_precision_without_compiled_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine.half works only with compiled steps"):
        configure("semifl", half=True)
    assert configure("semifl", half=True, compile=True).engine.half


def test_a_class_brings_defaults_along_and_a_name_may_have_others(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\n"
        "from fedglean.methods import Entry\n"
        "from fedglean.methods.supervised import FedAvg\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    defaults = {'rounds': 7}\n\n\n"
        "METHODS = {'mine': Mine, 'other': Entry(Mine, '', {'rounds': 9})}\n"
    )
    assert [configure(name, use=own).rounds for name in ("mine", "other")] == [7, 9]

"""What `fedglean deploy` is told and remembers: keys, options, addresses; and how it ends."""

import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from typer.testing import CliRunner

from fedglean.cli import app
from fedglean.errors import ConfigError, RoundError, StorageError
from fedglean.federation.flower.processes import wait_until_free
from fedglean.federation.flower.start_branch import supernode_command
from fedglean.federation.flower.start_hub import superlink_command
from fedglean.federation.journal import Journal, follow
from fedglean.federation.keys import make_branch_key, make_hub_keys, public_key
from fedglean.report.hub_table import COLUMNS, render_row, row_of
from fedglean.runs.config import configure, to_toml
from fedglean.runs.deploy_options import Address, BranchOptions, HubOptions, read_admitted


def test_an_address_that_is_taken_is_not_the_hubs_own_link(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(ConfigError, match=f"another program is listening on {taken}"):
            wait_until_free(taken, 0.2)
    wait_until_free(taken, 0.2)


def test_keys_are_for_their_owner_alone_and_are_not_overwritten(tmp_path: Path) -> None:
    make_hub_keys(tmp_path / "hub", ["hub.example.org", "10.0.0.7"])
    public = make_branch_key(tmp_path / "b" / "branch.key")
    for secret in (tmp_path / "hub" / "server.key", tmp_path / "b" / "branch.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(StorageError, match="not overwritten"):
        make_branch_key(tmp_path / "b" / "branch.key")


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder in which nobody may write"
)
def test_keys_in_a_folder_of_others_are_refused_in_a_sentence() -> None:
    with pytest.raises(StorageError, match=r"cannot write /proc/branch\.key: "):
        make_branch_key(Path("/proc/branch.key"))


def options(tmp_path: Path, keys: Path | None) -> HubOptions:
    return HubOptions(tmp_path, 2, tmp_path / "run", "127.0.0.1:8000", keys, {}, 10, 5, 5)


def branch(folder: Path, name: str = "north") -> BranchOptions:
    return BranchOptions(images=folder, number=1, state=folder, name=name)


@pytest.mark.parametrize("host", ["not/a/name", "hub.example.org:8000", "", "https://hub"])
def test_a_certificate_is_made_for_hosts_alone(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name or an address"):
        make_hub_keys(tmp_path / "hub", [host])
    assert not (tmp_path / "hub").exists()


def test_flowers_commands_are_protected_unless_asked_otherwise(tmp_path: Path) -> None:
    keys = make_hub_keys(tmp_path / "keys", ["localhost"]).parent
    make_branch_key(keys / "branch.key")
    link = superlink_command(options(tmp_path, keys), tmp_path / "state.db")
    assert (
        "--enable-supernode-auth" in link and "--ssl-keyfile" in link and "--insecure" not in link
    )
    assert "--disable-runtime-dependency-installation" in link
    node = supernode_command(
        branch(tmp_path), Address("hub", 8000), keys / "ca.crt", keys / "branch.key"
    )
    assert "--auth-supernode-private-key" in node and "--insecure" not in node
    assert "--insecure" in superlink_command(options(tmp_path, None), tmp_path / "state.db")
    with pytest.raises(ConfigError, match="there is no"):
        superlink_command(options(tmp_path, tmp_path / "none"), tmp_path / "state.db")


def test_options_of_a_hub_are_remembered(tmp_path: Path) -> None:
    own = replace(options(tmp_path, tmp_path), admit={1: tmp_path / "a.pub"})
    (own.out / "flower").mkdir(parents=True)
    own.save()
    assert HubOptions.of(own.out) == own
    assert HubOptions.of(tmp_path) is None


def test_a_key_is_admitted_for_one_number(tmp_path: Path) -> None:
    north, south = (make_branch_key(tmp_path / name / "branch.key") for name in ("north", "south"))
    assert (
        read_admitted([str(north), str(south)], 2)
        == read_admitted([f"1={south}", f"0={north}"], 2)
        == {0: north, 1: south}
    )
    for texts, reason in (
        ([f"2={north}"], "the last of 2 branches is 1"),
        ([f"0={north}", f"0={south}"], "a second key for branch 0"),
        ([str(north), str(north)], "given for two branches"),
        (["0=nothing.pub"], "there is no nothing.pub"),
    ):
        with pytest.raises(ConfigError, match=reason):
            read_admitted(texts, 2)
    (tmp_path / "noise.pub").write_bytes(b"no\xffise")
    assert list(read_admitted([str(tmp_path / "noise.pub")], 1)) == [0]
    with pytest.raises(ConfigError, match="is not a public key"):
        public_key(tmp_path / "noise.pub")


def test_the_round_table_reads_well_in_a_log() -> None:
    line = {
        "round": 3,
        "final": False,
        "answered": 7,
        "abstained": 1,
        "pseudo": {"confident_share": 0.614},
        "seconds": 75,
        "accuracy": {"model": 0.925},
        "bytes_down": 6_000_000,
        "bytes_up": 5_400_000,
        "refused": [
            {"client": 4, "reason": "a NaN in 'model'"},
            {"client": 9, "reason": "no answer in time"},
        ],
    }
    row = row_of(line, 10, 20)
    first, second = render_row(row, 160, True), render_row(row, 160, False)
    headings, cells = first.splitlines()
    assert second == cells and headings.split() == [*COLUMNS, "refused"]
    for name, cell in zip([*COLUMNS, "refused"], row, strict=True):
        assert cells[headings.index(name) :].startswith(cell)
    assert row[1:4] == ["8 of 10, 1 idle", "61.4 %", "92.5 %"]
    assert row[-1] == "branch 4: a NaN in 'model'; branch 9: no answer in time"
    assert max(map(len, render_row(row, 100, True).splitlines())) <= 100
    both = row_of(
        line | {"final": True, "accuracy": {"SM": 0.5, "UM": 0.25}, "pseudo": {}, "refused": []},
        0,
        20,
    )
    assert both[:4] == ["final", "", "", "SM 50.0 %, UM 25.0 %"]


def test_the_exit_code_of_the_command_is_that_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    said: list[str] = []
    with open(path, "w") as file, subprocess.Popen(["sleep", "60"]) as link:
        journal = Journal(file)
        journal.tell("2 of 2 branches")
        for number in (1, 2):
            journal.show_round({"round": number}, 2)
        journal.end(5, "error: too few")
        shown = lambda line, asked: said.append(f"{line['round']} {asked}")  # noqa: E731
        assert follow(path, link.poll, said.append, shown) == 5
        link.kill()
    assert said == ["2 of 2 branches", "1 2", "2 2", "error: too few"]


def test_a_hub_whose_app_was_killed_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.touch()
    working = "import sys, time; from fedglean.sealed import hold; "
    working += "file = open(sys.argv[1], 'a'); hold(file); print(flush=True); time.sleep(60)"
    with (
        subprocess.Popen(["sleep", "60"]) as link,
        subprocess.Popen([sys.executable, "-c", working, journal], stdout=subprocess.PIPE) as hub,
    ):
        assert hub.stdout is not None and hub.stdout.readline()
        Timer(1.0, hub.kill).start()
        with pytest.raises(RoundError, match="app was killed"):
            follow(journal, link.poll, print, print)
        monkeypatch.setattr("fedglean.federation.journal.START", 0.1)
        with pytest.raises(RoundError, match="did not start"):
            follow(journal, link.poll, print, print)
        link.kill()


@pytest.mark.parametrize("name", ['St. "Mary"', "back\\slash", "two\nlines"])
def test_a_name_that_flower_cannot_take_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Flower cannot pass on"):
        supernode_command(branch(tmp_path, name), Address("hub", 1))


@pytest.mark.parametrize("host", ["[::1]", "no-such-host.invalid"])
def test_a_host_that_nobody_knows_is_told_in_one_sentence(host: str) -> None:
    with pytest.raises(ConfigError, match="is not a name or IPv4 address"):
        wait_until_free(Address(host, 1), 0.2)


def test_resume_starts_the_hub_as_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, own = configure("hassle", model="cnn", rounds=7, rate=0.5), options(tmp_path, tmp_path)
    (own.out / "flower").mkdir(parents=True)
    (own.out / "flower" / "hub.toml").write_text(to_toml(config))
    own.save()
    started: list[object] = []
    monkeypatch.setattr(
        "fedglean.cli.deploy.run_hub", lambda *given: started.append(given[:2]) or 130
    )
    said = CliRunner().invoke(app, ["resume", str(own.out)])
    assert said.exit_code == 130 and started == [(config, own)]
    (own.out / "model.safetensors").touch()
    said = CliRunner().invoke(app, ["resume", str(own.out)])
    assert said.exit_code == 0 and "is already finished" in said.output and len(started) == 1


@pytest.mark.parametrize("text", ["", "hub", "hub:", ":8000", "hub:port", "hub:70000"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        Address.read(text)


def test_the_package_does_without_flower() -> None:
    """Importing the command line, and all that a simulation needs, imports no Flower."""
    code = (
        "import sys; sys.modules['flwr'] = None; import fedglean.cli, fedglean.testing, "
        "fedglean.federation.branch, fedglean.federation.hub"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""fedglean deploy: a hub and its branches on Flower."""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedglean.cli.options import configured, with_fields
from fedglean.cli.shared import app, say
from fedglean.engine.device import chosen_device
from fedglean.errors import ConfigError, DataError, StorageError, no_folder
from fedglean.federation.flower.processes import need_flower
from fedglean.federation.flower.start_branch import run_branch, supernode_command
from fedglean.federation.flower.start_hub import run_hub
from fedglean.federation.hub import read_start
from fedglean.names import Names
from fedglean.report.hub_table import render_row, row_of
from fedglean.report.plots import learning_curves
from fedglean.runs.config import Config, configure
from fedglean.runs.deploy_options import Address, BranchOptions, HubOptions, read_admitted
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.run import Runs

deploy = typer.Typer(
    no_args_is_help=True,
    help="Train across real machines with Flower; docs/deploy.md explains how.",
)
app.add_typer(deploy, name="deploy")
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Use no TLS and no keys; only for a trial on one machine."),
]
Admit = Annotated[
    list[str] | None,
    typer.Option(help="A branch's public key as NUMBER=FILE; repeat it for each branch."),
]


@deploy.command("hub")
@configured
@with_fields("hub", HubOptions)
def deploy_hub(
    options: dict[str, Any], hub: HubOptions, admit: Admit = None, insecure: Insecure = False
) -> None:
    """Start a hub: run Flower's SuperLink, train with the branches that join."""
    config = configure(**options)
    if hub.branches:
        _check_keys(hub.keys, insecure)
        if hub.keys is not None and not admit:
            how = "give each branch's public key with --admit NUMBER=FILE"
            raise ConfigError(f"no branch is admitted; {how}")
    _check_images(hub.images)
    if kind_of(hub.out) is Kind.RUN:
        what = "the run of a simulation, not of a federation"
        raise StorageError(f"{hub.out} holds {what}; choose another folder with --out")
    hub = replace(hub, admit=read_admitted(admit or [], hub.branches))
    raise typer.Exit(host(config, hub))


def host(config: Config, hub: HubOptions) -> int:
    """Run a hub and draw what it comes to; its exit code."""
    table = RoundTable(config.rounds)
    code = run_hub(config, hub, say_with_time, table.show)
    if code == 0:
        title = f"{config.method}, {hub.branches} branches"
        learning_curves({config.method: Runs.of(hub.out)}, hub.out / "curves.png", title)
    return code


def resume_hub(out: Path) -> int:
    """Start a hub as it was started before; a run that is finished needs none."""
    if (out / "model.safetensors").exists():
        say(f"{out} is already finished")
        return 0
    return host(*read_start(out))


@deploy.command("branch")
@with_fields("branch", BranchOptions)
def deploy_branch(
    branch: BranchOptions,
    hub: Annotated[str, typer.Option(help="The hub's address as host:port.")],
    keys: Annotated[
        Path | None, typer.Option(help="The folder that 'fedglean deploy keys' made.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Join a federation with images that never leave this machine; run Flower's SuperNode."""
    _check_keys(keys, insecure)
    _check_images(branch.images)
    chosen_device(branch.device)
    Names.of(branch.use)
    authority, key = (keys / "ca.crt", keys / "branch.key") if keys else (None, None)
    command = supernode_command(branch, Address.read(hub), authority, key)
    raise typer.Exit(run_branch(command, branch.state, say_with_time, key))


@deploy.command("keys")
def deploy_keys(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")],
    hub: Annotated[
        list[str] | None, typer.Option(help="A name or address of the hub; repeat it for each.")
    ] = None,
) -> None:
    """Make a branch's pair of keys, or with --hub the hub's certificate and its authority."""
    need_flower()
    from fedglean.federation.keys import make_branch_key, make_hub_keys

    if hub:
        authority = make_hub_keys(folder, hub)
        print(f"give this file to every branch, as ca.crt in its keys: {authority}")
    else:
        print(f"give this file to the hub, for --admit: {make_branch_key(folder / 'branch.key')}")


class RoundTable:
    """Prints the rounds as rows of a table, as they come."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.has_heading = rounds, False

    def show(self, line: Mapping[str, Any], asked: int) -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
        row = row_of(line, asked, self.rounds)
        say_with_time(render_row(row, width, heading=not self.has_heading))
        self.has_heading = True


def say_with_time(text: str) -> None:
    """In a file each line says when; a terminal has no room for it."""
    for line in text.splitlines():
        moment = "" if sys.stdout.isatty() else time.strftime("%Y-%m-%d %H:%M:%S ")
        say(moment + line)


def _check_keys(keys: Path | None, insecure: bool) -> None:
    if (keys is None) != insecure:
        raise ConfigError("give either the folder of keys with --keys, or --insecure to use none")


def _check_images(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(str(no_folder(folder)))
    if not any(each.is_file() for each in folder.rglob("*")):
        raise DataError(f"{folder} holds no files; put the images there")

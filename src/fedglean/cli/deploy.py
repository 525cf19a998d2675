"""fedglean deploy: a hub and its branches on Flower."""

from pathlib import Path
from typing import Annotated

import typer

from fedglean.cli.shared import Use, app, configured, say
from fedglean.config import Config
from fedglean.deploy.commands import HubOptions, admitted, is_federation, run_branch, run_hub, supernode_command
from fedglean.deploy.processes import Address, need_flower
from fedglean.errors import ConfigError, DataError, StorageError, no_folder
from fedglean.plugins import activate

deploy = typer.Typer(no_args_is_help=True, help="A real federation on Flower: docs/deploy.md walks through one.")
app.add_typer(deploy, name="deploy")
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: on one machine, to try it out.")]
Keys = Annotated[Path | None, typer.Option(help="The folder that 'deploy keys' made.")]


@deploy.command("hub")
@configured
def deploy_hub(
    config: Config,
    *,
    images: Annotated[Path, typer.Option(help="A folder with hub/CLASS and perhaps test/CLASS.")],
    branches: Annotated[int, typer.Option(min=1, help="How many there are; their numbers begin with 0.")],
    out: Annotated[Path, typer.Option(help="The run folder; one that is there is gone on with.")],
    listen: Annotated[str, typer.Option(help="Where branches reach the hub.")] = "0.0.0.0:8000",
    keys: Keys = None,
    admit: Annotated[
        list[str] | None, typer.Option(help="A branch's public key, as NUMBER=FILE or in the order of their numbers.")
    ] = None,
    insecure: Insecure = False,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds that a branch has for an answer.")] = 3600,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for the others once a quorum has answered.")] = 600,
    gathering: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for branches: for all at the start, for a quorum later.")
    ] = 600,
) -> None:
    """Train with the branches that come: starts Flower's SuperLink and the run, and shows its rounds."""
    _need_keys(keys, insecure)
    _need_images(images)
    if (out / "config.toml").exists() and not is_federation(out):
        raise StorageError(f"{out} holds a run without branches; choose another folder with --out")
    times = {"deadline": deadline, "grace": grace, "gathering": gathering}
    if keys is not None and not admit:
        raise ConfigError("nobody is admitted; name each branch's public key with --admit NUMBER=FILE")
    options = HubOptions(images, out, branches, Address.read(listen), keys, admitted(admit or [], branches), **times)
    raise typer.Exit(run_hub(config, options, say))


@deploy.command("branch")
def deploy_branch(
    images: Annotated[
        Path, typer.Option(help="The branch's images; those in folders named like classes are labelled.")
    ],
    number: Annotated[int, typer.Option(min=0, help="Which branch this is: its identity in the federation.")],
    hub: Annotated[str, typer.Option(help="The hub's address, host:port.")],
    state: Annotated[Path, typer.Option(help="Where this branch keeps its own state.")],
    name: Annotated[str | None, typer.Option(help="What people call it.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: where this branch computes.")] = "cpu",
    use: Use = None,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Take part with a folder of images, which stays here: starts Flower's SuperNode, again whenever it ends."""
    _need_keys(keys, insecure)
    _need_images(images)
    _check_device(device)
    activate(None if use is None else str(use))
    authority, key = (keys / "ca.crt", keys / "branch.key") if keys else (None, None)
    own = (number, name or f"branch {number}", images, state)
    command = supernode_command(*own, Address.read(hub), authority, key, device, use)
    raise typer.Exit(run_branch(command, state, say))


def _need_keys(keys: Path | None, insecure: bool) -> None:
    if (keys is None) != insecure:
        raise ConfigError("say where the keys are with --keys, or that there shall be none with --insecure")


def _need_images(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(str(no_folder(folder)))
    if not any(each.is_file() for each in folder.rglob("*")):
        raise DataError(f"{folder} is empty; put this party's images there")


def _check_device(name: str) -> None:
    from fedglean.engines.device import chosen_device

    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"there is no device '{name}'; choose auto, cpu or cuda")
    chosen_device(name)


@deploy.command("keys")
def deploy_keys(
    folder: Path,
    hub: Annotated[list[str] | None, typer.Option(help="For the hub: its names and addresses, once for each.")] = None,
) -> None:
    """Make a branch's key pair, or with --hub the hub's certificate and authority."""
    need_flower()
    from fedglean.deploy.keys import make_branch_key, make_hub_keys

    if hub:
        print(f"give this file to every branch, as ca.crt in its keys: {make_hub_keys(folder, hub).authority}")
    else:
        print(f"give this file to the hub, for --admit: {make_branch_key(folder / 'branch.key')}")

"""fedglean deploy: a hub and its branches on Flower."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedglean.cli.options import configured
from fedglean.cli.shared import Use, app, say
from fedglean.errors import ConfigError, DataError, StorageError, no_folder
from fedglean.federation.commands import (
    HubOptions,
    admitted,
    run_branch,
    run_hub,
    supernode_command,
)
from fedglean.federation.processes import Address, need_flower
from fedglean.names import activate
from fedglean.runs.config import configure
from fedglean.runs.kinds import Kind, kind_of

deploy = typer.Typer(
    no_args_is_help=True,
    help="Train across real machines with Flower; docs/deploy.md explains how.",
)
app.add_typer(deploy, name="deploy")
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Use no TLS and no keys; only for a trial on one machine."),
]
Keys = Annotated[Path | None, typer.Option(help="The folder that 'fedglean deploy keys' made.")]


@deploy.command("hub")
@configured
def deploy_hub(
    options: dict[str, Any],
    *,
    images: Annotated[
        Path, typer.Option(help="The hub's images, in hub/CLASS and optionally test/CLASS.")
    ],
    branches: Annotated[
        int, typer.Option(min=1, help="How many branches there are; they are numbered from 0.")
    ],
    out: Annotated[
        Path, typer.Option(help="The run folder; a run that is already there is continued.")
    ],
    listen: Annotated[
        str, typer.Option(help="The address at which branches reach the hub.")
    ] = "0.0.0.0:8000",
    keys: Keys = None,
    admit: Annotated[
        list[str] | None,
        typer.Option(help="A branch's public key as NUMBER=FILE; repeat it for each branch."),
    ] = None,
    insecure: Insecure = False,
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds that a branch has for each answer.")
    ] = 3600,
    grace: Annotated[
        float,
        typer.Option(min=0, help="Seconds that the others still have once a quorum has answered."),
    ] = 600,
    gathering: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for all branches at the start, and for a quorum later."
        ),
    ] = 600,
) -> None:
    """Start a hub: run Flower's SuperLink, train with the branches that join, and show every
    round.
    """
    config = configure(**options)
    _need_keys(keys, insecure)
    _need_images(images)
    if kind_of(out) is Kind.RUN:
        raise StorageError(
            f"{out} holds the run of a simulation, not of a federation; choose another folder with "
            "--out"
        )
    times = {"deadline": deadline, "grace": grace, "gathering": gathering}
    if keys is not None and not admit:
        raise ConfigError(
            "no branch is admitted; give each branch's public key with --admit NUMBER=FILE"
        )
    hub = HubOptions(
        images, out, branches, Address.read(listen), keys, admitted(admit or [], branches), **times
    )
    raise typer.Exit(run_hub(config, hub, say))


@deploy.command("branch")
def deploy_branch(
    images: Annotated[
        Path,
        typer.Option(
            help="The branch's images; those in folders named after classes are labelled."
        ),
    ],
    number: Annotated[
        int,
        typer.Option(min=0, help="This branch's number, which is its identity in the federation."),
    ],
    hub: Annotated[str, typer.Option(help="The hub's address as host:port.")],
    state: Annotated[Path, typer.Option(help="The folder in which this branch keeps its state.")],
    name: Annotated[str | None, typer.Option(help="A name for people to read.")] = None,
    device: Annotated[
        str, typer.Option(help="Where this branch computes: auto, cpu or cuda.")
    ] = "cpu",
    use: Use = None,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Join a federation with a folder of images that never leaves this machine; runs Flower's
    SuperNode.
    """
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
        raise ConfigError("give either the folder of keys with --keys, or --insecure to use none")


def _need_images(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(str(no_folder(folder)))
    if not any(each.is_file() for each in folder.rglob("*")):
        raise DataError(f"{folder} holds no files; put the images there")


def _check_device(name: str) -> None:
    from fedglean.engine.device import chosen_device

    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device '{name}'; choose auto, cpu or cuda")
    chosen_device(name)


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
        print(
            "give this file to every branch, as ca.crt in its keys: "
            f"{make_hub_keys(folder, hub).authority}"
        )
    else:
        print(f"give this file to the hub, for --admit: {make_branch_key(folder / 'branch.key')}")

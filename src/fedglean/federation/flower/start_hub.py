"""Starts a hub: Flower's SuperLink, and in it the run whose app is `federation.hub.serve`.

A hub has its Flower files in the run folder under flower/. It always begins with an empty link: the
run folder is what it goes on from, and orders that a killed hub left behind would keep branches
busy for nothing. Nodes of before are then strangers to the link; they end, and their supervisors
start them again.
"""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedglean.errors import StorageError
from fedglean.federation.flower import guarded
from fedglean.federation.flower.guarded import APP, LINK
from fedglean.federation.flower.processes import (
    FlowerCommands,
    Show,
    end_tidily,
    need_flower,
    wait_for,
    wait_until_free,
)
from fedglean.federation.hub import federate, hub_config, roster_of
from fedglean.federation.journal import OnRound, follow
from fedglean.federation.local import LocalCarrier
from fedglean.runs.config import Config, to_toml
from fedglean.runs.deploy_options import HubOptions, key_file
from fedglean.sealed import locked, make_folder, write_whole


def run_hub(config: Config, options: HubOptions, show: Show, on_round: OnRound) -> int:
    """Start a SuperLink and follow the run to its exit code; without branches, train here."""
    if options.branches:
        need_flower()
    roster_of(hub_config(config, options.images), options)
    work = options.out.resolve() / "flower"
    make_folder(work)
    with locked(work / "lock", options.out):
        write_whole(work / "hub.toml", to_toml(config).encode())
        if options.branches:
            return _run(config, options, work, show, on_round)
        options.save()
        result = federate(LocalCarrier([]), config, options, show, on_round)
        show(f"run folder: {result.folder}")
        return 0


def superlink_command(options: HubOptions, database: Path) -> list[str]:
    host, port = options.address
    # As a file: imported with its package it would hold torch in memory for as long as it runs.
    command = [sys.executable, "-P", guarded.__file__, LINK, "--host", host, "--port", str(port)]
    command += ["--database", str(database), "--disable-runtime-dependency-installation"]
    if options.keys is None:
        return [*command, "--insecure"]
    files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
    for option, name in files.items():
        command += [f"--ssl-{option}", str(key_file(options.keys / name).resolve())]
    return [*command, "--enable-supernode-auth"]


def _run(config: Config, options: HubOptions, work: Path, show: Show, on_round: OnRound) -> int:
    end_tidily()
    wait_until_free(options.address.near)
    flower, link_state = FlowerCommands(work / "home"), work / "link"
    shutil.rmtree(link_state, ignore_errors=True)
    for folder in (flower.home, work / "app", link_state):
        make_folder(folder)
    write_whole(work / "app" / "pyproject.toml", APP.encode())
    write_whole(work / "journal.jsonl", b"")
    write_whole(flower.home / "config.toml", _connection(options).encode())
    options.save()
    if options.keys is None:
        show(
            f"no protection: anyone who can reach {options.listen} can read all that is sent, and "
            "take part"
        )
    command = superlink_command(options, link_state / "state.db")
    with flower.start(command, work / "superlink.log") as link:
        wait_for(options.address.near, link)
        if options.keys is not None:
            with ThreadPoolExecutor(4) as pool:  # each is a process that takes seconds
                list(pool.map(lambda key: _register(flower, key), options.admit.values()))
        hub = f"hub={json.dumps(str(options.out.resolve()))}"
        flower.run(["flwr", "run", str(work / "app"), "hub", "--run-config", hub])
        return follow(work / "journal.jsonl", link.poll, show, on_round)


def _connection(options: HubOptions) -> str:
    """For `flwr run`, which goes to the SuperLink as anybody else would."""
    text = f'[superlink]\ndefault = "hub"\n\n[superlink.hub]\naddress = "{options.address.near}"\n'
    if options.keys is None:
        return text + "insecure = true\n"
    return text + f"root-certificates = {json.dumps(str((options.keys / 'ca.crt').resolve()))}\n"


def _register(flower: FlowerCommands, public: Path) -> None:
    key = str(key_file(public).resolve())
    try:
        flower.run(["flwr", "supernode", "register", key, "hub"])
    except StorageError as error:
        if "already" not in str(error):
            raise

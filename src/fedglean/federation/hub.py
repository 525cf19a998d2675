"""The hub's side of a federation: a simulation's round loop, with branches for clients.

What only a federation has lies in the run folder beside the rest: federation.json, with the run's
name among branches and what they declared. Started again with the same folder, the hub goes on from
the last finished round.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedglean.data.dataset import Dataset
from fedglean.data.party_folders import hub_images, with_branches
from fedglean.data.split_file import of_this
from fedglean.engine.device import chosen_device
from fedglean.engine.loop import Loop
from fedglean.engine.placement import Exchanger
from fedglean.errors import ConfigError, FedgleanError, StorageError
from fedglean.federation.carrier import Carrier
from fedglean.federation.journal import Journal, OnRound
from fedglean.federation.letters import Declaration
from fedglean.federation.mailbox import Mailbox
from fedglean.federation.nodes import Nodes
from fedglean.federation.placement import Branches
from fedglean.federation.plan import RunPlan, form_of
from fedglean.federation.roster import RemoteFederation, Roster
from fedglean.inputs.images import Images
from fedglean.runs.config import Config, fingerprint, make_method, read_toml, resolve
from fedglean.runs.deploy_options import HubOptions
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.experiment import Experiment, aggregate_of, settled_for
from fedglean.runs.folder import RunFolder, check_same_run
from fedglean.runs.rounds import LiveRun, play
from fedglean.runs.run import Run
from fedglean.sealed import hold, make_folder

Tell = Callable[[str], None]


def serve(carrier: Carrier, out: Path) -> None:
    """The hub of a run folder; what it tells is appended to the journal beside its options."""
    folder = HubOptions.path(out).parent
    with open(folder / "journal.jsonl", "a", encoding="utf-8") as file:
        hold(file)
        journal = Journal(file)
        try:
            config, options = read_start(out)
            result = federate(carrier, config, options, journal.tell, journal.show_round)
        except FedgleanError as error:
            journal.end(error.exit_code, f"error: {error}")
            raise
        except BaseException as error:
            journal.end(1, f"{type(error).__name__}: {error}; the SuperLink's log says where")
            raise
        journal.end(0, f"run folder: {result.folder}")


def read_start(out: Path) -> tuple[Config, HubOptions]:
    """How the hub of a run folder was started."""
    options = HubOptions.of(out)
    if options is None:
        raise StorageError(
            f"{out} does not say how its hub was started; start it with all its options again"
        )
    layer = read_toml(HubOptions.path(out).with_name("hub.toml"))
    return resolve(None, layer, foreign=layer), replace(options, out=out)


def federate(
    carrier: Carrier,
    config: Config,
    options: HubOptions,
    tell: Tell,
    on_round: OnRound = lambda line, asked: None,
) -> Run:
    """Train with the branches that the carrier reaches; a run in the folder is continued."""
    config = hub_config(config, options.images)
    with settled_for(config):
        return _federate(carrier, config, options, tell, on_round)


def _federate(
    carrier: Carrier, config: Config, options: HubOptions, tell: Tell, on_round: OnRound
) -> Run:
    if config.gate.lost is not None:
        raise ConfigError(
            "gate.lost is for simulations: real answers get lost anyway; leave it out"
        )
    out, images = options.out, hub_images(options.images, config.data.form)
    shape = list(images.test_images.shape[1:])
    keys, form = _public_keys(options), form_of(config, images)
    nodes = Nodes(carrier, options.branches, images.classes, shape, keys, tell, form)
    mailbox = Mailbox(nodes, options)
    roster, asked = roster_of(config, options), set[int]()
    if roster is not None:
        nodes.declared = roster.present
        experiment = _experiment(config, images, roster, mailbox, asked)
        of_this(RunFolder(out).split(), experiment.dataset)
        run = LiveRun.found(experiment, RunFolder(out))
        tell(f"continuing after round {run.progress.done} of {config.rounds}")
    else:
        found = mailbox.enrol(config.gate.quorum)
        roster = Roster.begin(_name(config), options.branches, shape, found)
        experiment = _experiment(config, images, roster, mailbox, asked)
        make_folder(out)
        roster.save(out)
        run = LiveRun.new(experiment, out)

    def on_join(declaration: Declaration) -> None:
        roster.join(declaration, out)
        tell(f"branch {declaration.number} has joined, and takes part from now on")

    def show(lines: list[dict[str, Any]]) -> None:
        on_round(lines[0], len(asked))
        asked.clear()

    nodes.on_join = on_join
    tell(
        f"{len(roster.present)} of {options.branches} branches, {config.rounds} rounds of "
        f"{config.method}"
    )
    return play([run], show)[0]


def hub_config(config: Config, images: Path) -> Config:
    """The configuration as the hub has it: its part runs in a loop here, on its own images."""
    engine = replace(
        config.engine,
        executor="loop",
        device=chosen_device(config.engine.device).type,
        placement="here",
    )
    data = replace(config.data, name="folder", root=str(images.resolve()))
    return replace(config, engine=engine, data=data)


def roster_of(config: Config, options: HubOptions) -> Roster | None:
    """Who takes part in the run that the folder holds, if it holds one; it must be this one."""
    out = options.out
    if not (out / "config.toml").exists():
        return None
    check_same_run(out, config)
    roster = Roster.load(out)
    count = len(roster.branches)
    if count != options.branches:
        raise StorageError(
            f"{out} is a run with {count} branches; use --branches {count}, or another --out"
        )
    return roster


def _public_keys(options: HubOptions) -> Mapping[int, bytes] | None:
    if options.keys is None:
        return None
    from fedglean.federation.keys import public_key

    return {number: public_key(path) for number, path in options.admit.items()}


def _experiment(
    config: Config, images: Dataset, roster: Roster, mailbox: Mailbox, asked: set[int]
) -> Experiment:
    """Who is to train is noted in `asked`, for whoever tells of a round."""
    dataset, method = with_branches(images, roster.branches), make_method(config)
    assert dataset.given is not None
    split, plan = of_this(dataset.given, dataset), RunPlan.of(config, dataset)
    device = torch.device(config.engine.device)
    store, labels = dataset.train_images.to(device), dataset.train_labels.to(device)
    none = store[:0]
    federation = RemoteFederation(
        Images(store, split.hub.to(device), labels),
        tuple(Images(none, part) for part in split.labelled),
        tuple(Images(none, part) for part in split.unlabelled),
        roster,
    )
    method.check(federation.declared, len(federation.hub))
    setting = plan.setting(config.names)
    evaluator = Evaluator(dataset.test_images, dataset.test_labels.to(device), None, setting)
    aggregate = aggregate_of(config)
    placement = Branches(
        mailbox,
        federation,
        config.gate,
        method=method,
        plan=plan,
        run=roster.run,
        aggregate=aggregate,
        count=evaluator.count,
        on_train=asked.update,
    )
    clients, gate = len(federation.declared), config.gate
    exchanger = Exchanger(placement, clients, config.engine.block, gate.quorum, aggregate)
    parts = dataset, split, federation, evaluator, Loop(setting), exchanger
    return Experiment(config, method, *parts)


def _name(config: Config) -> str:
    """Of this run among those that a branch knows. Nothing random follows from it."""
    return hashlib.sha256(f"{fingerprint(config)} {time.time_ns()}".encode()).hexdigest()[:16]

"""From a configuration to all that a run needs: data handed out, models, an engine."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedglean.data.dataset import Dataset
from fedglean.data.federation import Federation, divide
from fedglean.data.labels import make_split
from fedglean.data.partition import Split
from fedglean.data.party_folders import hub_images
from fedglean.data.sources import load
from fedglean.data.split_file import fitted, load_split
from fedglean.engine.auto import faster
from fedglean.engine.batches import Setting
from fedglean.engine.clients import Clients
from fedglean.engine.device import chosen_device, settled
from fedglean.engine.executor import Executor
from fedglean.engine.placement import Exchanger, Placement
from fedglean.errors import ConfigError
from fedglean.exchange.aggregate import MEAN, Aggregate
from fedglean.inputs.views import Recipe
from fedglean.method import Hub, Method
from fedglean.models import Architecture, Model
from fedglean.randomness import fold_int
from fedglean.runs.config import AUTO, Config, make_method
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.kinds import Kind, kind_of
from fedglean.sealed import cache_folder


@dataclass(frozen=True)
class Experiment:
    """One run, ready to start."""

    config: Config
    method: Method
    dataset: Dataset
    split: Split
    federation: Federation
    evaluator: Evaluator
    executor: Executor
    exchanger: Exchanger

    @property
    def placement(self) -> Placement:
        return self.exchanger.placement

    def start(self) -> Any:
        """The hub's state before the first round."""
        return self.method.start(ModelMaker(self.config, self.dataset))

    def hub(self, round: int) -> Hub:
        """What the hub sees in a round."""
        federation = self.federation
        return Hub(
            round, self.config.rounds, federation.hub, federation.declared, self.key("hub", round)
        )

    @property
    def device(self) -> torch.device:
        return self.federation.hub.index.device

    def key(self, *names: int | str) -> int:
        return fold_int(self.config.seed, *names)


def prepare(config: Config, split: Split | None = None) -> Experiment:
    """Load, divide and check everything: whatever is wrong with the input is reported here."""
    return prepare_seeds(config, [config.seed], None if split is None else [split])[0]


def prepare_seeds(
    config: Config,
    seeds: Sequence[int],
    splits: Sequence[Split] | None = None,
    dataset: Dataset | None = None,
) -> list[Experiment]:
    """One experiment a seed, which share data set, method and executor and so can share a stack.

    A data set that is there already is not loaded again.
    """
    device = chosen_device(config.engine.device)
    placement = config.names.find("PLACEMENTS", config.engine.placement)
    placement.check(config)
    method = make_method(config)
    dataset = dataset or dataset_of(config)
    configs = [replace(config, seed=seed) for seed in seeds]
    splits = splits or [divide_up(each, dataset) for each in configs]
    splits = [fitted(split, dataset) for split in splits]
    train_images, test_images = dataset.train_images.to(device), dataset.test_images.to(device)
    dataset = replace(dataset, train_images=train_images, test_images=test_images)
    divided = [divide(dataset, split, device) for split in splits]
    for federation, _ in divided:
        method.check(federation.declared, len(federation.hub))
    setting = _setting(config, dataset, device)
    chosen = _executor(config, dataset, divided[0][0], setting)
    executor = config.names.find("EXECUTORS", chosen).make(setting)
    aggregate = aggregate_of(config)
    experiments = []
    for each, split, (federation, truth) in zip(configs, splits, divided, strict=True):
        final = replace(each, engine=replace(each.engine, executor=chosen))
        evaluator = Evaluator(test_images, dataset.test_labels.to(device), truth, setting)
        clients = Clients(federation, executor, each.gate.stretch, aggregate)
        exchanger = Exchanger(
            placement.make(clients, final),
            len(federation.declared),
            each.engine.block,
            each.gate.quorum,
            aggregate,
            observe=evaluator.watch,
            lost=each.gate.lost or 0.0,
        )
        parts = dataset, split, federation, evaluator, executor, exchanger
        experiments.append(Experiment(final, method, *parts))
    return experiments


def settled_for(config: Config) -> AbstractContextManager[None]:
    """A while in which torch is set as the configuration says, which is part of the result."""
    engine = config.engine
    return settled(chosen_device(engine.device), engine.threads, engine.deterministic)


def dataset_of(config: Config) -> Dataset:
    """What a configuration's data section says."""
    data, source = config.data, config.names.find("DATASETS", config.data.name)
    root = None if data.root is None else Path(data.root)
    return load(data.name, root, data.allow_partial, data.images, source, data.form)


def dataset_of_run(config: Config, folder: Path | None) -> Dataset:
    """What a run trained on, read again; of a hub of branches, the hub's own images."""
    if folder is not None and kind_of(folder) is Kind.FEDERATION:
        return hub_images(Path(str(config.data.root)), config.data.form)
    return dataset_of(config)


def _setting(config: Config, dataset: Dataset, device: torch.device) -> Setting:
    tables, engine = config.names.tables, config.engine
    look = dataset.mean, dataset.std, dataset.flip, dataset.pad
    recipe = Recipe(*look, config.strong, tables["VIEWS"], tables["STRONG"])
    dtype = getattr(torch, engine.dtype)
    if device.type == "cpu":
        return Setting(recipe, dtype, 4096)
    return Setting(recipe, dtype, 32768, compile=engine.compile, half=engine.half)


def _executor(config: Config, dataset: Dataset, federation: Federation, setting: Setting) -> str:
    """The executor's name; `auto` replaced by what it stands for here."""
    if config.engine.executor != AUTO:
        return config.engine.executor
    pilots = []
    for unlabelled, labelled in zip(federation.unlabelled, federation.labelled, strict=True):
        pool = unlabelled if len(unlabelled) else labelled
        if len(pool):
            pilots.append(pool)
    del pilots[min(8, config.engine.block) :]
    model = ModelMaker(config, dataset)()
    return faster(model, pilots, setting, cache_folder() / "executors.json")


def aggregate_of(config: Config) -> Aggregate:
    """How a run combines uploads."""
    name = config.gate.aggregate
    if name is None:
        return MEAN
    _, _, value = name.partition(":")
    make = config.names.find("AGGREGATES", name).make
    try:
        found: Aggregate = make(value) if value else make()
    except ValueError as error:  # of somebody's float(value)
        raise ConfigError(f"the aggregate '{name}' cannot be made: {error}") from error
    return found


def divide_up(config: Config, dataset: Dataset) -> Split:
    """Who holds what: as the user's folders say, as a file says, or drawn from the seed."""
    if config.split.file:
        return load_split(Path(config.split.file))
    if dataset.given is not None:
        return dataset.given
    split = config.split
    return make_split(
        dataset.train_labels,
        len(dataset.classes),
        split.clients,
        split.partition,
        split.labels,
        config.seed,
        config.names.find("PARTITIONS", split.partition),
        config.names.find("LAYOUTS", split.labels),
    )


@dataclass(frozen=True)
class ModelMaker:
    """What `Method.start` draws models and keys from."""

    config: Config
    dataset: Dataset

    @property
    def key(self) -> int:
        return fold_int(self.config.seed, "start")

    def __call__(self, name: str = "model", width: float = 1.0) -> Model:
        net, engine = self.config.model, self.config.engine
        channels, height, columns = self.dataset.train_images.shape[1:]
        shape = channels, height, columns
        classes, kind = len(self.dataset.classes), self.config.names.net(net.name)
        architecture = Architecture(net.name, shape, classes, width, net.norm, net.dropout, kind)
        key = fold_int(self.config.seed, "initial", name)
        return architecture.initial(key, getattr(torch, engine.dtype), chosen_device(engine.device))

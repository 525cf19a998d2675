"""A federation small enough for a test, of clients as awkward as they come, and its disguises."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.federation import Federation, divide
from fedglean.data.partition import Split
from fedglean.data.sources import load
from fedglean.inputs.images import Images
from fedglean.method import Method
from fedglean.models.nets import NetKind
from fedglean.randomness import fold_int, order
from fedglean.runs.config import configure
from fedglean.runs.evaluate import Evaluator
from fedglean.runs.experiment import Experiment, prepare_seeds
from fedglean.testing.engines import variant

#: What a model is called that has no name.
NAMELESS = "model-under-test"
#: (labelled, unlabelled) images of the clients; the fourth client's are all of one class.
CLIENTS = ((0, 0), (0, 1), (1, 0), (4, 6), (0, 7), (12, 0), (5, 18), (11, 29))
ONE_CLASS = 3


def small_split(labels: Tensor) -> Split:
    """Two labels a class at the hub, and `CLIENTS`."""
    shuffled = order(fold_int(0, "small split"), len(labels))
    hub = torch.cat([shuffled[labels[shuffled] == kind][:2] for kind in range(10)])
    rest = shuffled[~torch.isin(shuffled, hub)]
    parts: list[Tensor] = []
    for client, counts in enumerate(CLIENTS):
        for count in counts:
            wanted = rest[labels[rest] == ONE_CLASS] if client == 3 else rest
            parts.append(wanted[:count])
            rest = rest[~torch.isin(rest, parts[-1])]
    return Split(hub, tuple(parts[::2]), tuple(parts[1::2]))


def small_experiment(
    method: Method,
    model: str = "cnn",
    norm: str = "static",
    rounds: int = 3,
    use: Path | str | None = None,
    kind: NetKind | None = None,
    shape: tuple[int, int, int] | None = None,
) -> Experiment:
    """The method on `small_split` of the digits, in float64, where rounding hides no mistake.

    No step is recorded. With a `kind` that is the model, with a `shape` images have it.
    """
    options: dict[str, Any] = {
        "device": "cpu",
        "executor": "loop",
        "dtype": "float64",
        "quorum": 0.0,
        "evaluate_every": rounds,
        "use": use,
    }
    config = configure("hub-only", data="digits", model=model, norm=norm, rounds=rounds, **options)
    if kind is not None:
        models = {**config.names.tables["MODELS"], NAMELESS: kind}
        names = replace(config.names, tables={**config.names.tables, "MODELS": models})
        config = replace(config, names=names, model=replace(config.model, name=NAMELESS))
    dataset = load("digits") if shape is None else _of_shape(load("digits"), shape)
    split = small_split(dataset.train_labels)
    (experiment,) = prepare_seeds(config, [config.seed], [split], dataset)
    method.check(experiment.federation.declared, len(experiment.federation.hub))
    return variant(replace(experiment, method=method))


def _of_shape(dataset: Dataset, shape: tuple[int, int, int]) -> Dataset:
    """Every pixel, in every channel, as often as it takes."""
    channels, height, width = shape

    def stretched(images: Tensor) -> Tensor:
        rows = torch.arange(height) * images.shape[2] // height
        columns = torch.arange(width) * images.shape[3] // width
        return images[:, :, rows][..., columns].expand(-1, channels, -1, -1).contiguous()

    return replace(
        dataset,
        train_images=stretched(dataset.train_images),
        test_images=stretched(dataset.test_images),
        mean=dataset.mean * channels,
        std=dataset.std * channels,
    )


def with_false_labels(experiment: Experiment) -> Experiment:
    """The same images in the same hands, under false hidden labels, elsewhere in the store."""
    dataset, split = experiment.dataset, experiment.split
    moved = order(fold_int(0, "disguise"), len(dataset.train_labels))
    place = torch.argsort(moved)
    images, labels = dataset.train_images[moved], dataset.train_labels[moved].clone()
    hidden = torch.cat([place[part] for part in split.unlabelled])
    labels[hidden] = _false(labels[hidden])
    labelled = tuple(place[part] for part in split.labelled)
    unlabelled = tuple(place[part] for part in split.unlabelled)
    split = Split(place[split.hub], labelled, unlabelled)
    dataset = replace(dataset, train_images=images, train_labels=labels)
    federation, truth = divide(dataset, split, torch.device("cpu"))
    evaluator = replace(experiment.evaluator, truth=truth)
    return _handed_out(replace(experiment, dataset=dataset, split=split), federation, evaluator)


def with_false_test_set(experiment: Experiment) -> Experiment:
    """Other test images under other labels."""
    old = experiment.dataset
    images, labels = old.test_images.flip(0, 2, 3), _false(old.test_labels)
    dataset = replace(old, test_images=images, test_labels=labels)
    evaluator = replace(experiment.evaluator, test_images=images, test_labels=labels)
    return _handed_out(replace(experiment, dataset=dataset), experiment.federation, evaluator)


def with_own_stores(experiment: Experiment) -> Experiment:
    """Every party has a store of its own images alone; none watches guesses, which name places."""
    old = experiment.federation
    labelled, unlabelled = [], []
    for pair in zip(old.labelled, old.unlabelled, strict=True):
        index = torch.cat([images.index for images in pair])
        places = torch.split(torch.arange(len(index)), [len(images) for images in pair])
        store = pair[0].store[index]
        labelled.append(Images(store, places[0], pair[0].label))
        unlabelled.append(Images(store, places[1], pair[1].label))
    hub = Images(old.hub.store[old.hub.index], torch.arange(len(old.hub)), old.hub.label)
    federation = Federation(hub, tuple(labelled), tuple(unlabelled))
    experiment = replace(experiment, federation=federation)
    return variant(experiment, observe=None)


def _false(labels: Tensor) -> Tensor:
    return (labels + 1 + torch.arange(len(labels)) % 9) % 10


def _handed_out(experiment: Experiment, federation: Federation, evaluator: Evaluator) -> Experiment:
    experiment = replace(experiment, federation=federation, evaluator=evaluator)
    return variant(experiment, observe=evaluator.watch)

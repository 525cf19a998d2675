"""Who may see what: a party's objects hold no label that it does not have."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedglean.data.partition import Split
from fedglean.data.sources import Dataset
from fedglean.inputs.images import Images
from fedglean.method import Declared, Me
from fedglean.tree import Tree


@dataclass(frozen=True)
class Truth:
    """The labels of all training images, by index; only the evaluator has them."""

    labels: Tensor


@dataclass(frozen=True)
class Federation:
    """What the hub and each client hold, on the device where they train."""

    hub: Images
    labelled: tuple[Images, ...]
    unlabelled: tuple[Images, ...]

    @cached_property
    def declared(self) -> tuple[Declared, ...]:
        pairs = zip(self.labelled, self.unlabelled, strict=True)
        return tuple(Declared(len(labelled), len(unlabelled)) for labelled, unlabelled in pairs)

    def me(self, number: int, state: Tree, key: int) -> Me:
        """What client `number` sees of the world."""
        return Me(number, self.labelled[number], self.unlabelled[number], state, key)


def divide(dataset: Dataset, split: Split, device: torch.device) -> tuple[Federation, Truth]:
    """Hand out the images; labels that nobody was given go into `Truth` and nowhere else."""
    store, truth = dataset.train_images.to(device), dataset.train_labels.to(device)

    def with_labels(index: Tensor) -> Images:
        index = index.to(device)
        return Images(store, index, truth[index])

    labelled = tuple(with_labels(index) for index in split.labelled)
    unlabelled = tuple(Images(store, index.to(device)) for index in split.unlabelled)
    return Federation(with_labels(split.hub), labelled, unlabelled), Truth(truth)

"""Who may see what: a party's objects hold no label that it does not have; only the evaluator's
`Truth` has all.
"""

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
    """The labels of all training images, by index into the store. Nothing that trains may hold
    one.
    """

    labels: Tensor


@dataclass(frozen=True)
class Federation:
    """What the hub and each client hold, on the device where they train."""

    hub: Images
    labelled: tuple[Images, ...]
    unlabelled: tuple[Images, ...]

    @cached_property
    def declared(self) -> tuple[Declared, ...]:
        return tuple(
            Declared(len(a), len(b)) for a, b in zip(self.labelled, self.unlabelled, strict=True)
        )

    def me(self, number: int, state: Tree, key: int) -> Me:
        """What client `number` sees of the world."""
        return Me(number, self.labelled[number], self.unlabelled[number], state, key)


def divide(dataset: Dataset, split: Split, device: torch.device) -> tuple[Federation, Truth]:
    """Hand out the images; labels that nobody was given go into `Truth` and nowhere else."""
    store, truth = dataset.train_images.to(device), dataset.train_labels.to(device)

    def known(index: Tensor) -> Images:
        index = index.to(device)
        return Images(store, index, truth[index])

    def unknown(index: Tensor) -> Images:
        return Images(store, index.to(device))

    federation = Federation(
        known(split.hub), tuple(map(known, split.labelled)), tuple(map(unknown, split.unlabelled))
    )
    return federation, Truth(truth)

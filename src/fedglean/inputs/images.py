"""Some images of one party with the labels that it may know, and a model's predictions for them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Pixels by index into a store, so that a client's set, parts of it and a batch share one copy.

    `label` holds what this party knows or believes: classes (n), soft labels (n x classes), or
    None.
    """

    store: Tensor
    index: Tensor
    label: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def pixels(self, positions: Tensor) -> Tensor:
        """uint8, of the positions' shape followed by C x H x W."""
        return self.store[self.index[positions]]

    def labelled(self, label: Tensor) -> "Images":
        """The same images under other labels."""
        return replace(self, label=label)

    def subset(self, mask: Tensor) -> "Images":
        """The images where the mask is true."""
        label = None if self.label is None else self.label[mask]
        return Images(self.store, self.index[mask], label)

    def __add__(self, other: "Images") -> "Images":
        if self.store is not other.store:
            raise ValueError(
                "images of two stores cannot be one set: an index means another image in each"
            )
        label = None
        if self.label is not None and other.label is not None:
            label = torch.cat([self.label, other.label])
        return Images(self.store, torch.cat([self.index, other.index]), label)


@dataclass(frozen=True)
class Predictions:
    """Class probabilities, one row per image. From the `threshold` on, a guess is trusted.

    A tensor is a threshold by class, or by image if it is of n x 1.
    """

    images: Images
    probabilities: Tensor
    threshold: float | Tensor | None = None

    @property
    def hard(self) -> Images:
        """All images, each labelled with its likeliest class."""
        return self.images.labelled(self.probabilities.argmax(-1))

    @property
    def trusted(self) -> Tensor:
        """Which guesses reach the threshold."""
        confidence, likeliest = self.probabilities.max(-1)
        threshold = self.threshold
        if threshold is None:
            return torch.ones_like(confidence, dtype=torch.bool)
        if isinstance(threshold, Tensor):
            threshold = threshold[:, 0] if threshold.dim() == 2 else threshold[likeliest]
        return confidence >= threshold

    @property
    def confident(self) -> Images:
        """Only the trusted images, each labelled with its likeliest class; falsy if none is."""
        return self.hard.subset(self.trusted)

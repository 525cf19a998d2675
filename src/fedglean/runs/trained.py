"""A trained model outside its run: its predictors, and what is to be known to use them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglean import tree
from fedglean.data.photos import AS_THEY_ARE, ImageForm
from fedglean.errors import DataError, unknown
from fedglean.runs.evaluate import Predictor, plain_logits


@dataclass(frozen=True)
class ImageLabels:
    """The likeliest class of each image, and all probabilities, images x classes."""

    labels: list[str]
    probabilities: Tensor


@dataclass(frozen=True)
class TrainedModel:
    """The predictors by name, the result first; mean and deviation are of pixels in 0 to 1.

    `form` is what the images were brought to, if a size was named.
    """

    predictors: Mapping[str, Predictor]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    form: ImageForm = AS_THEY_ARE

    @property
    def name(self) -> str:
        return next(iter(self.predictors))

    @property
    def first(self) -> Predictor:
        return self.predictors[self.name]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that it takes."""
        return self.first.architecture.shape

    def only(self, name: str) -> "TrainedModel":
        """Without its other predictors."""
        if name not in self.predictors:
            raise unknown("predictor", name, self.predictors)
        return replace(self, predictors={name: self.predictors[name]})

    def to(self, device: torch.device) -> "TrainedModel":
        return replace(self, predictors=tree.to_device(dict(self.predictors), device))

    def logits(self, images: Tensor) -> Tensor:
        """Of the first predictor, for uint8 images."""
        return plain_logits(self.first, images, self.mean, self.std)

    def predict(self, images: Tensor) -> ImageLabels:
        """Label uint8 images, n x channels x height x width, as those that it was trained on."""
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != tuple(self.shape):
            kind = str(images.dtype).removeprefix("torch.")
            raise DataError(
                f"images must be uint8, n x {_product(self.shape)}; these are {kind}, "
                f"{_product(images.shape)}"
            )
        probabilities = self.logits(images).double().softmax(-1).cpu()
        labels = [self.classes[best] for best in probabilities.argmax(-1).tolist()]
        return ImageLabels(labels, probabilities)


def _product(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))

"""Label image files with a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedglean.data.photos import pixels_of, read_image
from fedglean.errors import DataError
from fedglean.runs.config import make_method
from fedglean.runs.experiment import dataset_of
from fedglean.runs.folder import RunFolder
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.trained import TrainedModel
from fedglean.trust import allow


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of an image, and the probabilities of all classes."""

    path: Path
    label: str
    probability: float
    probabilities: dict[str, float]


def predict(
    folder: Path | str,
    images: Sequence[Path | str] | Path | str,
    tell: Callable[[str], None] = lambda sentence: None,
    trust: bool = False,
) -> list[Prediction]:
    """Label image files with a run's first predictor.

    For example `predict("runs/first", ["some.png"])[0].label`. Images are brought to a size as
    those of training were (`image_size`); without one, they are scaled to what the model takes,
    and `tell` hears of that, because the model was not trained on such. With `trust`, code that
    the folder names may run. Of a run that is not at its end, the model is that of the last
    finished round.
    """
    if trust:
        allow(folder)
    if isinstance(images, Path | str):
        images = [images]
    paths = [Path(image) for image in images]
    model = _model_of(RunFolder(Path(folder)), tell)
    if not paths:
        return []
    found = model.predict(_pixels(paths, model, tell))
    predictions = []
    for path, label, row in zip(paths, found.labels, found.probabilities.tolist(), strict=True):
        probabilities = dict(zip(model.classes, row, strict=True))
        predictions.append(Prediction(path, label, probabilities[label], probabilities))
    return predictions


def _model_of(run: RunFolder, tell: Callable[[str], None]) -> TrainedModel:
    found = None
    if not run.model_path.exists() and kind_of(run.path) is Kind.RUN:  # hubs scale in another way
        found = run.state()
    if found is None:
        return run.model()
    done, state = found
    config = run.config()
    tell(f"{run.path} is not finished; this is its model after round {done} of {config.rounds}")
    dataset = dataset_of(config)
    predictors = dict(make_method(config).predictors(state))
    return TrainedModel(predictors, dataset.classes, dataset.mean, dataset.std, config.data.form)


def _pixels(paths: list[Path], model: TrainedModel, tell: Callable[[str], None]) -> Tensor:
    """As the images of training; where these had no size by name, scaled to the model's."""
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder; name the images in it, such as {path}/*.png")
        if not path.exists():
            raise DataError(f"there is no image {path}")
    channels, height, width = model.shape
    if model.form.size is not None:
        return pixels_of(paths, replace(model.form, channels=channels))
    images, others = [], []
    for path in paths:
        image = read_image(path).convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            others.append(f"{path}: {image.width} x {image.height} pixels")
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.array(image, dtype=np.uint8)
        images.append(torch.from_numpy(pixels.reshape(height, width, channels)).permute(2, 0, 1))
    if others:
        more = f" and {len(others) - 1} more images" if len(others) > 1 else ""
        tell(f"{others[0]}{more}, scaled to the model's {width} x {height}")
    return torch.stack(images)

"""What a page says of a run's data and final model: who holds what, and where it is wrong."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedglean.data.dataset import Dataset
from fedglean.data.own import UNKNOWN
from fedglean.data.split_file import fitted, of_this, split_digest
from fedglean.errors import DataError, FedgleanError
from fedglean.report.bubbles import holder_names, holdings
from fedglean.runs.experiment import dataset_of_run, divide_up
from fedglean.runs.kinds import Kind, kind_of
from fedglean.runs.run import Run

EXAMPLES = 24
HOLDERS = 201
LARGEST = 128

Found = dict[str, Any]


@dataclass
class ModelReport:
    """Remembers what it found, so that a page that is made again and again costs little."""

    data: dict[Any, Dataset] = field(default_factory=dict)
    found: dict[Any, Found] = field(default_factory=dict)

    def holders(self, run: Run) -> Found:
        """Images by holder and class; or, as `missing`, why that cannot be told."""
        return self._remember("split.json", run, self._holders)

    def draws_its_split(self, run: Run) -> bool:
        """Whether its configuration makes its split again; a comparison's references had others."""
        return bool(self._remember("split.json", run, self._compare_split).get("drawn", True))

    def examples(self, run: Run) -> Found:
        """Confusion and examples of the final model; or, as `missing`, why there are none."""
        found = self._of_the_model(run)
        return {name: value for name, value in found.items() if name != "right"}

    def right(self, run: Run) -> Tensor | None:
        """1 for every test image that the final model has right, else 0; None where untold."""
        return self._of_the_model(run).get("right")

    def _of_the_model(self, run: Run) -> Found:
        if not run.finished or not run.tested:
            return {"missing": "The run is not finished; its final model is examined when it is."}
        return self._remember("model.safetensors", run, self._examine)

    def _remember(self, name: str, run: Run, look: Callable[[Run], Found]) -> Found:
        """What was found before of a file as it is now."""
        try:
            file = Path(run.folder or "") / name
            key = look.__name__, file, file.stat().st_mtime_ns
            if key not in self.found:
                self.found[key] = look(run)
            return self.found[key]
        except (FedgleanError, OSError) as error:
            return {"missing": f"This cannot be shown here: {error}."}

    def _compare_split(self, run: Run) -> Found:
        drawn = divide_up(run.config, self._dataset(run))
        return {"drawn": split_digest(drawn) == split_digest(run.split)}

    def _dataset(self, run: Run) -> Dataset:
        key = run.config.data, _has_branches(run)
        if key not in self.data:
            self.data[key] = dataset_of_run(run.config, run.folder)
        return self.data[key]

    def _holders(self, run: Run) -> Found:
        dataset = self._dataset(run)
        split = (of_this if _has_branches(run) else fitted)(run.split, dataset)
        held = sum(map(len, (split.hub, *split.labelled, *split.unlabelled)))
        unseen = held - len(dataset.train_labels)
        labels = torch.cat([dataset.train_labels, torch.full((max(0, unseen),), UNKNOWN)])
        known, hidden = holdings(split, labels, len(dataset.classes))
        columns = len(dataset.classes) + bool((known + hidden)[:, -1].any())
        return {
            "names": holder_names(split)[:HOLDERS],
            "classes": [*dataset.classes, "unknown"][:columns],
            "labelled": known[:HOLDERS, :columns].tolist(),
            "unlabelled": hidden[:HOLDERS, :columns].tolist(),
            "clients": len(known) - 1,
            "total": [int(known.sum()), int(hidden.sum())],
        }

    def _examine(self, run: Run) -> Found:
        dataset, model = self._dataset(run), run.model
        images = dataset.test_images
        if not len(images) or tuple(images.shape[1:]) != tuple(model.shape):
            what = f"the data set {dataset.name} found here"
            raise DataError(f"{what} has no test images of the model's size")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        chances = model.only(model.name).to(device).logits(images).double().softmax(-1).cpu()
        if not bool(torch.isfinite(chances).all()):
            raise DataError("the final model's answers are not numbers, so its training diverged")
        told = run.tested[-1]["accuracy"][model.name]
        right = (chances.argmax(-1) == dataset.test_labels).double()
        if abs(right.mean() - told) > 0.01:
            raise DataError(
                f"the model has {right.mean():.1%} on the test images found here, but had "
                f"{told:.1%} in its run, so these are other images"
            )
        classes = len(model.classes)
        pairs = dataset.test_labels * classes + chances.argmax(-1)  # of truth and guess
        confusion = torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
        return {
            "classes": list(model.classes),
            "confusion": confusion.tolist(),
            "examples": _examples(images, dataset.test_labels, chances),
            "wrong": int((1 - right).sum()),
            "tested": len(chances),
            "right": right,
        }


def _has_branches(run: Run) -> bool:
    """Whether it trained on real branches; their images are numbers beyond the hub's own."""
    return run.folder is not None and kind_of(run.folder) is Kind.FEDERATION


def _examples(images: Tensor, truth: Tensor, chances: Tensor) -> list[dict[str, Any]]:
    """Those that were judged wrongly, the most confident first."""
    sure, guess = chances.max(-1)
    order = torch.where(guess != truth, sure, -1.0).argsort(descending=True, stable=True)
    examples = []
    for place in order[:EXAMPLES].tolist():
        if guess[place] != truth[place]:
            example = {"place": place, "image": _png(images[place])}
            example |= {"truth": int(truth[place]), "guess": int(guess[place])}
            example |= {"sure": float(sure[place]), "truly": float(chances[place, truth[place]])}
            examples.append(example)
    return examples


def _png(image: Tensor) -> str:
    """The image as a data address; grey, or the first three channels as colours."""
    pixels = image.cpu().numpy()
    pixels = pixels[0] if len(pixels) < 3 else np.ascontiguousarray(pixels[:3].transpose(1, 2, 0))
    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

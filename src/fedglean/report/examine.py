"""A finished run's model on the test set once more: what it takes for what, and where it is sure
and wrong.
"""

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedglean import tree
from fedglean.data.dataset import Dataset
from fedglean.data.own import UNKNOWN
from fedglean.data.party_folders import hub_images
from fedglean.data.split_file import fitted, of_this, split_digest
from fedglean.errors import DataError, FedgleanError
from fedglean.report.bubbles import holder_names, holdings
from fedglean.report.gather import Told
from fedglean.runs.evaluate import plain_logits
from fedglean.runs.experiment import dataset_of, divide_up

EXAMPLES = 24
HOLDERS = 201
LARGEST = 128


@dataclass
class Examiner:
    """Remembers what it found, so that a page that is made again and again costs little."""

    data: dict[Any, Dataset] = field(default_factory=dict)
    found: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def holders(self, run: Told) -> dict[str, Any]:
        """Images by holder and class; or, as `missing`, why that cannot be told."""
        return self._once("holders", run, run.folder.path / "split.json", self._holders)

    def drawn(self, run: Told) -> bool:
        """Whether its configuration makes its split again: references of a comparison, for one,
        were given another.
        """
        return bool(
            self._once("drawn", run, run.folder.path / "split.json", self._drawn).get("drawn", True)
        )

    def _drawn(self, run: Told) -> dict[str, Any]:
        return {
            "drawn": split_digest(divide_up(run.config, self._dataset(run)))
            == split_digest(run.split)
        }

    def exam(self, run: Told) -> dict[str, Any]:
        """Confusion and examples of the final model; or, as `missing`, why there are none."""
        return {name: value for name, value in self._examined(run).items() if name != "right"}

    def right(self, run: Told) -> Tensor | None:
        """1 for every test image that the final model labels rightly, 0 for the others; None where
        `exam` has none.
        """
        return self._examined(run).get("right")

    def _examined(self, run: Told) -> dict[str, Any]:
        if not run.finished or not run.tested:
            return {"missing": "The run is not finished; its final model is examined when it is."}
        return self._once("exam", run, run.folder.model_path, self._exam)

    def _once(self, what: str, run: Told, file: Path, look: Any) -> dict[str, Any]:
        try:
            key = what, file, file.stat().st_mtime_ns
            if key not in self.found:
                self.found[key] = look(run)
            return self.found[key]
        except (FedgleanError, OSError) as error:
            return {"missing": f"This cannot be shown here: {error}."}

    def _dataset(self, run: Told) -> Dataset:
        key = run.config.data, run.federation
        if key not in self.data:
            self.data[key] = _of_the_hub(run) if run.federation else dataset_of(run.config)
        return self.data[key]

    def _holders(self, run: Told) -> dict[str, Any]:
        dataset = self._dataset(run)
        split = (of_this if run.federation else fitted)(run.folder.split(), dataset)
        unseen = sum(map(len, (split.hub, *split.labelled, *split.unlabelled))) - len(
            dataset.train_labels
        )
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

    def _exam(self, run: Told) -> dict[str, Any]:
        dataset = self._dataset(run)
        predictors, notes = run.folder.predictors()
        name, predictor = next(iter(predictors.items()))
        classes = list(notes["classes"])
        shape = predictor.architecture.shape
        if not len(dataset.test_images) or tuple(dataset.test_images.shape[1:]) != tuple(shape):
            raise DataError(
                f"the data set {dataset.name} found here has no test images of the model's size"
            )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        output = plain_logits(
            tree.to_device(predictor, device), dataset.test_images, notes["mean"], notes["std"]
        )
        chances = output.double().softmax(-1).cpu()
        if not bool(torch.isfinite(chances).all()):
            raise DataError("the final model's answers are not numbers, so its training diverged")
        told = run.tested[-1]["accuracy"][name]
        right = (chances.argmax(-1) == dataset.test_labels).double()
        if abs(right.mean() - told) > 0.01:
            raise DataError(
                f"the model has {right.mean():.1%} on the test images found here, but had "
                f"{told:.1%} in its run, so "
                "these are other images"
            )
        return {
            "classes": classes,
            "confusion": _confusion(dataset.test_labels, chances.argmax(-1), len(classes)),
            "examples": _examples(dataset.test_images, dataset.test_labels, chances),
            "wrong": int((1 - right).sum()),
            "tested": len(chances),
            "right": right,
        }


def _of_the_hub(run: Told) -> Dataset:
    """What a hub can read again. The images of its branches are numbers beyond its own, and without
    a label.
    """
    return hub_images(Path(str(run.config.data.root))).dataset(())


def _confusion(truth: Tensor, guess: Tensor, classes: int) -> list[list[int]]:
    """Counts, truth by guess."""
    counts = torch.bincount(truth * classes + guess, minlength=classes * classes)
    table: list[list[int]] = counts.reshape(classes, classes).tolist()
    return table


def _examples(images: Tensor, truth: Tensor, chances: Tensor) -> list[dict[str, Any]]:
    """Those that were judged wrongly, the most confident first."""
    sure, guess = chances.max(-1)
    order = torch.where(guess != truth, sure, -1.0).argsort(descending=True, stable=True)
    wrong = [int(place) for place in order[:EXAMPLES] if guess[place] != truth[place]]
    return [
        {
            "place": place,
            "image": _png(images[place]),
            "truth": int(truth[place]),
            "guess": int(guess[place]),
            "sure": float(sure[place]),
            "truly": float(chances[place, truth[place]]),
        }
        for place in wrong
    ]


def _png(image: Tensor) -> str:
    """The image as a data address; grey, or the first three channels as colours."""
    pixels = image.cpu().numpy()
    pixels = pixels[0] if len(pixels) < 3 else np.ascontiguousarray(pixels[:3].transpose(1, 2, 0))
    picture = Image.fromarray(pixels)
    picture.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

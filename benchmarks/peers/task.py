"""The two shapes that every system plays, and their data: synthetic, learnable, the same files for
all.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
TEST = 2000


@dataclass(frozen=True)
class Task:
    """What is trained on what. `turn` is how many rounds are timed together: a single one of S1 is
    too short.
    """

    name: str
    shape: tuple[int, int, int]
    samples: int
    active: int
    rate: float
    turn: int
    contrast: float
    clients: int = 1000
    batch: int = 10


TASKS = {
    "S1": Task("S1", (1, 28, 28), samples=60, active=10, rate=0.01, turn=10, contrast=6.0),
    "S2": Task("S2", (3, 32, 32), samples=50, active=50, rate=0.1, turn=1, contrast=17.0),
}


@dataclass(frozen=True)
class Arrays:
    """Normalised float32 images, clients x samples x C x H x W in training, with int64 labels."""

    train: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def arguments() -> tuple[Task, Path, list[str]]:
    """A worker's command line: the task, where its data lies, and what else the system wants to be
    told.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", type=Path)
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    return TASKS[given.task], given.data, given.more


def read(folder: Path) -> Arrays:
    return Arrays(
        *(
            np.load(folder / f"{name}.npy")
            for name in ("train", "train_labels", "test", "test_labels")
        )
    )


def write(task: Task, folder: Path) -> None:
    """Once as float32 `.npy` for the peers, once as the uint8 `.npz` that fedglean reads; the same
    pixels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    labels = draw.integers(0, CLASSES, task.clients * task.samples + TEST)
    pixels = _drawn(task, labels, draw)
    train, test = pixels[:-TEST], pixels[-TEST:]
    owners = np.repeat(np.arange(task.clients), task.samples)
    np.savez(
        folder / "own.npz",
        client_images=train,
        client_labels=labels[:-TEST],
        client_ids=owners,
        test_images=test,
        test_labels=labels[-TEST:],
    )
    mean, std = train.mean((0, 2, 3), keepdims=True), train.std((0, 2, 3), keepdims=True)
    by_client = (task.clients, task.samples)
    np.save(
        folder / "train.npy",
        ((train - mean) / std).astype(np.float32).reshape(*by_client, *task.shape),
    )
    np.save(folder / "train_labels.npy", labels[:-TEST].reshape(by_client))
    np.save(folder / "test.npy", ((test - mean) / std).astype(np.float32))
    np.save(folder / "test_labels.npy", labels[-TEST:])


def _drawn(task: Task, labels: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.uint8]:
    """A smooth pattern a class under so much noise that a few rounds do not learn all of it."""
    channels, height, width = task.shape
    coarse = draw.normal(0, task.contrast, (CLASSES, channels, height // 4, width // 4))
    patterns = coarse.repeat(4, 2).repeat(4, 3)
    noise = draw.normal(128, 60, (len(labels), *task.shape)).astype(np.float32)
    return np.clip(noise + patterns[labels].astype(np.float32), 0, 255).astype(np.uint8)

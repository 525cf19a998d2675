"""Small runs, and the page as a browser reads it, for tests of what shows them."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import Result
from typer.testing import CliRunner

from fedglean import cli
from fedglean.runs.config import Config, configure
from fedglean.runs.run import Runs
from fedglean.runs.seeds import train_seeds
from single_runs import run

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def config(method: str = "semifl", **options: Any) -> Config:
    small: dict[str, Any] = {
        "model": "mlp",
        "clients": 6,
        "rounds": 3,
        "labels": "hub:50",
        "device": "cpu",
    }
    if "data" in options:  # which says by itself who holds what
        del small["clients"], small["labels"]
    own = {"semifl": {"active": 0.5, "epochs": 1, "threshold": 0.3}}.get(method, {})
    return configure(method, **small | own | {"executor": "loop"} | options)


class Made:
    """Runs that several tests look at and none changes."""

    def __init__(self, folder: Path) -> None:
        self.all = folder
        self.semifl: Runs = train_seeds(config(), 2, folder / "semifl")
        self.alone: Runs = train_seeds(config("hub-only"), 2, folder / "hub-only")


def hostile_runs(folder: Path) -> Path:
    """A run whose classes and folder are named to break out of the page."""
    images, labels = (
        np.random.default_rng(0).integers(0, 256, (50, 8, 8), np.uint8),
        np.arange(20) % 4,
    )
    np.savez(
        folder / "own.npz",
        hub_images=images[:20],
        hub_labels=labels,
        client_images=images[20:],
        client_ids=np.arange(30) % 3,
        test_images=images[:20],
        test_labels=labels,
        classes=np.array([HOSTILE, "<b>", "a", "b"]),
    )
    place = folder / "<img src=x onerror=alert(2)>"
    run(config(data="npz", data_root=str(folder / "own.npz"), rounds=1, active=1.0), place)
    return place


def without_checkpoint(run: Path, copy: Path) -> None:
    """A copy whose history a test may write anew: a checkpoint would notice."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoint"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Reader(HTMLParser):
    """The page as a browser's parser sees it: its tags, and the text of its data and its title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.within, self.texts = "", {"data": "", "title": ""}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.within = "data" if ("id", "data") in attributes else tag

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, text: str) -> None:
        if self.within in self.texts:
            self.texts[self.within] += text


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])

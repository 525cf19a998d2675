"""Global random generators, which nothing in a run may touch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def untouched_generators(seed: int) -> Iterator[None]:
    """Global generators stand at `seed` inside, must not move, and are put back."""
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    before = positions()
    try:
        yield
        after = positions()
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])
        random.setstate(saved[2])
    for name, position in before.items():
        assert after[name] == position, (
            f"{name}'s global generator was used; draw from fedglean.randomness with a key: "
            "batch.key in a loss, me.key or hub.key elsewhere"
        )


def positions() -> dict[str, Any]:
    """Where torch's, numpy's and Python's own generator stand, comparable."""
    kind, words, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (kind, np.asarray(words).tobytes(), *rest),
        "random": random.getstate(),
    }

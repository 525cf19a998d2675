"""Methods' coroutines, driven by hand."""

from collections.abc import Coroutine
from typing import Any


def first_request(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What it awaits first; None if it only returns."""
    try:
        return coroutine.send(None)
    except StopIteration:
        return None

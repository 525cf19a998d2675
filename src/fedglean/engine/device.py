"""The device on which a party computes, and what of it decides the last bits."""

import ctypes
import os
from contextlib import suppress

import torch

from fedglean.errors import ConfigError

#: Of malloc.h: how many blocks may be mapped one by one, and what is free at the end of the heap
#: before it is returned.
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1


def chosen_device(name: str) -> torch.device:
    """The device of that name; `auto` is cuda if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "the device is 'cuda', but torch finds no CUDA device here; use 'cpu' or 'auto'"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def settle(device: torch.device, threads: int, deterministic: bool) -> None:
    """Set the number of threads, what becomes of freed memory, and which kernels CUDA may
    choose.
    """
    torch.set_num_threads(threads)
    _keep_freed_memory()
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.benchmark = not deterministic
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def _keep_freed_memory() -> None:
    """Left to itself, glibc returns every block of over 32 MB at once and has it filled with zeros
    the next time, page by page: a third of the seconds of a convolution in large batches.
    """
    with suppress(OSError, AttributeError, TypeError):  # other systems than Linux with glibc
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_MMAP_MAX, 0)
        glibc.mallopt(_TRIM_THRESHOLD, -1)

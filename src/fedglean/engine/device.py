"""The device on which a party computes, and what of it decides the last bits."""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch

from fedglean.errors import ConfigError

#: Of malloc.h: how many blocks may be mapped one by one, and what is free at the end of the heap
#: before it is returned.
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1
#: Left to itself, glibc returns every block of over 32 MB at once and has it filled with zeros the
#: next time, page by page: a third of the seconds of a convolution in large batches.
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
_GLIBC = {_MMAP_MAX: 65_536, _TRIM_THRESHOLD: 128 * 1024}
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def chosen_device(name: str) -> torch.device:
    """The device of that name; `auto` is cuda if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "the device is 'cuda', but torch finds no CUDA device here; use 'cpu' or 'auto'"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def settled(device: torch.device, threads: int, deterministic: bool) -> Iterator[None]:
    """What `settle` sets, for a while: torch is then as it was before.

    glibc does not tell what its allocator was set to, so that gets glibc's own defaults back, and
    what it kept is returned.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = torch.get_num_threads()
    kernels = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    is_strict = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(_WORKSPACE)
    settle(device, threads, deterministic)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = kernels
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        _set_allocator(_GLIBC)


def settle(device: torch.device, threads: int, deterministic: bool) -> None:
    """Set threads, what becomes of freed memory, and which kernels CUDA may choose, for good."""
    torch.set_num_threads(threads)
    _set_allocator(_KEEPING)
    if device.type == "cuda":
        os.environ.setdefault(_WORKSPACE, ":4096:8")
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.benchmark = not deterministic
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def _set_allocator(options: Mapping[int, int]) -> None:
    with suppress(OSError, AttributeError, TypeError):  # other systems than Linux with glibc
        glibc = ctypes.CDLL(None)
        for option, value in options.items():
            glibc.mallopt(option, value)
        if options is _GLIBC:
            glibc.malloc_trim(0)

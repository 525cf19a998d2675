"""The device on which a party computes, and what of it decides the last bits."""

import os

import torch

from fedglean.errors import ConfigError


def chosen_device(name: str) -> torch.device:
    """The device of that name; `auto` is cuda if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("the device is 'cuda', but torch finds no CUDA device here; use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def settle(device: torch.device, threads: int, deterministic: bool) -> None:
    """Set the number of threads, and which kernels CUDA may choose."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.benchmark = not deterministic
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

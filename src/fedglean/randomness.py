"""Random numbers as a pure function of names, never of what ran before.

A key is a 64-bit integer, folded over names: `key(seed, "client", round, number)`. Everything
random is drawn from a key, so the order of clients, the engine and a resumed run cannot change it.
torch's generators are not used: their numbers depend on how many were drawn before, on the device
and on the shape of the batch.

Keys are Python integers on the host and int64 tensors where many are needed at once; `fold` takes
both and agrees with itself. The mixing is splitmix64: two multiplications and three shifts, the
same on every device.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1

Key = int | Tensor
Name = int | str | Tensor
Device = torch.device | str | None


def _signed(value: int) -> int:
    value &= _WORD
    return value - (1 << 64) if value >> 63 else value


def _mix_int(value: int) -> int:
    z = (value + _STEP) & _WORD
    z = ((z ^ (z >> 30)) * _MIX1) & _WORD
    z = ((z ^ (z >> 27)) * _MIX2) & _WORD
    return _signed(z ^ (z >> 31))


def _mix_tensor(value: Tensor) -> Tensor:
    # int64 arithmetic wraps; >> keeps the sign, so the copied sign bits are masked away.
    z = value + _signed(_STEP)
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(_MIX1)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(_MIX2)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def of_text(text: str) -> int:
    """The number of a name: a constant to a compiled step, which must not look inside."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _number(name: Name) -> int | Tensor:
    if isinstance(name, str):
        return of_text(name)
    # Beside a scalar key a narrower integer tensor would make the sum as narrow as itself.
    return name.long() if isinstance(name, Tensor) else name


def fold(key: Key, *names: Name) -> Key:
    """The key of a named part. Tensors broadcast: `fold(keys[:, None], positions)` is a table."""
    for name in names:
        number = _number(name)
        # The key is mixed before the name is added: sums alone would collide.
        if isinstance(key, Tensor) or isinstance(number, Tensor):
            device = key.device if isinstance(key, Tensor) else number.device  # type: ignore[union-attr]
            key = _mix_tensor(_mix_tensor(torch.as_tensor(key, device=device)) + number)
        else:
            key = _mix_int(_mix_int(key) + number)
    return key


def key(seed: int, *names: Name) -> Key:
    """The root of all keys of one run is its seed."""
    return fold(_mix_int(_signed(seed)), *names)


def fold_int(start: int, *names: int | str) -> int:
    """`fold` on the host alone."""
    folded = fold(start, *names)
    assert isinstance(folded, int)
    return folded


def bits(key: Key, shape: Sequence[int] = (), device: Device = None) -> Tensor:
    """Random int64 of `key`'s own shape followed by `shape`."""
    start = key if isinstance(key, Tensor) else torch.tensor(key, device=device)
    count = math.prod(shape)
    draws = torch.arange(count, device=start.device)
    return _mix_tensor(_mix_tensor(start)[..., None] + draws).reshape((*start.shape, *shape))


def uniform(key: Key, shape: Sequence[int] = (), device: Device = None) -> Tensor:
    """float64 in [0, 1) of 53 bits; a cast to float32 may give 1, so compare before you cast."""
    return ((bits(key, shape, device) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def normal(key: Key, shape: Sequence[int] = (), device: Device = None) -> Tensor:
    """Standard normal float64, by Box and Muller from two uniforms."""
    radius = torch.sqrt(-2 * torch.log1p(-uniform(fold(key, "radius"), shape, device)))
    return radius * torch.cos(2 * math.pi * uniform(fold(key, "angle"), shape, device))


def order(key: Key, count: int, device: Device = None) -> Tensor:
    """A permutation of range(count), or one per key."""
    return torch.argsort(bits(key, (count,), device), dim=-1, stable=True)


def beta(key: Key, a: float, b: float, shape: Sequence[int] = (), rounds: int = 64) -> Tensor:
    """Beta(a, b), both at most 1, by Johnk's rejection; a fixed number of tries can be lifted.

    Each succeeds with probability at least 1/2; after 64 failures in a row the first try stands.
    """
    x = uniform(fold(key, "x"), (*shape, rounds)) ** (1 / a)
    y = uniform(fold(key, "y"), (*shape, rounds)) ** (1 / b)
    ok = (x + y <= 1) & (x + y > 0)
    first = torch.argmax(ok.to(torch.int8), dim=-1, keepdim=True)
    x, y = x.gather(-1, first)[..., 0], y.gather(-1, first)[..., 0]
    return x / (x + y)


def generator(key: int) -> np.random.Generator:
    """numpy's generator for one purpose on the host: torch has no pure gamma and Dirichlet."""
    return np.random.Generator(np.random.Philox(key=key & _WORD))

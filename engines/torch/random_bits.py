"""Random numbers by counter: a number depends on its key and its index alone, on every device and in every batch.

Integer arithmetic and one rounding each, so that weights by seed are the same on every machine, and the noise that
draws a token is the same whatever else is in the batch.  The mixer is a bijection of 32 bits found by search
(C. Wellons, "hash-prospector", constants 21f0aaad and d35a2d97); keys are mixed by splitmix64 (Steele, Lea and Flood,
"Fast Splittable Pseudorandom Number Generators", OOPSLA'14).
"""

import numpy as np
import numpy.typing as npt
import torch

MASK = 0xFFFFFFFF
PIECE = 1 << 22
"""Numbers made at once, so that temporaries stay small beside the tensor they fill."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

Keys = npt.NDArray[np.uint64]


def key_of(*parts: int) -> int:
    """Return one 64-bit key from integers of any sign and size (each is taken modulo 2^64)."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = keys_of(key, np.array([part % (1 << 64)], dtype=np.uint64))
    return int(key[0])


def keys_of(keys: Keys, parts: Keys) -> Keys:
    """Return each key mixed with its part."""
    with np.errstate(over="ignore"):
        x = (keys ^ parts) + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        mixed: Keys = x ^ (x >> np.uint64(31))
    return mixed


def bits(keys: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits (int64, 0 to 2^32 - 1) for each key and counter, both int64 and broadcast to each other."""
    low, high = keys & MASK, (keys >> 32) & MASK
    return _mix(_mix((counters + low) & MASK) ^ high)


def _mix(x: torch.Tensor) -> torch.Tensor:
    # Products of 32-bit numbers overflow 64 signed bits; the low 32 bits are right all the same.
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & MASK
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & MASK
    return x ^ (x >> 15)


def fill_uniform(out: torch.Tensor, key: int, limit: float) -> torch.Tensor:
    """Fill `out` (contiguous) with numbers from the open interval (-limit, limit), by key and index; returns `out`."""
    flat = out.view(-1)
    signed = torch.tensor(np.uint64(key).astype(np.int64), device=out.device)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        counters = torch.arange(start, start + piece.numel(), device=out.device)
        # 24 bits and a half are exact in float32, so that the product is the only rounding.
        centred = (bits(signed, counters) >> 8).to(torch.float32) - (2.0**23 - 0.5)
        piece.copy_(centred * (limit * 2.0**-23))
    return out

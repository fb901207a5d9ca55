"""Which probabilities attention drops: a hash of the seed, the row and the key.

``kernels/c/attention_tile.h`` computes it for the few entries that it keeps, the same in both
passes; here it is for whole matrices. The constants are those of Steele, Lea & Flood's SplitMix
(2014), for rows, and of a two-round multiply-and-shift hash, for keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def factors(
    seed: Tensor,
    p: float,
    heads: int,
    queries: int,
    keys: int,
    first: int = 0,
    total: int | None = None,
) -> Tensor:
    """1 / (1 − p) where a probability is kept, else 0: (heads, queries, keys), float32.

    The queries are those from ``first`` on of ``total``.
    """
    head = torch.arange(heads, device=seed.device).unsqueeze(1) * (
        queries if total is None else total
    )
    row = (head + torch.arange(first + 1, first + queries + 1, device=seed.device)).flatten()
    row = _scramble(seed + row * _signed(0x9E3779B97F4A7C15))
    low, high = row & 0xFFFFFFFF, _shift(row, 32)
    key = torch.arange(keys, device=seed.device)
    h = ((key ^ low.unsqueeze(1)) * 0x7FEB352D) & 0xFFFFFFFF
    h = ((h ^ (h >> 15) ^ high.unsqueeze(1)) * 0x846CA68B) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    kept = (h >> 8) >= int(p * 2**24)
    return torch.where(kept, 1.0 / (1.0 - p) if p < 1.0 else 0.0, 0.0).view(heads, queries, keys)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical shift to the right of 64 bits, which torch has as int64 only."""
    return (x >> by) & (2 ** (64 - by) - 1)


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)

"""One call of the attention kernels, for CPUs and for GPUs alike, and its results in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

#: Of query, key, value, alpha, relative keys and relative values; None for what there is not.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]

#: Of what the forward pass keeps of every row for the backward pass: shapes and types.
Saved = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Task(NamedTuple):
    """What the kernels are called with, in the order of their operators; None does not act.

    Results are laid out in memory as (B, L, H, V), as torch's own attention does, so that joining
    the heads copies nothing.
    """

    normalizer: str
    query: Tensor  # (B, H, L, E)
    key: Tensor  # (B, H, S, E)
    value: Tensor  # (B, H, S, V)
    mask: Tensor | None = None  # broadcasts to (B, H, L, S): True = this key takes part
    bias: Tensor | None = None  # broadcasts to (B, H, L, S): added to the scores
    alpha: Tensor | None = None  # (B, H): of alpha-entmax only, and needed there
    relative_keys: Tensor | None = None  # (2w + 1, E): Shaw's; see ``attention/positions.py``
    relative_values: Tensor | None = None  # (2w + 1, V)
    slopes: Tensor | None = None  # (B, H): ALiBi's
    seed: Tensor | None = None  # what dropout drops follows from it
    offset: int = 0  # the place of the first query among the keys
    causal: bool = False
    scale: float = 1.0
    dropout_p: float = 0.0
    #: On a GPU, whether to skip tiles of which nothing is kept. It pays where the kept keys lie
    #: together.
    skip_empty: bool = False

    @property
    def positions(self) -> bool:
        """Whether the distance of a key matters."""
        return any(t is not None for t in (self.relative_keys, self.relative_values, self.slopes))

    @property
    def window(self) -> int:
        """The distance from which on they are all alike; 0 without relative positions."""
        table = self.relative_values if self.relative_keys is None else self.relative_keys
        return 0 if table is None else table.size(0) // 2


def laid_out(like: Tensor, length: int, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty (batch, heads, length, size), in memory (batch, length, heads, size)."""
    batch, heads = like.shape[:2]
    return like.new_empty(batch, length, heads, size, dtype=dtype).transpose(1, 2)


def readable(tensor: Tensor) -> Tensor:
    """The tensor with the entries of a row adjacent in memory, and not marked as negated."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) == 1 else tensor.contiguous()

"""What the distance between a query and a key adds to attention.

Rotary positions need nothing here: they turn queries and keys before attention sees them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Positions(NamedTuple):
    """Position terms of one call; those that are None do not act.

    The distance of key j from query i is j − i − ``offset``. Shaw's relative positions (2018) clip
    it to ±w and have a row for each of the 2w + 1: the score is query · (key + relative key), the
    result the sum of probability · (value + relative value). ALiBi (Press et al., 2022) takes
    ``slope · |distance|`` from the score.
    """

    relative_keys: Tensor | None = None  # (2w + 1, E)
    relative_values: Tensor | None = None  # (2w + 1, V)
    slopes: Tensor | None = None  # broadcastable to the dimensions before (L, E), such as (heads,)
    offset: int = 0  # the place of the first query among the keys: S − L while decoding

    def check(self, query: Tensor, value: Tensor, leading: torch.Size) -> None:
        """Refuse tables and slopes that do not fit."""
        sizes = {"relative_keys": query.size(-1), "relative_values": value.size(-1)}
        tables = {name: getattr(self, name) for name in sizes if getattr(self, name) is not None}
        for name, table in tables.items():
            if table.dim() != 2 or table.size(0) % 2 == 0 or table.size(1) != sizes[name]:
                raise ValueError(
                    f"{name} must have a row of {sizes[name]} for each distance, an odd number of "
                    f"them, not {tuple(table.shape)}"
                )
        if len({table.size(0) for table in tables.values()}) > 1:
            raise ValueError("relative_keys and relative_values must have as many distances")
        if self.slopes is not None:
            try:
                self.slopes.expand(leading)
            except RuntimeError:
                raise ValueError(
                    f"slopes of shape {tuple(self.slopes.shape)} do not fit the dimensions before "
                    f"(length, size), {tuple(leading)}"
                ) from None

    def to(self, dtype: torch.dtype) -> Positions:
        """With all tensors in that type."""
        keys, values, slopes = (None if t is None else t.to(dtype) for t in self[:3])
        return Positions(keys, values, slopes, self.offset)

    def _distances(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """(L, S)."""
        at = torch.arange(queries, device=device) + self.offset
        return torch.arange(keys, device=device) - at.unsqueeze(1)

    def _rows(self, table: Tensor, queries: int, keys: int) -> Tensor:
        """Which row of a table every pair has: (L, S)."""
        window = table.size(0) // 2
        return self._distances(queries, keys, table.device).clamp(-window, window) + window

    def add_to_scores(self, scores: Tensor, query: Tensor) -> Tensor:
        """Scores (…, L, S), which the scaled ``query`` (…, L, E) made, with these terms."""
        if self.relative_keys is not None:
            products = query @ self.relative_keys.transpose(0, 1)
            rows = self._rows(self.relative_keys, *scores.shape[-2:])
            scores = scores + products.gather(-1, rows.expand(scores.shape))
        if self.slopes is not None:
            queries, keys = scores.shape[-2:]
            distances = self._distances(queries, keys, scores.device).abs()
            scores = scores - self.slopes[..., None, None] * distances
        return scores

    def values_of(self, weights: Tensor) -> Tensor | float:
        """What the relative values add to the result (…, L, V), from the weights (…, L, S)."""
        if self.relative_values is None:
            return 0.0
        table = self.relative_values
        rows = self._rows(table, *weights.shape[-2:]).expand(weights.shape)
        mass = weights.new_zeros(*weights.shape[:-1], table.size(0)).scatter_add(-1, rows, weights)
        return mass @ table

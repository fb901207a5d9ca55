"""Means over rows of attention, in one pass and constant memory, with honest standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A mean over rows, its standard error, and the standard deviation of the rows.

    The rows of one sentence are not independent, so the standard error is that of the ratio of
    sentence totals (sentences are the sampling units, as in a cluster sample); NaN if there is only
    one sentence. The standard deviation is of single rows, pooled over the heads averaged.
    """

    mean: float
    se: float
    sd: float
    rows: int
    sentences: int

    def json(self) -> dict[str, float | int | None]:
        """Plain numbers; what is undefined is null."""
        return {name: value if math.isfinite(value) else None for name, value in vars(self).items()}


class RowMeans:
    """Streaming mean, standard error and deviation of a quantity of every row, layer and head.

    Rows are sorted into ``groups`` (group 0 by convention is all rows). Index ``layers`` of the
    layer axis and ``heads`` of the head axis hold the averages over that axis.
    """

    def __init__(self, layers: int, heads: int, groups: int) -> None:
        self.layers, self.heads = layers, heads
        shape = (layers + 1, heads + 1, groups)
        self._rows = np.zeros(groups)
        self._sentences = np.zeros(groups)
        self._rows_squared = np.zeros(groups)
        self._sum = np.zeros(shape)
        self._squares = np.zeros(shape)
        self._total_squared = np.zeros(shape)
        self._total_times_rows = np.zeros(shape)

    def add(self, values: Array, member: Array) -> None:
        """One sentence.

        ``values``: ``(layers, heads, rows)``. ``member``: ``(rows, groups)``, 1 where a row is in
        a group, else 0.
        """
        rows = member.sum(0)
        total = _with_averages(values @ member)
        self._rows += rows
        self._sentences += rows > 0
        self._rows_squared += rows**2
        self._sum += total
        self._squares += _with_averages(values**2 @ member)
        self._total_squared += total**2
        self._total_times_rows += total * rows

    def rows(self, group: int = 0) -> int:
        """How many rows a group has seen."""
        return int(self._rows[group])

    def summary(self, layer: int = -1, head: int = -1, group: int = 0) -> Summary:
        """The summary of one head; −1, the default, averages over all layers or heads."""
        at = (layer, head, group)
        rows, sentences = self._rows[group], self._sentences[group]
        if not rows:
            return Summary(np.nan, np.nan, np.nan, 0, 0)
        mean = self._sum[at] / rows
        pooled = rows * (self.layers if layer == -1 else 1) * (self.heads if head == -1 else 1)
        variance = max(self._squares[at] / rows - mean**2, 0.0)
        deviation = np.sqrt(variance * pooled / (pooled - 1)) if pooled > 1 else np.nan
        error = np.nan
        if sentences > 1:
            spread = (
                self._total_squared[at]
                - 2 * mean * self._total_times_rows[at]
                + mean**2 * self._rows_squared[group]
            )
            error = np.sqrt(max(spread, 0.0) * sentences / (sentences - 1)) / rows
        return Summary(float(mean), float(error), float(deviation), int(rows), int(sentences))


def _with_averages(values: Array) -> Array:
    """Append the average over layers and over heads to those two axes."""
    values = np.concatenate([values, values.mean(1, keepdims=True)], axis=1)
    return np.concatenate([values, values.mean(0, keepdims=True)], axis=0)

"""A mean with its standard error: the one place that computes both and writes them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mean:
    """A mean, its standard error (None if it is not known, as for one value), and the count."""

    mean: float
    error: float | None = None
    count: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of the values and the standard error of that mean."""
        count = len(values)
        error = statistics.stdev(values) / math.sqrt(count) if count > 1 else None
        return cls(statistics.fmean(values), error, count)

    def text(self, digits: int = 2) -> str:
        """``7.21 ± 0.04``; the mean alone if its error is not known; a dash for NaN."""
        mean = number(self.mean, digits)
        if self.error is None or math.isnan(self.error) or math.isnan(self.mean):
            return mean
        return f"{mean} ± {number(self.error, digits)}"


def detectable_difference(
    columns: Sequence[Sequence[float]], level: float = 0.05, power: float = 0.8
) -> float | None:
    """The true difference of two means that a two-sided t test would show with this power.

    ``columns`` are the runs of each system; their spread is taken to be the same and is pooled.
    The two means compared have as many runs as the smallest column of several. None if no column
    has several.
    """
    several = [runs for runs in columns if len(runs) > 1]
    if not several:
        return None
    from scipy.stats import t as student

    freedom = sum(len(runs) - 1 for runs in several)
    variance = sum((len(runs) - 1) * statistics.variance(runs) for runs in several) / freedom
    quantiles = student.ppf(1 - level / 2, freedom) + student.ppf(power, freedom)
    return float(quantiles * math.sqrt(2 * variance / min(map(len, several))))


def number(value: float, digits: int = 2) -> str:
    """A number with this many decimals, or a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"

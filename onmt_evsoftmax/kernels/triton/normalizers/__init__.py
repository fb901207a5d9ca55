"""What the GPU kernels must know about a normalizer: one file each, which ends with ``KERNEL``.

A file's functions are compiled into the row kernels (and, if it has those for attention, into the
attention kernels), which do the rest: masks, NaN, rows of any length, types. They see a tile:

- ``x`` (rows, columns) are scores, ``-inf`` where hidden; ``top`` (rows,) the largest of each row,
  ``total`` and ``count`` the sum and number of the valid ones. In float64, ``total`` is relative to
  ``top``, and so must the threshold be: sums are then exact enough to decide ties.
- Results are ``w``, what p is proportional to, and ``v``, which is above 0 in the support.
- ``PARAMETER`` is the number that the caller passes (ev-softmax's eps), known when compiling.

A normalizer either computes its ``threshold``, or has it searched: with gap = alpha - 1 (one for
all rows, or one per row), d = x - top and v = 1 + gap d / c, weights are w = v^(1 / gap) where
v > 0, and c in (0, 1] is what makes c = (sum w)^-gap. Newton's method from c = 1 decreases to it
without overshooting for alpha <= 2 (sparsemax's step is Michelot's), and nothing cancels near
alpha = 1, where c is 1 and w is exp(d). Beyond 2 it is found by bisection.

This module is imported without Triton; the files are not.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """What an entry of a row costs, for the predictions of :mod:`..cost`.

    Passes of the search, typical of random scores; float32 instructions of each; exponentials,
    logarithms and square roots outside the passes, in each, backward, and of a score in attention
    backward; and additions in float64.
    """

    passes: int = 0
    each_pass: int = 0
    special: int = 0
    special_each_pass: int = 0
    special_backward: int = 0
    special_attention: int = 0
    float64: int = 0


class Kernel(NamedTuple):
    """The functions of one normalizer, each ``@triton.jit``."""

    #: (x, top, bar, gap, PARAMETER) → (w, v); ``bar`` is the threshold, or c of the search.
    weigh: Any
    #: (p, gap) → s of the Jacobian diag(s) - s sᵀ / sum(s).
    slope: Any
    #: (total, count, top, PARAMETER) → threshold; None: it is searched, by the next three.
    threshold: Any = None
    gap: float | None = None  #: alpha - 1, or None for one per row
    steepness: Any = None  #: (w, v) → v^(1 / gap - 1)
    wanted: Any = None  #: (total, gap) → total^-gap
    #: Attention: (s, top, bar) → (w, v) of a tile of scores; None: there is no such kernel.
    attention_weights: Any = None
    attention_slope: Any = None  #: (p, v, 1 / sum w) → s
    #: Whether the threshold is the mean of the row, which attention knows before the scores.
    mean: bool = False
    cost: Cost = Cost()

    @property
    def per_row(self) -> bool:
        """Whether every row has an alpha of its own."""
        return self.threshold is None and self.gap is None


#: Every normalizer that has a file here.
NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@functools.cache
def load(name: str) -> Kernel:
    """Its functions; this imports Triton."""
    if name not in NAMES:
        raise ValueError(f"normalizer must be one of {', '.join(NAMES)}, not {name!r}")
    kernel: Kernel = importlib.import_module(f"{__name__}.{name}").KERNEL
    return kernel


def attends(name: str) -> bool:
    """Whether it has an attention kernel."""
    return load(name).attention_weights is not None

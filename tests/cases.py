"""The normalizers under test beside their references, and how hypothesis makes rows for them."""

from __future__ import annotations

from functools import partial

import functional
import numpy as np
import pytest
import reference
import torch
from hypothesis import strategies as st

#: Name → (function under test, independent float64 reference of one row).
CASES = {
    "softmax": (functional.softmax, reference.softmax),
    "evsoftmax": (functional.evsoftmax, reference.evsoftmax),
    "evsoftmax-eps": (
        partial(functional.evsoftmax, eps=1e-6),
        partial(reference.evsoftmax, eps=1e-6),
    ),
    "sparsemax": (functional.sparsemax, partial(reference.entmax, alpha=2.0)),
    "entmax15": (functional.entmax15, partial(reference.entmax, alpha=1.5)),
    "entmax1.3": (
        partial(functional.entmax, alpha=1.3),
        partial(reference.entmax, alpha=1.3),
    ),
    "sparsehourglass": (functional.sparsehourglass, reference.sparsehourglass),
}
each = pytest.mark.parametrize("name", CASES)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 5e-6, torch.float64: 1e-9}


def rows(min_size: int = 1, max_size: int = 24, limit: float = 20.0) -> st.SearchStrategy:
    """Rows of scores that float32 holds exactly: ordinary, with ties, tiny, huge, or far from 0."""
    ordinary = st.floats(-limit, limit, width=32)
    ties = st.integers(-8, 8).map(lambda i: i / 8)
    shapes = [st.lists(values, min_size=min_size, max_size=max_size) for values in (ordinary, ties)]
    return st.one_of(shapes).map(lambda v: np.array(v, dtype=np.float64))


def wild_rows(min_size: int = 1, max_size: int = 24) -> st.SearchStrategy:
    """Rows scaled by up to 1e30 or moved by 1e4, rounded to what float32 holds."""
    transform = st.sampled_from(
        [(1.0, 0.0), (1e30, 0.0), (1e10, 0.0), (1e-20, 0.0), (1.0, 1e4), (1.0, -1e4), (100.0, 0.0)]
    )
    return st.tuples(rows(min_size, max_size), transform).map(
        lambda pair: (pair[0] * pair[1][0] + pair[1][1]).astype(np.float32).astype(np.float64)
    )

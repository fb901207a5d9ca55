"""Rows of scores, and how what the kernels make of them is held against the references."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import reference
import torch

from onmt_evsoftmax import kernels

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]
SIZES += [511, 512, 513, 1000, 1023, 1024, 1025, 4097, 32000]
REFERENCE = {
    "evsoftmax": reference.evsoftmax,
    "sparsemax": partial(reference.entmax, alpha=2.0),
    "entmax15": partial(reference.entmax, alpha=1.5),
    "entmax": partial(reference.entmax, alpha=1.5),  # its default
}
JUNK = [math.nan, math.inf, -math.inf, 1e30, -1e18, 1e-40]

#: Every normalizer of the C table; one without a reference fails.
each = pytest.mark.parametrize("name", kernels.library.NORMALIZERS or REFERENCE)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores_of(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of different spread, from nearly uniform probabilities to a single winner."""
    scale = torch.logspace(-2, 1.5, rows).unsqueeze(1)
    return torch.randn(rows, columns, generator=generator(seed)) * scale


def compare(name: str, v: np.ndarray, p: torch.Tensor, support: torch.Tensor, **options) -> None:
    """One row of valid entries: supports first, then values, to float32's last digits."""
    expected, expected_support = REFERENCE[name](v, **options)
    # ev-softmax decides by sums in double, exactly; the others to float32's rounding.
    if name == "evsoftmax" or reference.margin(v, name) > 3e-7:
        assert support.tolist() == expected_support.tolist()
    np.testing.assert_allclose(p.double().numpy(), expected, rtol=3e-6, atol=1.2e-7)
    assert abs(p.double().sum().item() - 1) < 3e-6


def check(name, scores, mask, forward=kernels.rows_forward, compare=compare, **options) -> None:
    """Every row of float32 ``scores`` against the reference of its valid entries alone."""
    p, support = forward(name, scores, mask, parameter=options.get("eps", 0.0))
    valid = scores > -math.inf if mask is None else mask.expand(scores.shape)
    columns = scores.size(-1)
    for v, m, q, s in zip(
        *(t.reshape(-1, columns) for t in (scores, valid, p, support)), strict=True
    ):
        assert (q[~m] == 0).all()
        assert not s[~m].any()
        if m.any():
            compare(name, v[m].double().numpy(), q[m], s[m], **options)


def backward(name: str, p: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found = kernels.rows_backward(name, p, grad)
        return None if found is None else found[0]

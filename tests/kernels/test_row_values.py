"""The row kernels, every instruction set that this machine has, against float64 references.

Sizes lie around every block boundary of the C code: lanes (4, 8, 16), rows that go together or
alone (256 columns, backward 64) and the flush of float32 sums (64 vectors: 256, 512, 1024).
"""

from __future__ import annotations

import math

import functional
import numpy as np
import pytest
import reference
import torch
from compiled import with_each_instruction_set
from row_cases import JUNK, REFERENCE, SIZES, backward, check, each, generator, scores_of

from onmt_evsoftmax import kernels

pytestmark = with_each_instruction_set


@each
@pytest.mark.parametrize("columns", SIZES)
def test_rows_of_every_size_equal_the_reference(name, columns):
    rows = 35 if columns < 1000 else 4
    check(name, scores_of(rows, columns), None)


@each
@pytest.mark.parametrize("columns", SIZES)
def test_masked_rows_of_every_size_equal_the_reference(name, columns):
    rows = 35 if columns < 1000 else 4
    scores = scores_of(rows, columns)
    mask = torch.rand(rows, columns, generator=generator(1)) < 0.7
    mask[-1] = False
    junk = torch.tensor(JUNK)[torch.randint(len(JUNK), scores.shape, generator=generator(2))]
    check(name, torch.where(mask, scores, junk), mask)
    check(name, torch.where(mask, scores, -math.inf), None)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 257, 4097])
def test_eps_weighs_what_is_below_the_mean(columns, eps):
    scores = scores_of(9, columns) * 0.1
    mask = torch.rand(9, columns, generator=generator(1)) < 0.8
    check("evsoftmax", scores, None, eps=eps)
    check("evsoftmax", scores, mask, eps=eps)


@pytest.mark.parametrize("eps", [1e-46, 1e-40, 1e20, 1e39])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_eps_may_lie_outside_the_range_of_float32(eps, dtype):
    scores = torch.randn(3, 40, generator=generator()).to(dtype)
    p, support = functional.evsoftmax(scores, eps=eps, return_support=True)
    assert support.all()
    for v, q in zip(scores, p, strict=True):
        expected, _ = REFERENCE["evsoftmax"](v.double().numpy(), eps=eps)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12 if dtype == torch.float64 else 4e-3
        np.testing.assert_allclose(q.double().numpy(), expected, rtol=tolerance, atol=1e-30)
    with pytest.raises(ValueError, match="positive and finite"):
        functional.evsoftmax(scores, eps=math.inf)


@each
def test_float64_is_computed_in_float64(name):
    for columns in (1, 2, 33, 300):
        scores = scores_of(20, columns).double() * (1 + 1e-9)
        p, support = kernels.rows_forward(name, scores)
        for v, q, s in zip(scores, p, support, strict=True):
            expected, expected_support = REFERENCE[name](v.numpy())
            if reference.margin(v.numpy(), name) > 1e-13:
                assert s.tolist() == expected_support.tolist()
            np.testing.assert_allclose(q.numpy(), expected, rtol=1e-9, atol=1e-13)


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_rounded_once(name, dtype):
    """Every finite number of the type goes in; both directions must round as torch does."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    numbers = numbers[torch.randperm(len(numbers), generator=generator())]
    for columns in (5, 32, 200, 1000):
        scores = numbers[: len(numbers) // columns * columns].view(-1, columns)
        mask = torch.rand(scores.shape, generator=generator(1)) < 0.9
        for given in (None, mask):
            p, support = kernels.rows_forward(name, scores, given)
            wide, wide_support = kernels.rows_forward(name, scores.float(), given)
            assert torch.equal(support, wide_support)
            assert torch.equal(p, wide.to(dtype))
        grad = (
            torch.randn(p.shape, generator=generator(2))
            * 10.0 ** torch.arange(-20, 20)[torch.randint(40, (len(p), 1), generator=generator(3))]
        )
        grad = grad.to(dtype)
        result = backward(name, p, grad)
        expected = backward(name, p.float(), grad.float())
        assert torch.equal(result.nan_to_num(7.0), expected.to(dtype).nan_to_num(7.0))


def jacobian_product(name: str, p: np.ndarray, g: np.ndarray) -> np.ndarray:
    slope = {"evsoftmax": p, "sparsemax": (p > 0) * 1.0, "entmax15": np.sqrt(p)}
    slope = slope.get(name, np.sqrt(p))  # entmax: of its default, 1.5
    total = slope.sum(-1, keepdims=True)
    mean = (slope * g).sum(-1, keepdims=True) / np.where(total > 0, total, 1)
    return slope * (g - mean)


@each
@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_of_every_size_equals_the_formula(name, columns, dtype):
    rows = 35 if columns < 1000 else 4
    mask = torch.rand(rows, columns, generator=generator(1)) < 0.9
    mask[-1] = False
    p, _ = kernels.rows_forward(name, scores_of(rows, columns).to(dtype), mask)
    grad = torch.randn(rows, columns, generator=generator(2), dtype=dtype)
    result = backward(name, p, grad)
    expected = jacobian_product(name, p.double().numpy(), grad.double().numpy())
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=tolerance)
    assert (result[~mask] == 0).all()
    strided = torch.randn(columns, rows, 2, dtype=dtype)[..., 0].t().copy_(grad)
    assert torch.equal(backward(name, p, strided), result)

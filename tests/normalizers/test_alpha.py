"""alpha of entmax: from 1, which is softmax, on; the same as a number and as a tensor."""

from __future__ import annotations

import math

import functional
import numpy as np
import pytest
import reference
import torch

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers.registry import get_normalizer

SCORES = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
ALPHAS = [1.0, 1.000001, 1.001, 1.005, 1.01, 1.2, 1.5, 1.9, 2.0, 2.5, 4.0]


def entmax(alpha, scores=SCORES, **options):
    with kernels.using("torch"):
        return functional.entmax(scores, alpha=alpha, **options)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_number_and_a_tensor_are_the_same(alpha):
    as_tensor = torch.full((6, 1), alpha, dtype=torch.float64)
    torch.testing.assert_close(entmax(alpha), entmax(as_tensor), atol=1e-12, rtol=0)
    for given in (alpha, as_tensor):
        p, support = entmax(given, return_support=True)
        for v, row, kept in zip(SCORES.numpy(), p, support, strict=True):
            if alpha == 1.0:
                expected, expected_support = reference.softmax(v)
            else:
                expected, expected_support = reference.entmax(v, alpha)
            assert kept.tolist() == expected_support.tolist()
            np.testing.assert_allclose(
                row.numpy(), expected, atol=1e-8 if alpha < 1.0001 else 1e-12
            )


@pytest.mark.parametrize("alpha", [1.0, 1.0000001, 1.0001])
def test_alpha_near_1_is_near_softmax(alpha):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        scores = SCORES.to(dtype)
        bound = tolerance + 50 * (alpha - 1.0)
        for given in (alpha, torch.tensor(alpha, dtype=dtype)):
            p = entmax(given, scores)
            assert (p - torch.softmax(scores, -1)).abs().max() <= bound
    assert entmax(1.0, SCORES[:, :4] * 1e6).isfinite().all()


@pytest.mark.parametrize("alpha", [0.99, 0.0, -1.0, math.nan, math.inf])
def test_below_1_is_refused_in_both_forms(alpha):
    for given in (alpha, torch.tensor([alpha]), torch.tensor([1.5, alpha]).view(2, 1)):
        scores = torch.zeros(2, 3)
        with pytest.raises(ValueError, match="alpha must be finite and at least 1"):
            functional.entmax(scores, alpha=given)
    with pytest.raises(ValueError, match="at least 1"):
        get_normalizer("entmax", alpha=alpha)


def test_below_1_is_nan_where_nobody_can_look():
    alphas = torch.tensor([1.5, 0.5])
    p = torch.vmap(lambda a: functional.entmax(torch.zeros(3), alpha=a))(alphas)
    assert p[0].isfinite().all()
    assert p[1].isnan().all()


@pytest.mark.parametrize("alpha", [1.0, 1.0005, 1.01, 1.5, 2.0, 2.5])
def test_the_gradient_of_alpha_is_right_down_to_1(alpha):
    def value(a: float) -> torch.Tensor:
        given = torch.tensor(a, dtype=torch.float64)
        return functional.entmax(SCORES, alpha=given)

    leaf = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    weight = torch.arange(9, dtype=torch.float64)
    (grad,) = torch.autograd.grad((functional.entmax(SCORES, alpha=leaf) * weight).sum(), leaf)
    h = 1e-5
    if alpha == 1.0:  # from one side
        slope = (-3 * value(1.0) + 4 * value(1.0 + h) - value(1.0 + 2 * h)) / (2 * h)
    else:
        slope = (value(alpha + h) - value(alpha - h)) / (2 * h)
    torch.testing.assert_close(grad, (slope * weight).sum(), atol=1e-5, rtol=1e-5)


def test_the_loss_of_alpha_1_is_cross_entropy():
    y = torch.arange(6)
    expected = torch.nn.functional.cross_entropy(SCORES, y)
    for alpha in (1.0, torch.tensor(1.0, dtype=torch.float64)):
        torch.testing.assert_close(functional.entmax_loss(SCORES, y, alpha=alpha), expected)


def test_rows_that_make_newton_s_method_slow_are_right():
    """Every pass of it would drop one entry only."""
    v = np.cumsum(0.5 ** np.arange(60))[::-1].copy()
    v = np.concatenate([v, -np.logspace(-12, 3, 200)])
    for alpha in (1.02, 1.5, 2.0, 3.0):
        p = entmax(alpha, torch.from_numpy(v))
        np.testing.assert_allclose(p.numpy(), reference.entmax(v, alpha)[0], atol=1e-9)

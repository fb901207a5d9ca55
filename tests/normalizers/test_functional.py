"""The contract of the normalizers: values, special rows, types, layouts, refusals."""

from __future__ import annotations

import math

import functional
import numpy as np
import pytest
import reference
import torch
from cases import CASES, DTYPES, TOLERANCE, each, rows, wild_rows
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode


def expect(name: str, v: np.ndarray, p: torch.Tensor, support: torch.Tensor, tolerance: float):
    """Supports first, then values: these functions jump, so values alone would not tell why."""
    expected, expected_support = CASES[name][1](v)
    assert support.tolist() == expected_support.tolist(), v
    np.testing.assert_allclose(p.double().numpy(), expected, atol=tolerance, rtol=0)


# --- values ---------------------------------------------------------------------------------------


@each
@given(v=rows())
def test_equals_the_reference_in_float64(name, v):
    assume(reference.margin(v, name) > 1e-12)
    p, support = CASES[name][0](torch.from_numpy(v), return_support=True)
    expect(name, v, p, support, TOLERANCE[torch.float64])


@each
@given(v=wild_rows())
def test_equals_the_reference_in_float32_at_any_scale_and_offset(name, v):
    assume(reference.margin(v, name) > 1e-5)
    p, support = CASES[name][0](torch.from_numpy(v).float(), return_support=True)
    expect(name, v, p, support, TOLERANCE[torch.float32] * (10 if "1.3" in name else 1))


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@given(v=rows())
def test_half_precision_is_computed_in_float32(name, dtype, v):
    scores = torch.from_numpy(v).to(dtype)
    v = scores.double().numpy()
    assume(reference.margin(v, name) > 1e-5)
    p, support = CASES[name][0](scores, return_support=True)
    assert p.dtype == dtype
    expect(name, v, p, support, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_support_of_long_rows(dtype):
    scores = torch.randn(400, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    for name in ("evsoftmax", "sparsemax", "entmax15"):
        p, support = CASES[name][0](scores, return_support=True)
        wide, wide_support = CASES[name][0](scores.double(), return_support=True)
        different = (support != wide_support).sum().item()
        assert different <= 2, name  # an entry within float32's rounding of the threshold
        assert (p.double() - wide).abs().max() < 4e-3, name


@given(v=rows(), eps=st.sampled_from([1e-6, 1e-3, 0.5]))
def test_log_evsoftmax_is_the_logarithm(v, eps):
    assume(reference.margin(v, "evsoftmax") > 1e-12)
    scores = torch.from_numpy(v)
    expected, _ = reference.evsoftmax(v, eps)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(
            functional.log_evsoftmax(scores, eps=eps).numpy(),
            np.log(expected),
            atol=1e-9,
            rtol=1e-12,
        )
    exact, support = functional.log_evsoftmax(scores, eps=0.0, return_support=True)
    assert (exact == -math.inf).tolist() == (~support).tolist()
    torch.testing.assert_close(exact.exp(), functional.evsoftmax(scores))


def test_log_evsoftmax_is_finite_where_the_logarithm_of_p_is_not():
    for gap in (75.0, 95.0, 1e4, 1e30):
        scores = torch.tensor([gap, 0.0, -gap], requires_grad=True)
        log_p = functional.log_evsoftmax(scores)
        log_p[2].backward()
        assert log_p.isfinite().all()
        torch.testing.assert_close(scores.grad, torch.tensor([-1.0, 0.0, 1.0]))
    half = functional.log_evsoftmax(torch.tensor([4.0, 0.0, -1.0, -2.0], dtype=torch.float16))
    assert half.isfinite().all()


def test_figure_1():
    v = torch.tensor([0.4, 1.4, -0.8])
    for name, expected in (
        ("softmax", [0.2488, 0.6763, 0.0749]),
        ("sparsemax", [0.0, 1.0, 0.0]),
        ("evsoftmax", [0.2689, 0.7311, 0.0]),
    ):
        torch.testing.assert_close(
            CASES[name][0](v), torch.tensor(expected), atol=5e-5, rtol=0, msg=name
        )


# --- special rows ---------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_rows_are_uniform(name, dtype):
    f = CASES[name][0]
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 3, 7, 10, 64, 512):
        scores = (torch.randn(200, 1, generator=generator) * 10).to(dtype).expand(200, size)
        p, support = f(scores, return_support=True)
        assert support.all()
        torch.testing.assert_close(
            p.double(), torch.full_like(p, 1 / size).double(), atol=1e-3, rtol=5e-3
        )


@each
@given(v=wild_rows())
def test_the_largest_entry_is_in_the_support_and_p_is_a_distribution(name, v):
    p, support = CASES[name][0](torch.from_numpy(v).float(), return_support=True)
    assert support[np.argmax(v)]
    assert (p[~support] == 0).all()
    assert (p >= 0).all()
    assert abs(p.sum().item() - 1) < 1e-5


def test_the_support_is_not_where_p_is_positive():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(100, 64, generator=generator)
    _, support = functional.evsoftmax(scores, return_support=True)
    p, scaled_support = functional.evsoftmax(scores * 100, return_support=True)
    assert torch.equal(support, scaled_support)
    assert ((p > 0) != scaled_support).any()
    p, support = functional.entmax(
        torch.tensor([0.0, -80.0, -99.0]), alpha=1.01, return_support=True
    )
    assert support.all()


@each
def test_empty_dimensions(name):
    f = CASES[name][0]
    for shape in [(0,), (3, 0), (0, 4), (2, 0, 3)]:
        scores = torch.empty(shape, requires_grad=True)
        mask = torch.ones(shape, dtype=torch.bool)
        for given_mask in (None, mask):
            p, support = f(scores, given_mask, return_support=True)
            assert p.shape == support.shape == torch.Size(shape)
            p.sum().backward()
    for log_form in (functional.log_softmax, functional.log_evsoftmax):
        log_p, support = log_form(torch.empty(3, 0), return_support=True)
        assert log_p.shape == support.shape == (3, 0)
    assert functional.posthoc_evidential(torch.ones(3, 2), torch.ones(0, 2)).shape == (3, 0)


@each
def test_fake_tensors_have_shapes_and_no_values(name):
    with FakeTensorMode():
        scores = torch.randn(3, 4, requires_grad=True)
        p, support = CASES[name][0](scores, torch.ones(4, dtype=torch.bool), return_support=True)
        assert p.shape == support.shape == (3, 4)
        assert torch.autograd.grad(p.sum(), scores)[0].shape == (3, 4)


# --- layout ---------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
def test_any_dim_and_strides(name, dim):
    f = CASES[name][0]
    base = torch.randn(4, 5, 6)
    mask = torch.rand(4, 5, 6) < 0.8
    expected = f(base.movedim(dim, -1).contiguous(), mask.movedim(dim, -1).contiguous())
    torch.testing.assert_close(f(base, mask, dim).movedim(dim, -1), expected)
    strided = torch.randn(8, 5, 12)[::2, :, ::2].copy_(base)
    torch.testing.assert_close(f(strided, mask, dim).movedim(dim, -1), expected)
    swapped = base.transpose(0, 2).contiguous().transpose(0, 2)
    torch.testing.assert_close(f(swapped, mask, dim).movedim(dim, -1), expected)


@each
def test_expanded_scores(name):
    f = CASES[name][0]
    row = torch.randn(1, 7)
    torch.testing.assert_close(f(row.expand(5, 7)), f(row).expand(5, 7))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: functional.evsoftmax(torch.arange(3)), TypeError, "floating point"),
        (lambda: functional.evsoftmax(torch.zeros(3), torch.ones(3)), TypeError, "True = takes"),
        (
            lambda: functional.softmax(torch.zeros(3), torch.ones(2, 3, dtype=torch.bool)),
            ValueError,
            "does not broadcast",
        ),
        (
            lambda: functional.softmax(torch.zeros(3), torch.ones(4, dtype=torch.bool)),
            ValueError,
            "does not broadcast",
        ),
        (lambda: functional.evsoftmax(torch.zeros(3), eps=-1.0), ValueError, "eps"),
        (lambda: functional.evsoftmax(torch.zeros(3), eps=math.nan), ValueError, "eps"),
        (lambda: functional.evsoftmax(torch.zeros(2, 3), eps=torch.tensor(1.0)), TypeError, "eps"),
        (
            lambda: functional.entmax(torch.zeros(2, 3), alpha=torch.full((4, 1), 1.5)),
            ValueError,
            r"alpha of shape \(4, 1\) does not fit",
        ),
        (lambda: functional.entmax(torch.zeros(3), alpha=0.99), ValueError, "at least 1"),
        (lambda: functional.sparsehourglass(torch.zeros(3), q=0.0), ValueError, "positive"),
    ],
)
def test_refusals_say_what_is_wrong(call, error, says):
    with pytest.raises(error, match=says):
        call()

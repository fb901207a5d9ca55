"""The contract of functional.py: values, masks, special rows, types, layouts, transformations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from cases import CASES, DTYPES, SPARSE, TOLERANCE, rows, wild_rows
from hypothesis import assume, given
from hypothesis import strategies as st

from onmt_evsoftmax import functional

each = pytest.mark.parametrize("name", CASES)
each_sparse = pytest.mark.parametrize("name", SPARSE)


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
            functional.log_evsoftmax(scores, eps=eps).numpy(), np.log(expected), atol=1e-9
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


# --- masks ----------------------------------------------------------------------------------------

JUNK = [math.nan, math.inf, -math.inf, 0.0, 1e30, -1e18]


@each
@given(v=rows(), data=st.data())
def test_padding_changes_nothing(name, v, data):
    """A row alone and the same row among masked junk: equal support, values and gradient."""
    assume(reference.margin(v, name) > 1e-5)
    places = data.draw(st.lists(st.integers(0, len(v)), max_size=8), label="where junk goes")
    padded = list(map(float, v))
    mask = [True] * len(v)
    for place in places:
        padded.insert(place, data.draw(st.sampled_from(JUNK)))
        mask.insert(place, False)
    f = CASES[name][0]
    alone = torch.from_numpy(v).float().requires_grad_()
    among = torch.tensor(padded, requires_grad=True)
    takes_part = torch.tensor(mask)
    p, support = f(alone, return_support=True)
    q, padded_support = f(among, takes_part, return_support=True)
    assert padded_support[takes_part].tolist() == support.tolist()
    assert not padded_support[~takes_part].any()
    torch.testing.assert_close(q[takes_part], p, atol=1e-6, rtol=0)
    assert (q[~takes_part] == 0).all()
    weight = torch.linspace(-1, 1, len(v))
    (p * weight).sum().backward()
    spread = torch.zeros(len(padded)).masked_scatter(takes_part, weight)
    (q * spread).sum().backward()
    torch.testing.assert_close(among.grad[takes_part], alone.grad, atol=2e-5, rtol=1e-4)
    assert (among.grad[~takes_part] == 0).all()


@each
def test_a_fully_masked_row_is_zero_with_zero_gradient(name):
    f = CASES[name][0]
    for filling in JUNK:
        scores = torch.randn(3, 5)
        scores[1] = filling
        scores.requires_grad_()
        mask = torch.ones(3, 5, dtype=torch.bool)
        mask[1] = False
        p, support = f(scores, mask, return_support=True)
        assert (p[1] == 0).all()
        assert not support[1].any()
        assert p[[0, 2]].sum(-1).allclose(torch.ones(2))
        p.square().sum().backward()
        assert (scores.grad[1] == 0).all()
        assert scores.grad.isfinite().all()


@each
def test_minus_infinity_is_masked(name):
    f = CASES[name][0]
    scores = torch.tensor([[1.0, -math.inf, 0.3, 0.9], [-math.inf] * 4, [1.0, 2.0, 3.0, 4.5]])
    finite = scores.masked_fill(scores == -math.inf, 7.0)
    p, support = f(scores, return_support=True)
    q, masked_support = f(finite, scores > -math.inf, return_support=True)
    assert torch.equal(p, q)
    assert torch.equal(support, masked_support)


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_stays_alone(name, bad):
    f = CASES[name][0]
    scores = torch.randn(3, 6)
    scores[1, 2] = bad
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[:, 5] = False
    for given_mask in (None, mask):
        p = f(scores, given_mask)
        valid = slice(0, 6 if given_mask is None else 5)
        assert p[1, valid].isnan().all()
        assert p[[0, 2]].isfinite().all()
    assert (f(scores, mask)[:, 5] == 0).all()


@each
def test_masks_broadcast(name):
    f = CASES[name][0]
    scores = torch.randn(2, 3, 4, 5)
    for shape in [(5,), (4, 5), (2, 1, 1, 5), (1, 3, 4, 1), (2, 3, 4, 5), ()]:
        mask = torch.rand(shape) < 0.7
        whole = mask.expand(scores.shape)
        torch.testing.assert_close(f(scores, mask), f(scores, whole), msg=str(shape))


def test_the_published_formulation_fails_the_padding_test():
    """Masked scores that enter the mean make ev-softmax a softmax: what this package avoids."""
    v = torch.tensor([0.4, 1.4, -0.8])
    filled = torch.cat([v, torch.tensor([-1e18])])
    published = torch.softmax(filled.masked_fill(filled < filled.mean(), -math.inf), -1)
    torch.testing.assert_close(published[:3], torch.softmax(v, -1))
    ours = functional.evsoftmax(filled, torch.tensor([True, True, True, False]))
    torch.testing.assert_close(ours[:3], functional.evsoftmax(v))
    assert (published[:3] > 0).all()
    assert ours[2] == 0


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
    assert functional.log_evsoftmax(torch.empty(3, 0)).shape == (3, 0)


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


# --- gradients ------------------------------------------------------------------------------------


def far_from_ties(name: str, shape: tuple[int, ...], mask: torch.Tensor) -> torch.Tensor:
    """Random float64 scores whose rows keep their support under finite differences."""
    generator = torch.Generator().manual_seed(3)
    while True:
        scores = torch.randn(shape, generator=generator, dtype=torch.float64)
        flat, flat_mask = scores.reshape(-1, shape[-1]), mask.expand(shape).reshape(-1, shape[-1])
        valid = [v[m].numpy() for v, m in zip(flat, flat_mask, strict=True) if m.any()]
        if all(reference.margin(v, name) > 1e-3 for v in valid):
            return scores.requires_grad_()


@each
def test_first_and_second_derivatives(name):
    f = CASES[name][0]
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True], [False] * 6])
    scores = far_from_ties(name, (3, 6), mask)
    assert torch.autograd.gradcheck(lambda s: f(s, mask), scores)
    assert torch.autograd.gradgradcheck(lambda s: f(s, mask), scores)
    turned = scores.detach().t().contiguous().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: f(s, mask.t(), 0), turned)


def test_derivatives_of_log_evsoftmax():
    scores = far_from_ties("evsoftmax", (3, 6), torch.ones(3, 6, dtype=torch.bool))
    assert torch.autograd.gradcheck(functional.log_evsoftmax, scores)
    assert torch.autograd.gradgradcheck(functional.log_evsoftmax, scores)


def test_entmax_gives_alpha_a_gradient():
    scores = torch.randn(
        2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    alpha = torch.tensor([1.2, 1.5, 1.9], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    mask = torch.rand(2, 1, 1, 5, generator=torch.Generator().manual_seed(5)) < 0.8
    scores.requires_grad_()

    def f(s, a):
        return functional.entmax(s, mask, alpha=a)

    assert torch.autograd.gradcheck(f, (scores, alpha))
    assert torch.autograd.gradgradcheck(f, (scores, alpha))
    for head, value in enumerate(alpha.flatten().tolist()):
        torch.testing.assert_close(
            f(scores, alpha)[:, head], functional.entmax(scores[:, head], mask[:, 0], alpha=value)
        )
    torch.testing.assert_close(
        functional.entmax(scores, alpha=2.0), functional.sparsemax(scores), atol=1e-9, rtol=0
    )


# --- transformations ------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("masked", [False, True])
def test_vmap_equals_a_loop(name, masked):
    f = CASES[name][0]
    scores = torch.randn(4, 3, 6)
    mask = (torch.rand(4, 3, 6) < 0.7) if masked else None
    expected = f(scores, mask, 0 - 1)
    for axis in (0, 1):
        inputs = (scores,) if mask is None else (scores, mask)
        mapped = torch.vmap(lambda s, m=None: f(s, m), in_dims=axis)(*inputs)
        torch.testing.assert_close(mapped, expected.movedim(axis, 0))
    if masked:  # one mask for all
        mapped = torch.vmap(f, in_dims=(0, None))(scores, mask[0])
        torch.testing.assert_close(mapped, f(scores, mask[0]))
    nested = torch.vmap(torch.vmap(f))(scores)
    torch.testing.assert_close(nested, f(scores))
    square = torch.func.grad(lambda s: f(s).square().sum())
    leaf = scores[0].clone().requires_grad_()
    f(leaf).square().sum().backward()
    torch.testing.assert_close(torch.vmap(square)(scores[0]), leaf.grad)


@each
@pytest.mark.parametrize("masked", [False, True])
def test_compiles_without_graph_breaks(name, masked):
    f = CASES[name][0]
    # The default backend compiles C++ for each; one function through it shows that it can.
    backend = "inductor" if name == "evsoftmax" else "aot_eager"
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    mask = (torch.rand(8, 16) < 0.7) if masked else None
    eager = torch.randn(8, 16, requires_grad=True)
    other = eager.detach().clone().requires_grad_()
    expected, result = f(eager, mask), compiled(other, mask)
    torch.testing.assert_close(result, expected, atol=2e-6, rtol=1e-5)
    expected.square().sum().backward()
    result.square().sum().backward()
    torch.testing.assert_close(other.grad, eager.grad, atol=2e-6, rtol=1e-4)


@each
def test_autocast_changes_neither_type_nor_value(name):
    f = CASES[name][0]
    scores = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(f(scores), f(scores.clone()))
        assert f(scores).dtype == torch.float32
        assert f(scores.bfloat16()).dtype == torch.bfloat16


@each
def test_meta_tensors_have_shapes(name):
    p, support = CASES[name][0](torch.empty(3, 4, device="meta"), return_support=True)
    assert p.shape == support.shape == (3, 4)


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
        (lambda: functional.entmax(torch.zeros(3), alpha=1.0), ValueError, "softmax"),
        (lambda: functional.sparsehourglass(torch.zeros(3), q=0.0), ValueError, "positive"),
    ],
)
def test_refusals_say_what_is_wrong(call, error, says):
    with pytest.raises(error, match=says):
        call()

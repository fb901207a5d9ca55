"""The contract of the normalizers on masked rows: what is hidden takes no part."""

from __future__ import annotations

import math

import functional
import pytest
import reference
import torch
from cases import CASES, each, rows
from hypothesis import assume, given
from hypothesis import strategies as st

from onmt_evsoftmax import kernels

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
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_hidden_in_a_broken_row_has_no_gradient(name, backend, bad, dtype):
    mask = torch.ones(3, 40, dtype=torch.bool)
    mask[:, 5] = False
    scores = torch.randn(3, 40).to(dtype)
    scores[1, 2], scores[1, 33] = bad, -math.inf
    scores.requires_grad_()
    with kernels.using(backend):
        CASES[name][0](scores, mask).backward(torch.randn(3, 40).to(dtype))
    hidden = ~mask | (scores == -math.inf)
    assert (scores.grad[hidden] == 0).all()
    assert scores.grad[1][~hidden[1]].isnan().all()
    assert scores.grad[[0, 2]].isfinite().all()


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

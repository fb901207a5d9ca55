"""ev-softmax attention where keys are masked, broken, equal, or none at all."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import generator, random
from compiled import needs_kernels

from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention


def junk_cases(query, key, value, mask):
    """Leaves whose keys and values hold junk where the mask is False."""
    for junk in (math.nan, math.inf, -math.inf, 1e30):
        key[:, :, ~mask] = value[:, :, ~mask] = junk
        yield [t.clone().requires_grad_() for t in (query, key, value)]


def check_gradients(grads, mask):
    assert all(g.isfinite().all() for g in grads)
    assert (grads[1][:, :, ~mask] == 0).all()
    assert (grads[2][:, :, ~mask] == 0).all()


@needs_kernels
def test_masked_keys_take_no_part_whatever_they_hold(instruction_set):
    query, key, value = (random(2, 2, 50, 16, seed=i) for i in range(3))
    mask = torch.rand(50, generator=generator(3)) < 0.6
    expected = evsoftmax_attention(query, key[:, :, mask], value[:, :, mask], backend="fused")
    for leaves in junk_cases(query, key, value, mask):
        out = evsoftmax_attention(*leaves, mask, backend="fused")
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        check_gradients(grads, mask)  # by torch, from the definition
        check_gradients(torch.autograd.grad(out.square().sum(), leaves), mask)


@pytest.mark.parametrize("given", ["keys", "queries and keys", "causal"])
def test_masked_keys_take_no_part_explicitly(given):
    query, key, value = (random(2, 2, 50, 16, seed=i) for i in range(3))
    mask = torch.rand(50, generator=generator(3)) < 0.6
    options = {}
    if given == "causal":
        query, mask, options = query[:, :, :30], torch.arange(50) < 30, {"is_causal": True}
    kept = (key[:, :, mask], value[:, :, mask])
    expected = evsoftmax_attention(query, *kept, backend="explicit", **options)
    if given != "causal":
        options = {"attn_mask": mask if given == "keys" else mask.expand(50, 50).clone()}
    for leaves in junk_cases(query, key, value, mask):
        out = evsoftmax_attention(*leaves, backend="explicit", **options)
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
        check_gradients(torch.autograd.grad(out.square().sum(), leaves), mask)


@pytest.mark.parametrize("backend", ["auto", "explicit"])
def test_nothing_to_attend_to_gives_zeros(backend):
    leaves = [random(2, 2, 9, 8, seed=i).requires_grad_() for i in range(3)]
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[1] = False
    out = evsoftmax_attention(*leaves, mask, backend=backend)
    assert (out[1] == 0).all()
    assert out[0].abs().sum() > 0
    for grad in torch.autograd.grad(out.square().sum(), leaves):
        assert (grad[1] == 0).all()
        assert grad.isfinite().all()
    first = mask.clone()
    first[..., 0] = False  # a causal first query then has no key
    out = evsoftmax_attention(*leaves, first, is_causal=True, backend=backend)
    assert (out[:, :, 0] == 0).all()
    assert out.isfinite().all()


@needs_kernels
def test_equal_scores_are_averaged(instruction_set):
    """Rounding may put q · mean(k) above every q · k_j: the row must not come out empty."""
    for size in (3, 16, 64):
        query = random(1, 4, 130, size) * 3
        key = random(1, 4, 1, size, seed=1).expand(1, 4, 70, size)
        value = random(1, 4, 70, size, seed=2).requires_grad_()
        out = evsoftmax_attention(query, key, value, backend="fused")
        torch.testing.assert_close(
            out, value.mean(-2, keepdim=True).expand_as(out), atol=1e-6, rtol=0
        )
        (grad,) = torch.autograd.grad(out.sum(), value)
        torch.testing.assert_close(grad, torch.full_like(grad, 130 / 70), atol=1e-4, rtol=0)
    out = evsoftmax_attention(
        torch.zeros(1, 4, 9, 64), random(1, 4, 70, 64), value, backend="fused"
    )
    torch.testing.assert_close(out, value.mean(-2, keepdim=True).expand_as(out))


@needs_kernels
@pytest.mark.parametrize("offset", [2.0**power for power in (10, 20, 27, 28, 29, 30, 31)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_an_offset_far_from_zero_changes_no_result(instruction_set, offset, is_causal):
    """A query of 1 makes the scores the keys themselves, without rounding."""
    query, value = torch.ones(1, 2, 140, 1), random(1, 2, 140, 5, seed=1)
    # Few of the distances between keys are below 87, and some are 0.
    key = random(1, 2, 140, 1, seed=2) * 100 + 1.5 * offset
    mask = torch.rand(140, generator=generator(3)) < 0.7
    mask[0] = True
    grad = random(1, 2, 140, 5, seed=4)
    for given in (None, mask):
        near = (key.double() - key.max().double(), value.double())  # exact
        leaves = [t.requires_grad_() for t in near]
        expected = evsoftmax_attention(
            query.double(), *leaves, given, is_causal=is_causal, scale=1.0
        )
        grads = torch.autograd.grad(expected, leaves, grad.double())
        leaves = [t.clone().requires_grad_() for t in (key, value)]
        out = evsoftmax_attention(
            query, *leaves, given, is_causal=is_causal, scale=1.0, backend="fused"
        )
        torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)
        for got, want in zip(torch.autograd.grad(out, leaves, grad), grads, strict=True):
            torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=1e-5)
        one_hot = torch.eye(140).expand(1, 2, 140, 140)
        p = evsoftmax_attention(
            query, key, one_hot, given, is_causal=is_causal, scale=1.0, backend="fused"
        )
        assert (p >= 0).all()


@pytest.mark.parametrize("backend", ["auto", "explicit"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_key_breaks_only_its_own_rows(backend, bad):
    leaves = [random(2, 2, 70, 16, seed=i) for i in range(3)]
    leaves[1][0, 1, 30, 3] = bad
    leaves = [t.requires_grad_() for t in leaves]
    out = evsoftmax_attention(*leaves, is_causal=True, backend=backend)
    assert out[0, 1, :30].isfinite().all()
    assert out[0, 1, 30:].isnan().any(-1).sum() >= 10  # -inf scores are masked, others are NaN
    others = torch.ones(2, 2, dtype=torch.bool)
    others[0, 1] = False
    assert out[others].isfinite().all()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad[others].isfinite().all()


@needs_kernels
def test_minus_infinity_scores_are_masked(instruction_set):
    query = random(1, 1, 20, 4).abs() + 0.1
    key, value = random(1, 1, 33, 4, seed=1), random(1, 1, 33, 5, seed=2)
    mask = torch.rand(33, generator=generator(3)) < 0.7
    key[:, :, ~mask] = -math.inf
    torch.testing.assert_close(
        evsoftmax_attention(query, key, value, backend="fused"),
        evsoftmax_attention(query, key, value, mask, backend="fused"),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "explicit"])
def test_half_precision_is_computed_in_float32(dtype, backend):
    tensors = [random(2, 2, 40, 16, seed=i).to(dtype).requires_grad_() for i in range(3)]
    out = evsoftmax_attention(*tensors, backend=backend)
    assert out.dtype == dtype
    wide = [t.detach().float() for t in tensors]
    assert torch.equal(out, evsoftmax_attention(*wide, backend=backend).to(dtype))
    assert all(g.dtype == dtype for g in torch.autograd.grad(out.sum(), tensors))

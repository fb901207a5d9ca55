"""Attention whose threshold is not known before the scores: every normalizer, mask and bias."""

from __future__ import annotations

import pytest
import torch
from attention_cases import check, generator, random
from attention_reference import ALPHAS
from compiled import with_each_instruction_set

from onmt_evsoftmax import sparse_attention

pytestmark = with_each_instruction_set
each = pytest.mark.parametrize("normalizer", ALPHAS)

#: Around the sizes of vectors, panels (16, 32), chunks of queries (64) and tiles of keys (128).
LENGTHS = [(1, 1), (3, 2), (7, 16), (63, 65), (64, 128), (65, 129), (130, 33), (2, 300)]


def limits(kind: str, batch: int, heads: int, queries: int, keys: int) -> torch.Tensor | None:
    if kind == "keys":
        return torch.rand(batch, 1, 1, keys, generator=generator(7)) < 0.7
    if kind == "queries":
        return torch.rand(batch, 1, queries, keys, generator=generator(7)) < 0.7
    if kind == "bias":
        return random(1, heads, queries, keys, seed=7)
    if kind == "bias and mask":
        hidden = torch.rand(batch, 1, queries, keys, generator=generator(8)) < 0.3
        return random(batch, heads, queries, keys, seed=7).masked_fill(hidden, -torch.inf)
    return None


@each
@pytest.mark.parametrize("kind", ["none", "keys", "queries", "bias", "bias and mask"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_values_and_gradients(normalizer, kind, lengths):
    queries, keys = lengths
    tensors = [random(2, 3, length, 24, seed=i) for i, length in enumerate((queries, keys, keys))]
    mask = limits(kind, 2, 3, queries, keys)
    for is_causal in (False, True):
        check(*tensors, mask, normalizer=normalizer, is_causal=is_causal, backend="fused")


@each
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_every_density_from_all_keys_to_one(normalizer, scale):
    query, key, value = (random(1, 2, 70, 32, seed=i) for i in range(3))
    check(query * scale, key, value, normalizer=normalizer, backend="fused", tolerance=2e-5)


@each
@pytest.mark.parametrize("sizes", [(1, 1), (8, 72), (100, 16), (256, 256)])
def test_sizes_of_heads(normalizer, sizes):
    query, key = random(1, 2, 20, sizes[0]), random(1, 2, 30, sizes[0], seed=1)
    mask = limits("queries", 1, 2, 20, 30)
    check(query, key, random(1, 2, 30, sizes[1], seed=2), mask, normalizer=normalizer)


@each
def test_dropout_is_that_of_every_backend(normalizer):
    tensors = [random(2, 2, 40, 16, seed=i) for i in range(3)]
    bias = random(40, 40, seed=4)
    for mask in (None, bias):
        check(*tensors, mask, normalizer=normalizer, dropout_p=0.4, backend="fused")
        outs = [
            sparse_attention(
                *tensors, mask, 0.4, normalizer=normalizer, generator=generator(3), backend=backend
            )
            for backend in ("fused", "explicit")
        ]
        torch.testing.assert_close(*outs, atol=2e-5, rtol=1e-4)


@each
def test_a_row_is_the_same_alone_padded_and_in_any_batch(normalizer):
    query, key, value = (random(3, 2, 90, 16, seed=i) for i in range(3))
    real = torch.arange(90) < 37
    keys = torch.where(real[:, None], key, torch.nan)
    values = torch.where(real[:, None], value, torch.inf)
    whole = sparse_attention(query, keys, values, real, normalizer=normalizer, backend="fused")
    alone = sparse_attention(
        query[1:2, :, 5:6], key[1:2, :, :37], value[1:2, :, :37], normalizer=normalizer,
        backend="fused",
    )  # fmt: skip
    assert torch.equal(whole[1:2, :, 5:6], alone)


@each
def test_nothing_to_attend_to_and_poison(normalizer):
    query, key, value = (random(1, 1, 6, 8, seed=i) for i in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    query[0, 0, 4, 0] = torch.nan
    leaves = [t.clone().requires_grad_() for t in (query, key, value)]
    out = sparse_attention(*leaves, mask, normalizer=normalizer, backend="fused")
    assert torch.equal(out[0, 0, 2], torch.zeros(8))
    assert out[0, 0, 4].isnan().all()
    assert out[0, 0, [0, 1, 3, 5]].isfinite().all()
    grad = torch.ones_like(out)
    grad[0, 0, 4] = 0
    grad_query = torch.autograd.grad(out, leaves, grad)[0]
    assert torch.equal(grad_query[0, 0, 2], torch.zeros(8))
    assert grad_query[0, 0, [0, 1, 3, 5]].isfinite().all()


@each
def test_second_derivatives(normalizer):
    query, key, value = (random(1, 1, 5, 4, seed=i) for i in range(3))
    bias = random(5, 5, seed=9)

    def penalty(backend):
        leaf = query.double() if backend == "explicit" else query
        leaf = leaf.clone().requires_grad_()
        others = [t.to(leaf.dtype) for t in (key, value, bias)]
        out = sparse_attention(leaf, *others, normalizer=normalizer, backend=backend)
        (first,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0].float()

    torch.testing.assert_close(penalty("fused"), penalty("explicit"), atol=1e-4, rtol=1e-3)


@each
def test_half_precision_is_computed_in_float32(normalizer):
    tensors = [random(1, 2, 33, 16, seed=i).bfloat16() for i in range(3)]
    bias = random(33, 33, seed=3).bfloat16()
    out = sparse_attention(*tensors, bias, normalizer=normalizer, backend="fused")
    wide = [t.float() for t in (*tensors, bias)]
    expected = sparse_attention(*wide, normalizer=normalizer, backend="fused")
    assert torch.equal(out, expected.bfloat16())

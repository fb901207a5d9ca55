"""The attention kernel, every instruction set that is here, against a float64 NumPy reference."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import check, generator, random
from compiled import needs_kernels

from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention

pytestmark = needs_kernels

# Around a vector, a panel of keys, a chunk of 64 queries and a tile of 128 keys.
LENGTHS = [(1, 1), (1, 77), (5, 2), (6, 16), (7, 17), (63, 15), (64, 64), (65, 63), (130, 129)]
LENGTHS += [(64, 127), (64, 128), (70, 255), (3, 257)]
SIZES = [1, 7, 8, 9, 16, 17, 33, 64, 65, 129, 256]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_lengths(instruction_set, queries, keys, is_causal, masked):
    query, key, value = (
        random(2, 3, queries, 24),
        random(2, 3, keys, 24, seed=1),
        random(2, 3, keys, 20, seed=2),
    )
    mask = None
    if masked:
        mask = torch.rand(2, 1, 1, keys, generator=generator(3)) < 0.7
        mask[0, ..., 0] = True
    check(query, key, value, mask, is_causal=is_causal, backend="fused")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value_size", [1, 8, 65, 256])
def test_head_sizes(instruction_set, size, value_size):
    check(
        random(1, 2, 70, size),
        random(1, 2, 81, size, seed=1),
        random(1, 2, 81, value_size, seed=2),
        backend="fused",
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_many_tiles(instruction_set, is_causal):
    tensors = [random(1, 2, 1000, 32, seed=i) * 2 for i in range(3)]
    check(*tensors, is_causal=is_causal, backend="fused", tolerance=2e-5)


def test_dropout(instruction_set):
    tensors = [random(2, 2, 90, 16, seed=i) for i in range(3)]
    mask = torch.rand(2, 1, 1, 90, generator=generator(3)) < 0.8
    check(*tensors, mask, dropout_p=0.3, backend="fused")
    check(*tensors, mask, dropout_p=0.3, backend="explicit")
    check(*tensors, is_causal=True, dropout_p=0.9, backend="fused", tolerance=2e-5)


def test_layouts(instruction_set):
    """Heads split off by transposing, inner strides, expansion: the same bits."""
    base = [random(2, 3, 40, 16, seed=i) for i in range(3)]
    expected = evsoftmax_attention(*base, backend="fused")
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in base]
    inner = [torch.empty(2, 3, 40, 16, 2)[..., 0].copy_(t) for t in base]
    unaligned = [torch.empty(2 * 3 * 40 * 16 + 1)[1:].view(2, 3, 40, 16).copy_(t) for t in base]
    for tensors in (transposed, inner, unaligned):
        assert torch.equal(evsoftmax_attention(*tensors, backend="fused"), expected)
    assert expected.transpose(1, 2).is_contiguous()  # joining the heads copies nothing
    flat = [t.flatten(0, 1) for t in base]
    assert torch.equal(evsoftmax_attention(*flat).view_as(expected), expected)
    nested = [t.unsqueeze(0) for t in base]
    assert torch.equal(evsoftmax_attention(*nested)[0], expected)
    one = [t[0, 0] for t in base]
    assert torch.equal(evsoftmax_attention(*one), expected[0, 0])
    shared = evsoftmax_attention(base[0], base[1][:1, :1], base[2][:1, :1])
    whole = [t[:1, :1].expand(2, 3, 40, 16) for t in base[1:]]
    assert torch.equal(shared, evsoftmax_attention(base[0], *whole))


def test_causal_equals_decoding_step_by_step(instruction_set):
    query, key, value = (random(2, 2, 140, 16, seed=i) for i in range(3))
    causal = evsoftmax_attention(query, key, value, is_causal=True, backend="fused")
    steps = [
        evsoftmax_attention(query[:, :, i : i + 1], key[:, :, : i + 1], value[:, :, : i + 1])
        for i in range(140)
    ]
    stepped = torch.cat(steps, dim=2)
    close = (causal - stepped).abs().amax(-1) < 2e-6
    assert (
        close.float().mean() > 0.999
    )  # a score within rounding of its threshold may go either way


def test_padding_changes_no_bit(instruction_set):
    query, key, value = (random(2, 2, 37, 16, seed=i) for i in range(3))
    expected = evsoftmax_attention(query, key, value, backend="fused")
    pad = [torch.cat([t, torch.full((2, 2, 30, 16), math.nan)], dim=2) for t in (key, value)]
    mask = torch.arange(67) < 37
    assert torch.equal(evsoftmax_attention(query, *pad, mask, backend="fused"), expected)


def test_any_number_of_threads(instruction_set):
    before = torch.get_num_threads()
    leaves = [random(1, 2, 500, 16, seed=i).requires_grad_() for i in range(3)]
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            out = evsoftmax_attention(*leaves, is_causal=True, backend="fused")
            results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert torch.equal(result[0], results[0][0])
        for got, want in zip(result[1:], results[0][1:], strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)

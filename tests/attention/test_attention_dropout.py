"""Dropout of attention: reproducible, fair, the same in every backend."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import generator, random

from onmt_evsoftmax.attention import dropout, evsoftmax_attention


def test_dropout_is_reproducible_and_the_same_in_every_backend():
    tensors = [random(2, 3, 50, 16, seed=i) for i in range(3)]
    first = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(1))
    again = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(1))
    other = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(2))
    explicit = evsoftmax_attention(
        *tensors, dropout_p=0.4, generator=generator(1), backend="explicit"
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    torch.testing.assert_close(first, explicit, atol=2e-6, rtol=1e-5)
    torch.manual_seed(3)
    one = evsoftmax_attention(*tensors, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(one, evsoftmax_attention(*tensors, dropout_p=0.4))
    assert not torch.equal(one, evsoftmax_attention(*tensors, dropout_p=0.4))


def test_dropout_is_fair():
    """As many kept as asked for, in every row and column, and no two rows alike."""
    seed = torch.tensor(12345)
    factor = dropout.factors(seed, 0.25, 4, 200, 300)
    kept = (factor > 0).double()
    assert factor[factor > 0].unique().tolist() == pytest.approx([1 / 0.75])
    for values, count in ((kept.mean(), 240_000), (kept.mean((0, 1)), 800), (kept.mean(2), 300)):
        assert (values - 0.75).abs().max() < 5 * math.sqrt(0.75 * 0.25 / count)
    rows = kept.view(800, 300) - 0.75
    correlation = (rows @ rows.T) / (300 * 0.75 * 0.25)
    correlation.fill_diagonal_(0)
    assert correlation.abs().max() < 6 / math.sqrt(300)
    assert not torch.equal(factor, dropout.factors(seed + 1, 0.25, 4, 200, 300))

"""The row kernels give the same bits however tensors lie in memory and rows are shared out."""

from __future__ import annotations

import math

import pytest
import torch
from compiled import with_each_instruction_set
from row_cases import backward, each, generator, scores_of

from onmt_evsoftmax import kernels

pytestmark = with_each_instruction_set


@each
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 257])
def test_any_alignment_and_strides(name, columns):
    expected, expected_support = kernels.rows_forward(name, scores_of(24, columns))
    for offset in range(4):
        memory = torch.empty(24 * columns + 4)
        unaligned = memory[offset : offset + 24 * columns].view(24, columns)
        wide = torch.empty(24, columns + 5)[:, offset : offset + columns]
        inner = torch.empty(24, columns, 3)[:, :, 1]
        turned = torch.empty(columns, 24).t()
        outer = torch.empty(4, 2, 3, 5, columns).transpose(0, 2)[:, :, :, 2]
        for scores in (unaligned, wide, inner, turned, outer):
            scores.copy_(scores_of(24, columns).view(scores.shape))
            p, support = kernels.rows_forward(name, scores)
            assert torch.equal(p.view(24, columns), expected)
            assert torch.equal(support.view(24, columns), expected_support)


@each
def test_broadcast_masks_equal_whole_ones(name):
    scores = torch.randn(3, 2, 5, 37, generator=generator())
    for shape in [(1, 1, 1, 37), (3, 1, 1, 37), (1, 2, 5, 37), (3, 2, 5, 37), (3, 1, 5, 37)]:
        mask = torch.rand(shape, generator=generator(1)) < 0.6
        whole = mask.expand(scores.shape).contiguous()
        turned = mask.transpose(0, 2).contiguous().transpose(0, 2)
        for given in (mask, turned, mask.expand(scores.shape)):
            for got, want in zip(
                kernels.rows_forward(name, scores, given),
                kernels.rows_forward(name, scores, whole),
                strict=True,
            ):
                assert torch.equal(got, want)
    rows_only = torch.rand(3, 2, 5, 1, generator=generator(1)).expand(3, 2, 5, 37) < 0.6
    p, _ = kernels.rows_forward(name, scores, rows_only)
    assert torch.equal(p.sum(-1) > 0, rows_only[..., 0])


@each
@pytest.mark.parametrize("columns", [3, 9, 40, 61, 100, 300])
def test_padding_and_company_change_no_bit(name, columns):
    """A row alone, among others, and padded behind by masked entries; and its gradient."""
    scores, grad = scores_of(41, columns), scores_of(41, columns, seed=1)
    together, _ = kernels.rows_forward(name, scores)
    gradients = backward(name, together, grad)
    for i, row in enumerate(scores):
        alone, _ = kernels.rows_forward(name, row.unsqueeze(0))
        assert torch.equal(alone[0], together[i])
        assert torch.equal(backward(name, alone, grad[i : i + 1])[0], gradients[i])
    length = columns + 20
    padded = torch.full((41, length), math.nan)
    padded[:, :columns] = scores
    q, _ = kernels.rows_forward(name, padded, (torch.arange(length) < columns).view(1, -1))
    assert torch.equal(q[:, :columns], together)
    padded[:, :columns] = grad
    padded[:, columns:] = 1e3
    assert torch.equal(backward(name, q, padded)[:, :columns], gradients)


@each
@pytest.mark.parametrize("columns", [5, 61, 300])
def test_a_score_of_minus_infinity_is_a_masked_entry(name, columns):
    scores = scores_of(41, columns)
    mask = torch.rand(41, columns, generator=generator(1)) < 0.8
    for got, want in zip(
        kernels.rows_forward(name, torch.where(mask, scores, -math.inf)),
        kernels.rows_forward(name, scores, mask),
        strict=True,
    ):
        assert torch.equal(got, want)


@each
def test_any_number_of_threads_gives_the_same_bits(name):
    before = torch.get_num_threads()
    try:
        for shape in ((5, 40000), (3001, 33), (700, 300)):
            scores, results = torch.randn(shape, generator=generator()), []
            mask = torch.rand(shape, generator=generator(1)) < 0.8
            for threads in (1, 2, 3, 7):
                torch.set_num_threads(threads)
                p, support = kernels.rows_forward(name, scores, mask)
                results.append((p, support, backward(name, p, scores)))
            for result in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))
    finally:
        torch.set_num_threads(before)

"""The row kernel of alpha-entmax: an alpha for every row, and its gradient."""

from __future__ import annotations

import functional
import numpy as np
import pytest
import reference
import torch
from compiled import with_each_instruction_set
from row_cases import scores_of

from onmt_evsoftmax import kernels

pytestmark = with_each_instruction_set
ALPHAS = [1.0001, 1.1, 1.5, 1.9, 2.0]


def both_passes(scores, alpha, grad):
    leaves = [scores.clone().requires_grad_(), alpha.clone().requires_grad_()]
    p, support = functional.entmax(leaves[0], alpha=leaves[1], return_support=True)
    return p.detach(), support, *torch.autograd.grad(p, leaves, grad)


@pytest.mark.parametrize("columns", [1, 7, 8, 33, 256, 257, 1024])
def test_values_and_gradients_are_those_of_the_definition(columns):
    scores = scores_of(20, columns)
    alpha = torch.tensor(ALPHAS).repeat(4).unsqueeze(1)
    grad = torch.randn(20, columns, generator=torch.Generator().manual_seed(1))
    p, support, grad_scores, grad_alpha = both_passes(scores, alpha, grad)
    with kernels.using("torch"):
        expected = both_passes(*(t.double() for t in (scores, alpha, grad)))
    for row, each, got, kept in zip(scores, alpha, p, support, strict=True):
        want, inside = reference.entmax(row.double().numpy(), each.item())
        np.testing.assert_allclose(got.double().numpy(), want, atol=3e-7, rtol=1e-5)
        assert abs(int(kept.sum()) - int(inside.sum())) <= 1
    assert (support != expected[1]).float().mean() < 1e-3
    for got, want in ((grad_scores, expected[2]), (grad_alpha, expected[3])):
        bound = 1e-5 * max(1.0, want.abs().max().item())
        torch.testing.assert_close(got.double(), want, atol=bound, rtol=1e-4)


def test_one_alpha_for_each_head_is_one_for_each_of_its_rows():
    scores = torch.randn(2, 3, 5, 40, requires_grad=True)
    alpha = torch.tensor([1.2, 1.5, 1.8]).view(3, 1, 1).requires_grad_()
    p = functional.entmax(scores, alpha=alpha)
    for head in range(3):
        alone = functional.entmax(scores[:, head], alpha=torch.tensor(alpha[head].item()))
        assert torch.equal(p[:, head], alone)
    (p * torch.randn(p.shape)).sum().backward()
    assert alpha.grad.shape == (3, 1, 1)
    assert (alpha.grad != 0).all()


def test_a_row_is_the_same_alone_padded_and_in_any_batch():
    scores, alpha = scores_of(40, 200), torch.linspace(1.05, 1.95, 40).unsqueeze(1)
    together = functional.entmax(scores, alpha=alpha)
    padded = torch.full((40, 700), torch.nan)
    padded[:, :200] = scores
    mask = torch.arange(700) < 200
    assert torch.equal(functional.entmax(padded, mask, alpha=alpha)[:, :200], together)
    for row in (0, 13, 39):
        alone = functional.entmax(scores[row : row + 1], alpha=alpha[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_gradcheck_in_float64():
    scores = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[1.1], [1.4], [1.6], [1.9]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, a: functional.entmax(s, alpha=a), (scores, alpha))
    assert torch.autograd.gradcheck(lambda s: functional.entmax(s, alpha=1.3), (scores,))


def test_what_the_kernel_does_not_take_torch_computes():
    scores = torch.randn(3, 6)
    for alpha in (1.0, 2.5):
        given = torch.full((3, 1), alpha)
        assert kernels.rows_forward("entmax", scores, parameter=given) is None
        torch.testing.assert_close(
            functional.entmax(scores, alpha=given), functional.entmax(scores, alpha=alpha)
        )

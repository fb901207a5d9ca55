"""Derivatives forward: jvp, jacfwd, hessian and forward_ad, against the derivatives backward."""

from __future__ import annotations

import functional
import pytest
import torch
from cases import CASES, each
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from onmt_evsoftmax import kernels


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def _backend(request):
    with kernels.using("auto" if request.param == "kernels" else "torch"):
        yield


def scores_of(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(*shape, dtype=torch.float64, generator=generator) / 2


MASK = torch.tensor([True, True, False, True, True])


@each
@pytest.mark.parametrize("mask", [None, MASK])
def test_jacobians_forward_and_backward_are_one(name, mask):
    f = CASES[name][0]
    scores = scores_of(5)
    backward = jacrev(lambda s: f(s, mask))(scores)
    torch.testing.assert_close(jacfwd(lambda s: f(s, mask))(scores), backward)
    assert backward.abs().sum() > 0
    tangent = scores_of(2, 5)[1]
    p, moved = jvp(lambda s: f(s, mask), (scores,), (tangent,))
    torch.testing.assert_close(p, f(scores, mask))
    torch.testing.assert_close(moved, backward @ tangent)


@each
def test_plain_dual_numbers_carry_their_tangent(name):
    """Without torch.func: here the kernels saw plain tensors, and dropped the tangent."""
    f = CASES[name][0]
    scores, tangent = scores_of(2, 3, 5)
    for leaf in (scores, scores.clone().requires_grad_()):
        with forward_ad.dual_level():
            out = f(forward_ad.make_dual(leaf, tangent), MASK)
            moved = forward_ad.unpack_dual(out).tangent
        expected = jvp(lambda s: f(s, MASK), (scores,), (tangent,))[1]
        assert moved is not None
        torch.testing.assert_close(moved.detach(), expected)


@each
def test_second_derivatives_in_every_order(name):
    f = CASES[name][0]
    scores = scores_of(5)

    def loss(s):
        return (f(s, MASK) * torch.arange(5)).sum() + f(s, MASK).square().sum()

    expected = jacrev(jacrev(loss))(scores)
    torch.testing.assert_close(hessian(loss)(scores), expected)
    torch.testing.assert_close(jacrev(jacfwd(loss))(scores), expected)
    torch.testing.assert_close(jacfwd(jacfwd(loss))(scores), expected)


@each
def test_forward_derivatives_of_a_batch(name):
    f = CASES[name][0]
    scores, tangents = scores_of(2, 4, 5)
    looped = torch.stack([jvp(f, (s,), (t,))[1] for s, t in zip(scores, tangents, strict=True)])
    torch.testing.assert_close(jvp(f, (scores,), (tangents,))[1], looped)
    torch.testing.assert_close(jvp(vmap(f), (scores,), (tangents,))[1], looped)
    torch.testing.assert_close(vmap(lambda s, t: jvp(f, (s,), (t,))[1])(scores, tangents), looped)


def test_alpha_has_a_forward_derivative():
    scores = scores_of(3, 5)
    alpha = torch.tensor([1.0001, 1.4, 2.3], dtype=torch.float64).view(3, 1)
    forward = jacfwd(lambda a: functional.entmax(scores, alpha=a))(alpha)
    backward = jacrev(lambda a: functional.entmax(scores, alpha=a))(alpha)
    assert forward.abs().sum() > 0
    torch.testing.assert_close(forward, backward)


def test_log_forms_have_forward_derivatives():
    scores = scores_of(5)
    for f in (functional.log_softmax, functional.log_evsoftmax):
        torch.testing.assert_close(jacfwd(f)(scores), jacrev(f)(scores))

"""Derivatives of the normalizers, and transformations: vmap, compile, autocast, meta."""

from __future__ import annotations

import functional
import pytest
import reference
import torch
from cases import CASES, each

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

"""Every property of ev-softmax that the paper or the design claims, for all K from 1 up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from cases import rows
from functional import (
    evsoftmax,
    log_belief_mass,
    log_evsoftmax,
    posthoc_evidential,
    softmax,
)
from hypothesis import assume, given
from hypothesis import strategies as st


def dyadic_rows(min_size=1):
    """Rows of 2ⁿ eighths: sums and means are exact in binary, so a tie is a tie on any machine."""
    return (
        st.integers(0, 4)
        .flatmap(
            lambda n: st.lists(
                st.integers(-40, 40), min_size=max(2**n, min_size), max_size=max(2**n, min_size)
            )
        )
        .filter(lambda v: len(v) & (len(v) - 1) == 0)
        .map(lambda v: torch.tensor(v, dtype=torch.float64) / 8)
    )


def untied(v) -> bool:
    return reference.margin(np.asarray(v, dtype=np.float64), "evsoftmax") > 1e-9


def jacobian(v: torch.Tensor, **options) -> torch.Tensor:
    return torch.autograd.functional.jacobian(lambda s: evsoftmax(s, **options), v)


@given(v=dyadic_rows())
def test_an_entry_at_the_mean_is_kept(v):
    p, support = evsoftmax(v, return_support=True)
    assert torch.equal(support, v >= v.sum() / len(v))
    assert torch.equal(p > 0, support)
    assert torch.equal(evsoftmax(v.float(), return_support=True)[1], support)
    assert torch.equal(evsoftmax(v.half(), return_support=True)[1], support)


@given(v=dyadic_rows(), shift=st.integers(-1000, 1000))
def test_translation_invariant(v, shift):
    torch.testing.assert_close(evsoftmax(v + shift), evsoftmax(v))


@given(v=dyadic_rows(), data=st.data())
def test_permutation_equivariant(v, data):
    order = torch.tensor(data.draw(st.permutations(range(len(v)))))
    torch.testing.assert_close(evsoftmax(v[order]), evsoftmax(v)[order])


@given(v=dyadic_rows())
def test_monotone(v):
    p = evsoftmax(v.sort().values)
    assert (p.diff() >= 0).all()


@given(v=dyadic_rows(), power=st.integers(-20, 20))
def test_positive_scaling_changes_values_but_not_the_support(v, power):
    _, support = evsoftmax(v, return_support=True)
    _, scaled = evsoftmax(v * 2.0**power, return_support=True)
    assert torch.equal(support, scaled)


def test_neither_idempotent_nor_scale_invariant():
    v = torch.tensor([0.4, 1.4, -0.8])
    assert (evsoftmax(evsoftmax(v)) - evsoftmax(v)).abs().max() > 0.1
    assert (evsoftmax(2 * v) - evsoftmax(v)).abs().max() > 0.1


@given(v=dyadic_rows())
def test_full_support_exactly_when_all_are_equal(v):
    _, support = evsoftmax(v, return_support=True)
    assert support.all() == (v == v[0]).all()
    if support.all():
        torch.testing.assert_close(evsoftmax(v), torch.full_like(v, 1 / len(v)))


@given(v=rows())
def test_softmax_renormalised_on_the_support(v):
    scores = torch.from_numpy(v)
    p, support = evsoftmax(scores, return_support=True)
    dense = softmax(scores) * support
    torch.testing.assert_close(p, dense / dense.sum())
    torch.testing.assert_close(p, softmax(scores, support))


@given(v=st.floats(-1e6, 1e6))
def test_one_entry_is_certain(v):
    assert evsoftmax(torch.tensor([v])).tolist() == [1.0]


@given(a=st.floats(-50, 50, width=32), b=st.floats(-50, 50, width=32))
def test_two_entries_are_argmax_with_zero_gradient(a, b):
    v = torch.tensor([a, b], requires_grad=True)
    p = evsoftmax(v)
    expected = [0.5, 0.5] if a == b else [float(a > b), float(b > a)]
    assert p.tolist() == expected
    (p * torch.tensor([1.0, -2.0])).sum().backward()
    if a != b:
        assert v.grad.tolist() == [0.0, 0.0]


@given(v=rows(min_size=2, max_size=8))
def test_jacobian(v):
    assume(untied(v))
    scores = torch.from_numpy(v)
    p, support = evsoftmax(scores, return_support=True)
    j = jacobian(scores)
    torch.testing.assert_close(j, torch.diag(p) - torch.outer(p, p))
    torch.testing.assert_close(j, j.t())
    assert j.sum(-1).abs().max() < 1e-12
    assert (j[~support] == 0).all()
    assert (j[:, ~support] == 0).all()
    values = torch.linalg.eigvalsh(j)
    assert values.min() > -1e-12
    assert values.max() <= 0.5 + 1e-12


@given(v=rows(min_size=2, max_size=8), data=st.data())
def test_one_lipschitz_while_the_support_is_constant(v, data):
    step = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=len(v), max_size=len(v))))
    a, b = torch.from_numpy(v), torch.from_numpy(v + step)
    (p, first), (q, second) = (evsoftmax(s, return_support=True) for s in (a, b))
    assume(torch.equal(first, second))
    assert (p - q).norm() <= (a - b).norm() + 1e-12


def test_discontinuous_where_the_support_changes():
    below, above = (torch.tensor([1.0, 0.0, -1.0 + d], dtype=torch.float64) for d in (-1e-9, 1e-9))
    assert (evsoftmax(below) - evsoftmax(above)).abs().max() > 0.2


@given(
    v=rows(min_size=2, max_size=8), eps=st.sampled_from([1e-2, 1e-6, 1e-12, 0.0]), data=st.data()
)
def test_gradient_of_the_log_likelihood(v, eps, data):
    """∇ log p_i = δ_i − p for every eps > 0 off ties, and the limit for eps = 0."""
    assume(untied(v))
    i = data.draw(st.integers(0, len(v) - 1))
    scores = torch.from_numpy(v).requires_grad_()
    log_evsoftmax(scores, eps=eps)[i].backward()
    one = torch.nn.functional.one_hot(torch.tensor(i), len(v))
    torch.testing.assert_close(scores.grad, one - evsoftmax(scores.detach(), eps=eps))


@given(v=rows(), exponent=st.integers(3, 12))
def test_the_training_form_tends_to_the_exact_one(v, exponent):
    assume(untied(v))
    scores = torch.from_numpy(v)
    eps = 10.0**-exponent
    distance = (evsoftmax(scores, eps=eps) - evsoftmax(scores)).abs().max()
    assert distance <= len(v) * eps


# --- post-hoc evidential sparsification -----------------------------------------------------------


@given(seed=st.integers(0, 2**31), k=st.integers(1, 40), j=st.integers(1, 8))
def test_equals_evsoftmax_on_random_networks(seed, k, j):
    """Theorem 3.1."""
    generator = torch.Generator().manual_seed(seed)
    features, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, j), (k, j), (k,))
    )
    scores = torch.nn.functional.linear(features, weight, bias)
    assume(k == 1 or all(untied(v.numpy()) for v in scores))
    p, support = posthoc_evidential(features, weight, bias, return_support=True)
    q, other = evsoftmax(scores, return_support=True)
    assert torch.equal(support, other)
    torch.testing.assert_close(p, q)


@given(v=rows(max_size=12, limit=5.0))
def test_belief_masses_follow_dempsters_rule(v):
    assume(len(v) == 1 or untied(v))
    log_mass = log_belief_mass(torch.from_numpy(v))
    mass = reference.belief_mass(v)
    w = v - reference.mean(v)
    np.testing.assert_allclose(np.exp(log_mass.numpy()), mass, atol=1e-9, rtol=1e-6)
    if len(v) > 1:
        assert (log_mass == -math.inf).tolist() == (w <= 0).tolist()
    assert abs(w.sum()) < 1e-9


def scores_as_layer(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and weights of a last layer whose output is v."""
    return torch.ones(1, dtype=v.dtype), v.unsqueeze(-1)


@given(v=dyadic_rows(min_size=2))
def test_on_ties_posthoc_drops_what_evsoftmax_keeps(v):
    _, kept = evsoftmax(v, return_support=True)
    _, posthoc = posthoc_evidential(*scores_as_layer(v), return_support=True)
    if (v == v[0]).all():
        assert posthoc.all()
        assert kept.all()
    else:
        assert torch.equal(posthoc, v > v.sum() / len(v))
        assert torch.equal(kept, v >= v.sum() / len(v))


def test_ten_thousand_classes_neither_underflow_nor_overflow():
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0, 300.0):
        v = torch.randn(10_000, generator=generator, dtype=torch.float64) * scale
        log_mass = log_belief_mass(v)
        above = v > v.mean()
        assert log_mass[above].isfinite().all()
        assert (log_mass[~above] == -math.inf).all()
        torch.testing.assert_close(posthoc_evidential(*scores_as_layer(v)), evsoftmax(v))


def test_posthoc_respects_masks():
    v = torch.tensor([[0.4, 1.4, -0.8, 90.0]], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    features, weight = torch.ones(1, 1, dtype=torch.float64), v.t()
    p, support = posthoc_evidential(features, weight, None, mask, return_support=True)
    torch.testing.assert_close(p[0, :3], evsoftmax(v[0, :3]))
    assert support.tolist() == [[True, True, False, False]]
    nothing = posthoc_evidential(features, weight, mask=torch.zeros(4, dtype=torch.bool))
    assert nothing.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_posthoc_keeps_the_type_of_its_input(dtype):
    features, weight = torch.randn(5, 3).to(dtype), torch.randn(7, 3).to(dtype)
    assert posthoc_evidential(features, weight).dtype == dtype

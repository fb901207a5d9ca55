"""The row kernels on NaN, infinities, denormals, ties and constant rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from compiled import with_each_instruction_set
from row_cases import REFERENCE, backward, each, generator, scores_of

from onmt_evsoftmax import kernels

pytestmark = with_each_instruction_set


@each
@pytest.mark.parametrize("columns", [1, 7, 8, 33, 128, 129, 600])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_nan_where_valid_and_stays_alone(name, columns, bad):
    for place in {0, columns // 2, columns - 1}:
        scores = scores_of(20, columns)
        scores[7, place] = bad
        p, support = kernels.rows_forward(name, scores)
        assert p[7].isnan().all()
        assert not support[7].any()
        others = torch.arange(20) != 7
        expected, expected_support = kernels.rows_forward(name, scores[others])
        assert torch.equal(p[others], expected)
        assert torch.equal(support[others], expected_support)
        if columns > 2:
            mask = torch.ones(columns, dtype=torch.bool)
            mask[1] = False
            scores[7, 2] = bad
            masked, _ = kernels.rows_forward(name, scores, mask.view(1, -1))
            assert masked[7, mask].isnan().all()
            assert (masked[:, 1] == 0).all()


@each
@pytest.mark.parametrize("columns", [1, 7, 33, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_broken_row_has_a_broken_gradient_and_no_other_row_has(name, columns, dtype):
    """A gradient of 0 would hide from an optimizer, or a check of gradients, what went wrong."""
    scores = scores_of(20, columns).to(dtype)
    scores[7, columns // 2] = math.nan
    p, _ = kernels.rows_forward(name, scores)
    found = backward(name, p, torch.randn(p.shape, generator=generator()).to(dtype))
    assert found[7].isnan().all()
    assert found[torch.arange(20) != 7].isfinite().all()


@each
@pytest.mark.parametrize("columns", [1, 2, 10, 17, 64, 130, 512, 5000])
def test_constant_rows_are_uniform(name, columns):
    scores = (torch.randn(64, 1, generator=generator()) * 100).expand(64, columns)
    for constant in (scores, scores.double(), torch.full((3, columns), 1e-41)):
        p, support = kernels.rows_forward(name, constant)
        assert support.all()
        torch.testing.assert_close(p, torch.full_like(p, 1 / columns), rtol=1e-6, atol=0)


@pytest.mark.parametrize("columns", [6, 12, 40, 200, 700])
def test_entries_at_the_mean_are_kept(columns):
    """Small integers: their sum is exact in any order, so a tie is a tie."""
    scores = torch.randint(-3, 4, (200, columns), generator=generator()).float()
    scores[:, 0] -= scores.sum(-1)  # the mean is 0
    for offset in (0.0, 1024.0):
        _, support = kernels.rows_forward("evsoftmax", scores + offset)
        assert torch.equal(support, scores >= 0)


@pytest.mark.parametrize("columns", [3, 8, 32, 33, 70])
def test_sparsemax_comes_to_an_end_with_an_entry_at_the_threshold(columns):
    """Rounded, the threshold of (0, a, b) drops b, and that of (0, a) takes it back."""
    a = torch.empty(4000).uniform_(-0.249, -0.126, generator=generator())
    at = ((a.double() - 1) / 2).float()
    b = torch.cat([at, at.nextafter(torch.tensor(0.0)), at.nextafter(torch.tensor(-1.0))])
    scores = torch.full((len(b), columns), -5.0)
    scores[:, :3] = torch.stack([torch.zeros_like(b), a.repeat(3), b], -1)
    p, _ = kernels.rows_forward("sparsemax", scores)
    expected, _ = kernels.rows_forward("sparsemax", scores.double())
    torch.testing.assert_close(p, expected.float(), atol=1e-7, rtol=0)


# Around where `max - 87` falls between floats: these lie 2 to 256 apart, and so do doubles.
FAR = [(torch.float32, 2.0**power) for power in (24, 27, 28, 29, 30, 31)]
FAR += [(torch.float64, 2.0**power) for power in (57, 60)]


@each
@pytest.mark.parametrize("columns", [8, 32, 33, 65, 200])
@pytest.mark.parametrize(("dtype", "offset"), FAR)
def test_an_offset_far_from_zero_changes_no_probability(name, columns, dtype, offset):
    options = [{}, {"eps": 1e-3}] if name == "evsoftmax" else [{}]
    mask = torch.rand(6, columns, generator=generator(1)) < 0.7
    mask[:, 0] = True
    for sign in (1, -1):
        scores = torch.randn(6, columns, generator=generator()) * 100
        scores = (scores.to(dtype) + sign * 1.5 * offset).to(dtype)
        for given in (None, mask):
            valid = torch.ones_like(mask) if given is None else given
            near = scores.double() - scores.amax(-1, keepdim=True).double()  # exact
            for option in options:
                eps = option.get("eps", 0.0)
                p, support = kernels.rows_forward(name, scores, given, parameter=eps)
                assert (p >= 0).all()
                assert (p[~valid] == 0).all()
                for v, m, q, s in zip(near.numpy(), valid, p, support, strict=True):
                    expected, expected_support = REFERENCE[name](v[m.numpy()], **option)
                    np.testing.assert_allclose(q[m].double(), expected, rtol=3e-6, atol=1e-6)
                    if name == "evsoftmax":
                        assert s[m].tolist() == expected_support.tolist()


@each
def test_denormal_huge_and_distant_scores(name):
    base = scores_of(30, 70)
    for scores in (base * 1e-42, base * 1e-38, base * 1e30, base + 1e4, base * 100):
        p, support = kernels.rows_forward(name, scores)
        assert p.isfinite().all()
        assert support[range(30), scores.argmax(-1)].all()
        torch.testing.assert_close(p.sum(-1), torch.ones(30), atol=1e-5, rtol=0)
        for v, s in zip(scores.double().numpy(), support, strict=True):
            if name == "evsoftmax":
                assert s.tolist() == REFERENCE[name](v)[1].tolist()


@each
def test_results_have_no_denormal_numbers(name):
    """An entry of ev-softmax may be too small for float32; a difference of scores never is."""
    for columns in (30, 90):
        p, support = kernels.rows_forward(name, scores_of(50, columns) * 30)
        assert not ((p > 0) & (p < torch.finfo(torch.float32).tiny)).any()
        assert (support & (p == 0)).any() == (name == "evsoftmax")

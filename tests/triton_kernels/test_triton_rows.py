"""The row kernels in Triton's interpreter (or on a GPU), against float64 references.

Sizes lie around the tiles: 16 columns at least, several rows to a program up to 1024, one row to a
program from 2048, several passes beyond 16384.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import reference
import row_cases
import torch
from row_cases import JUNK, REFERENCE, compare, generator, scores_of
from where import DEVICE, runs_kernels

pytestmark = [runs_kernels, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

SIZES = [1, 2, 7, 16, 33, 129, 1025, 16400]
#: Normalizers without an alpha, and entmax, which has its alpha in its name here.
FIXED = [name for name in REFERENCE if name != "entmax"]
NAMES = [*FIXED, "entmax1.3", "entmax1.01", "entmax2"]
each = pytest.mark.parametrize("name", NAMES)
#: Where alpha makes no difference: one of every kernel, which saves a third of the time.
each_kernel = pytest.mark.parametrize("name", [*FIXED, "entmax1.3"])


def alpha_of(name: str) -> float | None:
    return float(name[6:]) if name.startswith("entmax") and name != "entmax15" else None


def forward(name, scores, mask=None, **options):
    from onmt_evsoftmax.kernels.triton import rows

    alpha = alpha_of(name)
    if alpha is not None:
        options["alpha"] = torch.full((1,) * scores.dim(), alpha, dtype=torch.float64).to(DEVICE)
    mask = None if mask is None else mask.to(DEVICE)
    kernel = name if alpha is None else "entmax"
    p, support = rows.rows_forward(kernel, scores.to(DEVICE), mask, **options)
    return p.cpu(), None if support is None else support.cpu()


def backward(name, p, grad):
    from onmt_evsoftmax.kernels.triton import rows

    alpha, options = alpha_of(name), {}
    if alpha is not None:
        options["alpha"] = torch.full((1,) * p.dim(), alpha, dtype=torch.float64).to(DEVICE)
    kernel = name if alpha is None else "entmax"
    return rows.rows_backward(kernel, p.to(DEVICE), grad.to(DEVICE), **options)[0].cpu()


def compare_entmax(name: str, v: np.ndarray, p, support) -> None:
    alpha = alpha_of(name)
    expected, expected_support = reference.entmax(v, alpha)
    if alpha == 1.01:  # τ moves by 1/gap of what the scores move by
        np.testing.assert_allclose(p.double().numpy(), expected, rtol=1e-4, atol=1e-6)
    else:
        np.testing.assert_allclose(p.double().numpy(), expected, rtol=1e-5, atol=3e-7)
        if reference.margin(v, f"entmax{alpha}") > 1e-6 and alpha == 1.3:
            assert support.tolist() == expected_support.tolist()
    assert abs(p.double().sum().item() - 1) < 3e-6


def check(name, scores, mask, **options):
    hold = compare if alpha_of(name) is None else compare_entmax
    row_cases.check(name, scores, mask, forward, hold, **options)


@each
@pytest.mark.parametrize("columns", SIZES)
def test_rows_equal_the_reference(name, columns):
    rows = 35 if columns < 1000 else 3
    scores = scores_of(rows, columns)
    check(name, scores, None)
    mask = torch.rand(rows, columns, generator=generator(1)) < 0.7
    mask[-1] = False
    junk = torch.tensor(JUNK)[torch.randint(len(JUNK), scores.shape, generator=generator(2))]
    check(name, torch.where(mask, scores, junk), mask)
    check(name, torch.where(mask, scores, -math.inf), None)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
@pytest.mark.parametrize("columns", [1, 33, 16400])
def test_eps_weighs_what_is_below_the_mean(columns, eps):
    scores = scores_of(9 if columns < 100 else 2, columns) * 0.1
    check("evsoftmax", scores, None, eps=eps)


@each
@pytest.mark.parametrize("columns", [2, 33, 16400])
def test_float64_is_computed_in_float64(name, columns):
    scores = scores_of(9 if columns < 100 else 2, columns).double() * (1 + 1e-9)
    p, _ = forward(name, scores)
    alpha = alpha_of(name)
    row = REFERENCE[name] if alpha is None else partial(reference.entmax, alpha=alpha)
    for v, q in zip(scores.numpy(), p, strict=True):
        loose = 1e-7 if alpha == 1.01 else 1e-9  # of the reference, which takes powers of 100
        np.testing.assert_allclose(q.numpy(), row(v)[0], rtol=loose, atol=1e-12)


@each_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_rounded_once(name, dtype):
    scores = scores_of(40, 50).to(dtype)
    p, support = forward(name, scores)
    wide, wide_support = forward(name, scores.float())
    assert torch.equal(support, wide_support)
    assert torch.equal(p, wide.to(dtype))
    grad = torch.randn(p.shape, generator=generator(2)).to(dtype)
    assert torch.equal(backward(name, p, grad), backward(name, p.float(), grad.float()).to(dtype))


@each_kernel
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("columns", [1, 33, 16400])
def test_a_broken_row_is_nan_where_valid_and_stays_alone(name, bad, columns):
    scores = scores_of(3, columns)
    scores[1, columns // 2] = bad
    mask = torch.ones(1, columns, dtype=torch.bool)
    mask[0, 1:2] = False
    for given in (None, mask):
        p, support = forward(name, scores, given)
        valid = torch.ones_like(mask) if given is None else given
        assert p[1, valid[0]].isnan().all()
        assert (p[:, ~valid[0]] == 0).all()
        assert not support[1].any()
        assert p[[0, 2]].isfinite().all()
        grad = backward(name, p, torch.ones_like(p))
        assert grad[1, valid[0]].isnan().all()
        assert (grad[:, ~valid[0]] == 0).all()
        assert grad[[0, 2]].isfinite().all()


@each_kernel
@pytest.mark.parametrize("columns", [1, 10, 130, 5000])
def test_constant_rows_are_uniform(name, columns):
    scores = (torch.randn(5, 1, generator=generator()) * 100).expand(5, columns)
    for constant in (scores, scores.double(), torch.full((3, columns), 1e-41)):
        p, support = forward(name, constant)
        assert support.all()
        torch.testing.assert_close(p, torch.full_like(p, 1 / columns), rtol=2e-6, atol=0)


@pytest.mark.parametrize("columns", [6, 40, 700])
def test_entries_at_the_mean_are_kept(columns):
    """Small integers: their sum is exact in any order, so a tie is a tie."""
    scores = torch.randint(-3, 4, (60, columns), generator=generator()).float()
    scores[:, 0] -= scores.sum(-1)  # the mean is 0
    for offset in (0.0, 1024.0, 2.0**20 + 0.1):
        moved = scores + offset
        moved[:, 0] = (columns * offset - moved[:, 1:].double().sum(-1)).float()
        _, support = forward("evsoftmax", moved)
        assert torch.equal(support, scores >= 0) or offset == 2.0**20 + 0.1
        exact = moved.double()
        assert torch.equal(support, exact >= exact.mean(-1, keepdim=True))


def test_a_mean_between_two_floats_is_not_rounded_down():
    """It would round to most of the entries, which lie below it; the others are the next float."""
    low = torch.randn(50, 1, generator=generator()) * 10
    high = low.nextafter(torch.tensor(math.inf))
    for columns in (5, 40, 700):
        scores = torch.where(torch.arange(columns) % 5 == 4, high, low)
        _, support = forward("evsoftmax", scores)
        assert torch.equal(support, scores == high)


def test_sparsemax_comes_to_an_end_with_an_entry_at_the_threshold():
    a = torch.empty(300).uniform_(-0.249, -0.126, generator=generator())
    at = ((a.double() - 1) / 2).float()
    b = torch.cat([at, at.nextafter(torch.tensor(0.0)), at.nextafter(torch.tensor(-1.0))])
    scores = torch.full((len(b), 8), -5.0)
    scores[:, :3] = torch.stack([torch.zeros_like(b), a.repeat(3), b], -1)
    p, _ = forward("sparsemax", scores)
    expected, _ = forward("sparsemax", scores.double())
    torch.testing.assert_close(p, expected.float(), atol=2e-7, rtol=0)


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize(("dtype", "power"), [(torch.float32, 29), (torch.float64, 57)])
def test_an_offset_far_from_zero_changes_no_probability(name, dtype, power):
    scores = torch.randn(6, 65, generator=generator()) * 100
    scores = (scores.to(dtype) + 1.5 * 2.0**power).to(dtype)
    near = scores.double() - scores.amax(-1, keepdim=True).double()  # exact
    p, support = forward(name, scores)
    for v, q, s in zip(near.numpy(), p, support, strict=True):
        expected, expected_support = REFERENCE[name](v)
        np.testing.assert_allclose(q.double(), expected, rtol=3e-6, atol=1e-6)
        if name == "evsoftmax":
            assert s.tolist() == expected_support.tolist()


@each
def test_huge_tiny_and_distant_scores(name):
    base = scores_of(9, 70)
    for scores in (base * 1e-42, base * 1e30, base + 1e4, base * 100):
        p, support = forward(name, scores)
        assert p.isfinite().all()
        assert support[range(9), scores.argmax(-1)].all()
        torch.testing.assert_close(p.sum(-1), torch.ones(9), atol=1e-5, rtol=0)


@each_kernel
def test_any_layout_and_broadcast_masks_give_the_same(name):
    scores = scores_of(2 * 3 * 5, 20).view(2, 3, 5, 20)
    masks = torch.rand(2, 3, 5, 20, generator=generator(1)) < 0.7
    kept = {(2, 3, 5): masks, (2, 1, 1): masks[:, :1, :1], (1, 3, 1): masks[:1, :, :1]}
    kept[1, 1, 5] = masks[:1, :1]
    for mask in kept.values():
        whole = mask.expand(scores.shape).contiguous()
        expected = forward(name, scores, whole)
        turned = scores.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)
        sliced = torch.full((2, 3, 5, 33), math.nan)[..., 7:27].copy_(scores)
        reordered = scores.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
        for given in (scores, turned, sliced, reordered):
            p, support = forward(name, given, mask)
            assert torch.equal(p, expected[0])
            assert torch.equal(support, expected[1])


def jacobian_product(name, p, g):
    alpha = {"evsoftmax": 1.0, "sparsemax": 2.0, "entmax15": 1.5}.get(name) or alpha_of(name)
    slope = np.where(p > 0, np.where(p > 0, p, 1) ** (2 - alpha), 0)
    total = slope.sum(-1, keepdims=True)
    return slope * (g - (slope * g).sum(-1, keepdims=True) / np.where(total > 0, total, 1))


@each
@pytest.mark.parametrize("columns", [1, 2, 17, 64, 129, 1025, 16400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_equals_the_formula(name, columns, dtype):
    rows = 20 if columns < 1000 else 2
    mask = torch.rand(rows, columns, generator=generator(1)) < 0.9
    mask[-1] = False
    p, _ = forward(name, scores_of(rows, columns).to(dtype), mask)
    grad = torch.randn(rows, columns, generator=generator(2), dtype=dtype)
    grad[~mask] = math.nan  # which must not be looked at
    result = backward(name, p, grad)
    expected = jacobian_product(name, p.double().numpy(), grad.double().nan_to_num().numpy())
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(result.double().numpy(), expected, rtol=0, atol=tolerance)
    assert (result[~mask] == 0).all()


@pytest.mark.parametrize(
    ("count", "columns", "alpha"),
    [(4, 6, alpha) for alpha in (1.001, 1.01, 1.2, 1.5, 1.9)] + [(1, 16400, 1.01), (1, 16400, 1.9)],
)
def test_gradient_of_alpha_is_that_of_finite_differences(count, columns, alpha):
    """One alpha per row, in float64, and in float32 the same to its precision."""
    from onmt_evsoftmax.kernels.triton import rows

    scores = scores_of(count, columns).double() * 0.2
    at = torch.full((count, 1), alpha, dtype=torch.float64)
    grad = torch.randn(scores.shape, generator=generator(3), dtype=torch.float64)

    def value(moved):
        p, _ = rows.rows_forward("entmax", scores.to(DEVICE), alpha=moved.to(DEVICE))
        return (p.cpu() * grad).sum(-1, keepdim=True)

    # Near 2, a key that enters the support bends the curve: among many a long step crosses one.
    step = 1e-7
    expected = (value(at + step) - value(at - step)) / (2 * step)
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 3e-5)):
        given = [t.to(DEVICE, dtype) for t in (scores, grad, at)]
        p, _ = rows.rows_forward("entmax", given[0], alpha=given[2])
        _, got = rows.rows_backward("entmax", p, given[1], alpha=given[2], want_alpha=True)
        bound = tolerance * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(got.cpu().double(), expected, atol=bound, rtol=tolerance)


def test_one_alpha_per_head():
    """From softmax (1) over sparsemax (2) to beyond; each head as if it were alone."""
    from onmt_evsoftmax.kernels.triton import rows

    alphas = torch.tensor([1.0, 1.0001, 1.25, 1.5, 2.0, 3.0])
    scores = scores_of(2 * 6 * 3, 40).view(2, 6, 3, 40)
    per_head = alphas.view(1, 6, 1, 1)
    p, support = rows.rows_forward("entmax", scores.to(DEVICE), alpha=per_head.to(DEVICE))
    p = p.cpu()
    torch.testing.assert_close(p[:, 0], scores[:, 0].softmax(-1), atol=2e-7, rtol=3e-6)
    assert support[:, 0].all()
    for h, alpha in list(enumerate(alphas.tolist()))[2:]:
        for v, q in zip(scores[:, h].reshape(-1, 40), p[:, h].reshape(-1, 40), strict=True):
            expected, _ = reference.entmax(v.double().numpy(), alpha)
            np.testing.assert_allclose(q.double().numpy(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", FIXED)
def test_supports_agree_with_the_cpu_kernels(name):
    from onmt_evsoftmax import kernels

    if not kernels.available():
        pytest.skip("the CPU kernels are not compiled")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        scores = (scores_of(100, 90) * 0.3).to(dtype)
        p, support = forward(name, scores)
        expected, expected_support = kernels.rows_forward(name, scores)
        clear = [reference.margin(v, name) > 3e-7 for v in scores.double().numpy()]
        assert sum(clear) > 60
        assert torch.equal(support[clear], expected_support[clear])
        torch.testing.assert_close(p.float(), expected.float(), atol=2e-7, rtol=1e-2)


def test_no_rows_and_no_columns():
    for shape in ((0, 5), (3, 0), (0, 0)):
        p, support = forward("evsoftmax", torch.zeros(shape))
        assert p.shape == support.shape == shape
        assert backward("evsoftmax", p, p).shape == shape

"""The attention kernels in Triton's interpreter (or on a GPU), against a float64 reference."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import generator, random
from attention_checks import check, run
from where import ATTENTION, DEVICE, runs_kernels

from onmt_evsoftmax.attention import dropout

pytestmark = [runs_kernels, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

each = pytest.mark.parametrize("name", ATTENTION)


# Around the interpreter's tiles of 64 × 32 and 32 × 64.
LENGTHS = [(1, 1), (1, 40), (33, 31), (40, 70), (70, 40)]


@each
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_lengths_and_masks_of_keys(name, queries, keys, causal, masked):
    query, key, value = (
        random(2, 1, queries, 24),
        random(2, 1, keys, 24, seed=1),
        random(2, 1, keys, 20, seed=2),
    )
    mask = None
    if masked:
        mask = torch.rand(2, 1, 1, keys, generator=generator(3)) < 0.7
        mask[0, ..., 0] = True
    check(name, query, key, value, mask, causal=causal)


@each
@pytest.mark.parametrize("shape", [(2, 2, 35, 40), (2, 1, 35, 40), (35, 40)])
def test_a_mask_for_every_query(name, shape):
    query, key, value = random(2, 2, 35, 16), random(2, 2, 40, 16, seed=1), random(2, 2, 40, 16)
    mask = torch.rand(shape, generator=generator(3)) < 0.6
    mask = mask.view((1,) * (4 - len(shape)) + shape)
    check(name, query, key, value, mask)
    check(name, query, key, value, mask.transpose(2, 3).contiguous().transpose(2, 3), causal=True)


@each
@pytest.mark.parametrize("shape", [(1, 2, 35, 40), (2, 1, 1, 40)])
def test_a_bias(name, shape):
    query, key, value = random(2, 2, 35, 16), random(2, 2, 40, 16, seed=1), random(2, 2, 40, 16)
    bias = random(*shape, seed=4)
    check(name, query, key, value, bias=bias)
    bias[..., 3:9] = -math.inf  # which counts as masked
    mask = torch.rand(2, 1, 1, 40, generator=generator(3)) < 0.8
    check(name, query, key, value, mask, bias, causal=True)


@each
def test_grouped_queries(name):
    query, key, value = random(1, 4, 20, 16), random(1, 2, 40, 16, seed=1), random(1, 2, 40, 16)
    check(name, query, key, value)
    mask = torch.rand(1, 4, 1, 40, generator=generator(3)) < 0.7
    check(name, query, key, value, mask, causal=True)


@each
@pytest.mark.parametrize(("size", "value_size"), [(1, 3), (16, 65), (130, 96), (256, 256)])
def test_head_sizes(name, size, value_size):
    query, key = random(1, 1, 20, size), random(1, 1, 40, size, seed=1)
    check(name, query, key, random(1, 1, 40, value_size, seed=2), tolerance=1e-5)


@each
@pytest.mark.parametrize("dropout_p", [0.3, 0.9])
def test_dropout_drops_what_the_cpu_kernels_drop(name, dropout_p):
    tensors = [random(1, 2, 40, 16, seed=i) for i in range(3)]
    mask = torch.rand(1, 1, 1, 40, generator=generator(3)) < 0.8
    seed = torch.randint(2**62, (), generator=generator(9))
    check(name, *tensors, mask, dropout_p=dropout_p, seed=seed, tolerance=2e-5)
    check(name, *tensors, causal=True, dropout_p=dropout_p, seed=seed, tolerance=2e-5)


def test_dropout_of_many_rows_is_that_of_the_hash():
    """Every probability is 1 / 40: what comes out shows which were kept."""
    query, key = torch.zeros(2, 3, 70, 16), torch.zeros(2, 3, 40, 16)
    value = torch.eye(40).expand(2, 3, 40, 40)
    for number in (0, 1, 2**62 - 1):
        seed = torch.tensor(number)
        out, _ = run("evsoftmax", query, key, value, dropout_p=0.25, seed=seed)
        expected = dropout.factors(seed, 0.25, 6, 70, 40).view(2, 3, 70, 40) / 40
        torch.testing.assert_close(out, expected.float(), atol=1e-7, rtol=1e-6)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    """Scores and thresholds are those of float32; probabilities are rounded for the product."""
    tensors = [random(1, 2, 70, 32, seed=i).to(dtype) for i in range(3)]
    mask = torch.rand(1, 1, 1, 70, generator=generator(3)) < 0.8
    tolerance = 1e-3 if dtype == torch.float16 else 8e-3
    check(name, *tensors, mask, causal=True, tolerance=tolerance)
    wide, _ = run(name, *(t.float() for t in tensors), mask, causal=True)
    out, _ = run(name, *tensors, mask, causal=True)
    torch.testing.assert_close(out.float(), wide, atol=tolerance, rtol=tolerance)


@each
def test_sharp_scores(name):
    tensors = [random(1, 2, 70, 16, seed=i) * 4 for i in range(3)]
    check(name, *tensors, causal=True, tolerance=2e-5)


@each
@pytest.mark.parametrize("causal", [False, True])
def test_early_keys_all_below_the_threshold(name, causal):
    """What an online pass took for the largest scores must be forgotten when larger ones come."""
    query, key, value = (random(1, 2, 100, 16, seed=i) for i in range(3))
    query[..., 0] = query[..., 0].abs() + 1
    key[..., 0] = torch.where(torch.arange(100) < 70, -8.0, 8.0)
    check(name, query, key, value, causal=causal, scale=0.25)


@each
def test_skipping_empty_tiles_changes_no_bit(name):
    """Keys far from a query's place score low: whole tiles are empty."""
    query, key, value = (random(1, 1, 100, 16, seed=i) for i in range(3))
    place = torch.arange(100)
    bias = -0.5 * (place[:, None] - place).abs().float().view(1, 1, 100, 100)
    grad = random(1, 1, 100, 16, seed=5)
    kept = run(name, query, key, value, bias=bias, grad=grad)
    skipped = run(name, query, key, value, bias=bias, grad=grad, skip_empty=True)
    assert torch.equal(kept[0], skipped[0])
    for a, b in zip(kept[1], skipped[1], strict=True):
        assert torch.equal(a, b)


# --- masked, broken, equal, none at all -----------------------------------------------------------


@each
@pytest.mark.parametrize("kind", ["keys", "queries"])
@pytest.mark.parametrize("junk", [math.nan, -math.inf])
def test_masked_keys_take_no_part_whatever_they_hold(name, kind, junk):
    query, key, value = (random(1, 2, 40, 16, seed=i) for i in range(3))
    mask = torch.rand(40, generator=generator(3)) < 0.6
    grad = random(1, 2, 40, 16, seed=5)
    expected, _ = run(name, query, key[:, :, mask], value[:, :, mask])
    key[:, :, ~mask] = value[:, :, ~mask] = junk
    given = mask.view(1, 1, 1, 40)
    if kind == "queries":
        given = given.expand(1, 1, 40, 40).clone()
    out, grads = run(name, query, key, value, given, grad=grad)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    assert all(g.isfinite().all() for g in grads)
    assert (grads[1][:, :, ~mask] == 0).all()
    assert (grads[2][:, :, ~mask] == 0).all()


@each
def test_nothing_to_attend_to_gives_zeros(name):
    tensors = [random(2, 2, 9, 8, seed=i) for i in range(3)]
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[1] = False
    grad = random(2, 2, 9, 8, seed=5)
    out, grads = run(name, *tensors, mask, grad=grad)
    assert (out[1] == 0).all()
    assert out[0].abs().sum() > 0
    for g in grads:
        assert (g[1] == 0).all()
        assert g.isfinite().all()
    mask[...] = torch.arange(9) > 0  # a causal first query then has no key
    out, grads = run(name, *tensors, mask, grad=grad, causal=True)
    assert (out[:, :, 0] == 0).all()
    assert (grads[0][:, :, 0] == 0).all()
    assert all(t.isfinite().all() for t in (out, *grads))


def test_equal_scores_are_averaged():
    """Rounding may put q · mean(k) above every q · k_j: the row must not come out empty."""
    for size in (3, 16, 64):
        query = random(1, 2, 70, size) * 3
        key = random(1, 2, 1, size, seed=1).expand(1, 2, 70, size)
        value = random(1, 2, 70, size, seed=2)
        for causal in (False, True):
            out, grads = run(
                "evsoftmax", query, key, value, causal=causal, grad=torch.ones(1, 2, 70, size)
            )
            mean = value.mean(-2, keepdim=True).expand_as(out)
            if causal:
                mean = value.cumsum(-2) / torch.arange(1, 71).view(-1, 1)
            torch.testing.assert_close(out, mean, atol=1e-6, rtol=0)
            if not causal:
                torch.testing.assert_close(grads[2], torch.ones_like(value), atol=1e-4, rtol=0)


@each
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_key_breaks_only_its_own_rows(name, bad):
    query, key, value = (random(2, 2, 70, 16, seed=i) for i in range(3))
    key[0, 1, 30, 3] = bad
    grad = torch.ones(2, 2, 70, 16)
    out, grads = run(name, query, key, value, grad=grad, causal=True)
    assert out[0, 1, :30].isfinite().all()
    broken = out[0, 1, 30:].isnan().any(-1)
    assert broken.sum() >= 10  # a score of -inf is masked, others are NaN
    assert out[0, 1, 30:][broken].isnan().all()
    others = torch.ones(2, 2, dtype=torch.bool)
    others[0, 1] = False
    assert out[others].isfinite().all()
    for g in grads:
        assert g[others].isfinite().all()
    assert grads[1][0, 1, 30].isnan().any()


@each
def test_minus_infinity_scores_are_masked(name):
    query = random(1, 1, 20, 4).abs() + 0.1
    key, value = random(1, 1, 33, 4, seed=1), random(1, 1, 33, 5, seed=2)
    mask = torch.rand(33, generator=generator(3)) < 0.7
    key[:, :, ~mask] = -math.inf
    out, _ = run(name, query, key, value)
    expected, _ = run(name, query, key, value, mask.view(1, 1, 1, -1))
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)


@each
def test_layouts_give_the_same_bits(name):
    base = [random(2, 3, 20, 16, seed=i) for i in range(3)]
    expected, _ = run(name, *base)
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in base]
    inner = [torch.empty(2, 3, 20, 16, 2)[..., 0].copy_(t) for t in base]
    for tensors in (transposed, inner):
        assert torch.equal(run(name, *tensors)[0], expected)
    assert expected.transpose(1, 2).is_contiguous() or DEVICE == "cuda"


def test_no_queries_and_no_keys():
    for queries, keys in ((0, 5), (5, 0), (0, 0)):
        query, key, value = (torch.ones(1, 2, n, 8) for n in (queries, keys, keys))
        out, grads = run("evsoftmax", query, key, value, grad=torch.ones(1, 2, queries, 8))
        assert out.shape == (1, 2, queries, 8)
        assert (out == 0).all()
        assert [g.shape for g in grads] == [query.shape, key.shape, value.shape]
        assert all((g == 0).all() for g in grads)

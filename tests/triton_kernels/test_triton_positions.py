"""Position terms in the attention kernels, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import generator, random
from attention_checks import check, run
from where import ATTENTION, DEVICE, runs_kernels

pytestmark = [runs_kernels, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

each = pytest.mark.parametrize("name", ATTENTION)


def tensors(queries, keys, heads=1, shared=1, batch=1):
    return (
        random(batch, heads, queries, 16),
        random(batch, heads // shared, keys, 16, seed=1),
        random(batch, heads // shared, keys, 20, seed=2),
    )


def tables(window, values=True):
    found = {"relative_keys": random(2 * window + 1, 16, seed=6)}
    if values:
        found["relative_values"] = random(2 * window + 1, 20, seed=7)
    return found


# Around the interpreter's tiles of 64 queries and 32 keys; windows within one and beyond all.
@each
@pytest.mark.parametrize(
    ("queries", "keys", "window", "causal"),
    [(70, 70, 2, True), (40, 70, 3, False), (70, 40, 100, False), (1, 40, 1, False)],
)
def test_relative_positions(name, queries, keys, window, causal):
    check(name, *tensors(queries, keys), causal=causal, **tables(window))


@each
def test_alibi(name):
    slopes = torch.tensor([[0.5, 0.05]])
    check(name, *tensors(40, 70, heads=2), slopes=slopes, causal=False)
    check(name, *tensors(40, 70, heads=2), slopes=slopes, causal=True)


@each
@pytest.mark.parametrize("causal", [False, True])
def test_positions_beside_masks_of_keys_and_dropout(name, causal):
    """The mean counts the keys at each distance that take part."""
    mask = torch.rand(2, 1, 1, 70, generator=generator(3)) < 0.6
    seed = torch.randint(2**62, (), generator=generator(9))
    slopes = torch.tensor([[0.3, 0.1]]).expand(2, 2)
    options = {"slopes": slopes, "dropout_p": 0.3, "seed": seed, "causal": causal}
    given = tensors(40, 70, heads=2, batch=2)
    check(name, *given, mask, **tables(3), **options, offset=-2, tolerance=2e-5)


@each
def test_positions_beside_a_mask_for_every_query_and_a_bias(name):
    mask = torch.rand(1, 1, 40, 40, generator=generator(3)) < 0.7
    slopes = torch.tensor([[0.2, 0.1]])
    more = {"bias": random(1, 2, 40, 40, seed=4), "slopes": slopes, "causal": True}
    check(name, *tensors(40, 40, heads=2), mask, **tables(2), **more)


@each
def test_groups_of_heads_have_their_own_slopes_and_masks(name):
    slopes = torch.tensor([[0.4, 0.01, 0.1, 0.2]])
    mask = torch.rand(1, 4, 1, 40, generator=generator(3)) < 0.7
    check(name, *tensors(20, 40, heads=4, shared=2), mask, **tables(2), slopes=slopes)


@pytest.mark.parametrize("offset", [30, 200, -50])
def test_the_first_query_may_stand_anywhere(offset):
    """While decoding it comes after the keys; beyond the window all keys are alike."""
    given = tensors(9, 40)
    check("evsoftmax", *given, **tables(3), slopes=torch.tensor([[0.1]]), offset=offset)
    check("entmax15", *given, **tables(3), offset=offset, causal=offset < 0)


def test_either_table_alone():
    given = tensors(33, 40)
    check("evsoftmax", *given, **tables(2, values=False))
    check("sparsemax", *given, relative_values=random(5, 20, seed=7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Terms are those of float32: probabilities by distance are not rounded."""
    given = [t.to(dtype) for t in tensors(40, 70)]
    positions = {name: t.to(dtype).float() for name, t in tables(2).items()}
    check("evsoftmax", *given, **positions, tolerance=1e-3 if dtype == torch.float16 else 8e-3)


def test_equal_scores_are_averaged():
    """Equal keys and equal relative keys: rounding must not empty the row."""
    query, _, value = tensors(70, 70)
    key = random(1, 1, 1, 16, seed=1).expand(1, 1, 70, 16)
    relative = random(1, 16, seed=6).expand(5, 16)
    out, _ = run("evsoftmax", query * 3, key, value, relative_keys=relative)
    mean = value.mean(-2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out, mean, atol=1e-6, rtol=0)


@each
def test_a_broken_distance_breaks_the_rows_that_see_it(name):
    given, positions = tensors(40, 40), tables(3)
    positions["relative_keys"][5] = math.nan  # two keys further
    out, _ = run(name, *given, **positions)
    assert out[..., :38, :].isnan().all()
    assert out[..., 38:, :].isfinite().all()
    mask = torch.ones(1, 1, 1, 40, dtype=torch.bool)
    mask[..., 2] = False  # the only key that the first query has there
    out, _ = run(name, *given, mask, **positions)
    assert out[..., 0, :].isfinite().all()
    assert out[..., 1, :].isnan().all()


def test_nothing_to_attend_to_has_no_gradient():
    given, positions = tensors(9, 9), tables(2)
    mask = torch.zeros(1, 1, 1, 9, dtype=torch.bool)
    for name in ATTENTION:
        out, grads = run(name, *given, mask, grad=torch.ones(1, 1, 9, 20), **positions)
        assert (out == 0).all()
        assert len(grads) == 5
        assert all((g == 0).all() for g in grads)


@each
def test_skipping_empty_tiles_changes_no_bit(name):
    given, grad = tensors(100, 100), random(1, 1, 100, 20, seed=5)
    positions = {**tables(4), "slopes": torch.tensor([[0.5]])}
    kept = run(name, *given, grad=grad, **positions)
    skipped = run(name, *given, grad=grad, **positions, skip_empty=True)
    for a, b in zip([kept[0], *kept[1]], [skipped[0], *skipped[1]], strict=True):
        assert torch.equal(a, b)


def test_autocast_does_not_reach_into_the_kernels():
    given, positions = tensors(20, 20), tables(2)
    expected = run("evsoftmax", *given, grad=torch.ones(1, 1, 20, 20), **positions)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = run("evsoftmax", *given, grad=torch.ones(1, 1, 20, 20), **positions)
    for a, b in zip([expected[0], *expected[1]], [found[0], *found[1]], strict=True):
        assert torch.equal(a, b)

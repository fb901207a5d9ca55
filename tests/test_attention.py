"""ev-softmax attention in every way that computes it, against a float64 NumPy reference."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch

from onmt_evsoftmax import functional, kernels
from onmt_evsoftmax.attention import evsoftmax_attention
from onmt_evsoftmax.kernels import dropout, flex

needs_kernels = pytest.mark.skipif(
    not kernels.available(),
    reason="the kernels are not compiled or not in use: install with a C compiler and leave "
    "ONMT_EVSOFTMAX_BACKEND unset",
)


def instruction_sets() -> list[str]:
    found = []
    for name in kernels.BACKENDS[2:]:
        try:
            with kernels.using(name):
                found.append(name)
        except ValueError:
            pass
    return found


@pytest.fixture(params=instruction_sets())
def instruction_set(request):
    with kernels.using(request.param):
        yield request.param


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


class Expected(NamedTuple):
    out: np.ndarray
    grads: tuple[np.ndarray, np.ndarray, np.ndarray]
    clear: np.ndarray  # rows whose support rounding cannot change


def reference(query, key, value, grad, mask=None, is_causal=False, factor=None) -> Expected:
    """Forward and backward pass in float64; ``grad`` counts in clear rows only."""
    q, k, v, g = (t.double().numpy() for t in (query, key, value, grad))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    valid = np.ones(scores.shape, dtype=bool)
    if mask is not None:
        valid &= mask.numpy()
    if is_causal:
        valid &= np.tri(*scores.shape[-2:], dtype=bool)
    count = valid.sum(-1, keepdims=True)
    mean = np.where(valid, scores, 0).sum(-1, keepdims=True) / np.maximum(count, 1)
    distance = np.where(valid, np.abs(scores - mean), np.inf).min(-1)
    clear = (distance > 1e-5) | (count[..., 0] == 1)
    keep = valid & (
        scores >= np.minimum(mean, np.where(valid, scores, -np.inf).max(-1, keepdims=True))
    )
    e = np.where(keep, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    p = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    m = 1.0 if factor is None else factor.double().numpy().reshape(p.shape)
    g = np.where(clear[..., None], g, 0)
    dp = (g @ v.swapaxes(-1, -2)) * m
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    grads = (ds @ k, ds.swapaxes(-1, -2) @ q, (p * m).swapaxes(-1, -2) @ g)
    return Expected((p * m) @ v, grads, clear)


def check(query, key, value, mask=None, tolerance=4e-6, **options) -> None:
    """Result and gradients of ``evsoftmax_attention`` against the reference."""
    leaves = [t.clone().requires_grad_() for t in (query, key, value)]
    factor = None
    if options.get("dropout_p"):
        seed = torch.randint(2**62, (), generator=generator(9))
        heads = query[..., 0, 0].numel()
        factor = dropout.factors(seed, options["dropout_p"], heads, query.size(-2), key.size(-2))
        options["generator"] = generator(9)
    out = evsoftmax_attention(*leaves, mask, **options)
    grad = torch.randn(out.shape, generator=generator(5))
    expected = reference(query, key, value, grad, mask, options.get("is_causal", False), factor)
    assert expected.clear.mean() > 0.5
    np.testing.assert_allclose(
        out.detach().double().numpy()[expected.clear],
        expected.out[expected.clear],
        atol=tolerance,
        rtol=1e-5,
    )
    grad = grad * torch.from_numpy(expected.clear).unsqueeze(-1)
    for got, want in zip(torch.autograd.grad(out, leaves, grad), expected.grads, strict=True):
        bound = tolerance * max(1.0, np.abs(want).max())
        np.testing.assert_allclose(got.double().numpy(), want, atol=bound, rtol=1e-4)


# --- the kernel against the reference -------------------------------------------------------------

LENGTHS = [(1, 1), (1, 77), (5, 2), (6, 16), (7, 17), (63, 15), (64, 64), (65, 63), (130, 129)]
SIZES = [1, 7, 8, 9, 16, 17, 33, 64, 65, 129, 256]


@needs_kernels
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_lengths(instruction_set, queries, keys, is_causal, masked):
    query, key, value = (
        random(2, 3, queries, 24),
        random(2, 3, keys, 24, seed=1),
        random(2, 3, keys, 20, seed=2),
    )
    mask = None
    if masked:
        mask = torch.rand(2, 1, 1, keys, generator=generator(3)) < 0.7
        mask[0, ..., 0] = True
    check(query, key, value, mask, is_causal=is_causal, way="fused")


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value_size", [1, 8, 65, 256])
def test_head_sizes(instruction_set, size, value_size):
    check(
        random(1, 2, 70, size),
        random(1, 2, 81, size, seed=1),
        random(1, 2, 81, value_size, seed=2),
        way="fused",
    )


@needs_kernels
@pytest.mark.parametrize("is_causal", [False, True])
def test_many_tiles(instruction_set, is_causal):
    tensors = [random(1, 2, 1000, 32, seed=i) * 2 for i in range(3)]
    check(*tensors, is_causal=is_causal, way="fused", tolerance=2e-5)


@needs_kernels
def test_dropout(instruction_set):
    tensors = [random(2, 2, 90, 16, seed=i) for i in range(3)]
    mask = torch.rand(2, 1, 1, 90, generator=generator(3)) < 0.8
    check(*tensors, mask, dropout_p=0.3, way="fused")
    check(*tensors, mask, dropout_p=0.3, way="explicit")
    check(*tensors, is_causal=True, dropout_p=0.9, way="fused", tolerance=2e-5)


@needs_kernels
def test_layouts(instruction_set):
    """Heads split off by transposing, inner strides, expansion: the same bits."""
    base = [random(2, 3, 40, 16, seed=i) for i in range(3)]
    expected = evsoftmax_attention(*base, way="fused")
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in base]
    inner = [torch.empty(2, 3, 40, 16, 2)[..., 0].copy_(t) for t in base]
    unaligned = [torch.empty(2 * 3 * 40 * 16 + 1)[1:].view(2, 3, 40, 16).copy_(t) for t in base]
    for tensors in (transposed, inner, unaligned):
        assert torch.equal(evsoftmax_attention(*tensors, way="fused"), expected)
    assert expected.transpose(1, 2).is_contiguous()  # joining the heads copies nothing
    flat = [t.flatten(0, 1) for t in base]
    assert torch.equal(evsoftmax_attention(*flat).view_as(expected), expected)
    nested = [t.unsqueeze(0) for t in base]
    assert torch.equal(evsoftmax_attention(*nested)[0], expected)
    one = [t[0, 0] for t in base]
    assert torch.equal(evsoftmax_attention(*one), expected[0, 0])
    shared = evsoftmax_attention(base[0], base[1][:1, :1], base[2][:1, :1])
    whole = [t[:1, :1].expand(2, 3, 40, 16) for t in base[1:]]
    assert torch.equal(shared, evsoftmax_attention(base[0], *whole))


# --- special rows ---------------------------------------------------------------------------------


@needs_kernels
def test_masked_keys_take_no_part_whatever_they_hold(instruction_set):
    query, key, value = (random(2, 2, 50, 16, seed=i) for i in range(3))
    mask = torch.rand(50, generator=generator(3)) < 0.6
    expected = evsoftmax_attention(query, key[:, :, mask], value[:, :, mask], way="fused")
    for junk in (math.nan, math.inf, -math.inf, 1e30):
        key[:, :, ~mask] = value[:, :, ~mask] = junk
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        out = evsoftmax_attention(*leaves, mask, way="fused")
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out.square().sum(), leaves)
        assert all(g.isfinite().all() for g in grads)
        assert (grads[1][:, :, ~mask] == 0).all()
        assert (grads[2][:, :, ~mask] == 0).all()


@pytest.mark.parametrize("way", ["auto", "explicit"])
def test_nothing_to_attend_to_gives_zeros(way):
    leaves = [random(2, 2, 9, 8, seed=i).requires_grad_() for i in range(3)]
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[1] = False
    out = evsoftmax_attention(*leaves, mask, way=way)
    assert (out[1] == 0).all()
    assert out[0].abs().sum() > 0
    for grad in torch.autograd.grad(out.square().sum(), leaves):
        assert (grad[1] == 0).all()
        assert grad.isfinite().all()
    first = mask.clone()
    first[..., 0] = False  # a causal first query then has no key
    out = evsoftmax_attention(*leaves, first, is_causal=True, way=way)
    assert (out[:, :, 0] == 0).all()
    assert out.isfinite().all()


@needs_kernels
def test_equal_scores_are_averaged(instruction_set):
    """Rounding may put q · mean(k) above every q · k_j: the row must not come out empty."""
    for size in (3, 16, 64):
        query = random(1, 4, 130, size) * 3
        key = random(1, 4, 1, size, seed=1).expand(1, 4, 70, size)
        value = random(1, 4, 70, size, seed=2).requires_grad_()
        out = evsoftmax_attention(query, key, value, way="fused")
        torch.testing.assert_close(
            out, value.mean(-2, keepdim=True).expand_as(out), atol=1e-6, rtol=0
        )
        (grad,) = torch.autograd.grad(out.sum(), value)
        torch.testing.assert_close(grad, torch.full_like(grad, 130 / 70), atol=1e-4, rtol=0)
    out = evsoftmax_attention(torch.zeros(1, 4, 9, 64), random(1, 4, 70, 64), value, way="fused")
    torch.testing.assert_close(out, value.mean(-2, keepdim=True).expand_as(out))


@pytest.mark.parametrize("way", ["auto", "explicit"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_key_breaks_only_its_own_rows(way, bad):
    leaves = [random(2, 2, 70, 16, seed=i) for i in range(3)]
    leaves[1][0, 1, 30, 3] = bad
    leaves = [t.requires_grad_() for t in leaves]
    out = evsoftmax_attention(*leaves, is_causal=True, way=way)
    assert out[0, 1, :30].isfinite().all()
    assert out[0, 1, 30:].isnan().any(-1).sum() >= 10  # -inf scores are masked, others are NaN
    others = torch.ones(2, 2, dtype=torch.bool)
    others[0, 1] = False
    assert out[others].isfinite().all()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad[others].isfinite().all()


@needs_kernels
def test_minus_infinity_scores_are_masked(instruction_set):
    query = random(1, 1, 20, 4).abs() + 0.1
    key, value = random(1, 1, 33, 4, seed=1), random(1, 1, 33, 5, seed=2)
    mask = torch.rand(33, generator=generator(3)) < 0.7
    key[:, :, ~mask] = -math.inf
    torch.testing.assert_close(
        evsoftmax_attention(query, key, value, way="fused"),
        evsoftmax_attention(query, key, value, mask, way="fused"),
    )


# --- invariances ----------------------------------------------------------------------------------


@needs_kernels
def test_causal_equals_decoding_step_by_step(instruction_set):
    query, key, value = (random(2, 2, 140, 16, seed=i) for i in range(3))
    causal = evsoftmax_attention(query, key, value, is_causal=True, way="fused")
    steps = [
        evsoftmax_attention(query[:, :, i : i + 1], key[:, :, : i + 1], value[:, :, : i + 1])
        for i in range(140)
    ]
    stepped = torch.cat(steps, dim=2)
    close = (causal - stepped).abs().amax(-1) < 2e-6
    assert (
        close.float().mean() > 0.999
    )  # a score within rounding of its threshold may go either way


@needs_kernels
def test_padding_changes_no_bit(instruction_set):
    query, key, value = (random(2, 2, 37, 16, seed=i) for i in range(3))
    expected = evsoftmax_attention(query, key, value, way="fused")
    pad = [torch.cat([t, torch.full((2, 2, 30, 16), math.nan)], dim=2) for t in (key, value)]
    mask = torch.arange(67) < 37
    assert torch.equal(evsoftmax_attention(query, *pad, mask, way="fused"), expected)


@needs_kernels
def test_any_number_of_threads(instruction_set):
    before = torch.get_num_threads()
    leaves = [random(1, 2, 500, 16, seed=i).requires_grad_() for i in range(3)]
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            out = evsoftmax_attention(*leaves, is_causal=True, way="fused")
            results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert torch.equal(result[0], results[0][0])
        for got, want in zip(result[1:], results[0][1:], strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", ["auto", "explicit"])
def test_half_precision_is_computed_in_float32(dtype, way):
    tensors = [random(2, 2, 40, 16, seed=i).to(dtype).requires_grad_() for i in range(3)]
    out = evsoftmax_attention(*tensors, way=way)
    assert out.dtype == dtype
    wide = [t.detach().float() for t in tensors]
    assert torch.equal(out, evsoftmax_attention(*wide, way=way).to(dtype))
    assert all(g.dtype == dtype for g in torch.autograd.grad(out.sum(), tensors))


# --- dropout --------------------------------------------------------------------------------------


def test_dropout_is_reproducible_and_the_same_in_every_way():
    tensors = [random(2, 3, 50, 16, seed=i) for i in range(3)]
    first = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(1))
    again = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(1))
    other = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(2))
    explicit = evsoftmax_attention(*tensors, dropout_p=0.4, generator=generator(1), way="explicit")
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


# --- other ways -----------------------------------------------------------------------------------


def test_masks_that_differ_between_queries_and_biases():
    query, key, value = (random(2, 3, 20, 8, seed=i) for i in range(3))
    mask = torch.rand(2, 1, 20, 20, generator=generator(3)) < 0.7
    mask[..., 0] = True
    check(query, key, value, mask)
    bias = random(3, 20, 20, seed=4)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8) + bias
    expected = functional.evsoftmax(scores) @ value
    torch.testing.assert_close(evsoftmax_attention(query, key, value, bias), expected)
    minus = torch.where(mask, 0.0, -math.inf)
    torch.testing.assert_close(
        evsoftmax_attention(query, key, value, minus), evsoftmax_attention(query, key, value, mask)
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_key_mask_may_be_given_in_full(is_causal):
    query, key, value = (random(2, 3, 20, 8, seed=i) for i in range(3))
    mask = torch.rand(2, 1, 1, 20, generator=generator(3)) < 0.7
    whole = mask.expand(2, 3, 20, 20)
    expected = evsoftmax_attention(query, key, value, mask, is_causal)
    assert torch.equal(evsoftmax_attention(query, key, value, whole, is_causal), expected)
    copied = evsoftmax_attention(query, key, value, whole.contiguous(), is_causal)
    torch.testing.assert_close(copied, expected, atol=2e-6, rtol=1e-5)


def test_the_explicit_way_passes_gradcheck():
    tensors = [random(1, 2, 5, 3, seed=i).double().requires_grad_() for i in range(3)]
    assert torch.autograd.gradcheck(evsoftmax_attention, tensors)
    assert torch.autograd.gradgradcheck(evsoftmax_attention, tensors)


@needs_kernels
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_second_derivatives(dropout_p):
    query, key, value = (random(1, 2, 12, 8, seed=i).requires_grad_() for i in range(3))
    mask = torch.arange(12) < 9

    def second(way: str):
        out = evsoftmax_attention(
            query, key, value, mask, True, None, dropout_p, generator=generator(1), way=way
        )
        first = torch.autograd.grad(out.square().sum(), (query, key, value), create_graph=True)
        total = sum(g.square().sum() for g in first)
        return torch.autograd.grad(total, (query, key, value))

    for got, want in zip(second("fused"), second("explicit"), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_custom_scale_and_empty_tensors():
    query, key, value = (random(2, 3, 20, 8, seed=i) for i in range(3))
    scaled = evsoftmax_attention(query, key, value, scale=0.5)
    torch.testing.assert_close(
        scaled, evsoftmax_attention(query * 0.5 * math.sqrt(8), key, value), atol=2e-6, rtol=1e-5
    )
    assert evsoftmax_attention(query[:, :, :0], key, value).shape == (2, 3, 0, 8)
    assert evsoftmax_attention(query[:0], key[:0], value[:0]).shape == (0, 3, 20, 8)
    assert (evsoftmax_attention(query, key[:, :, :0], value[:, :, :0]) == 0).all()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"way": "quick"}, ValueError, "must be one of"),
        ({"dropout_p": 1.0}, ValueError, "below 1"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, ValueError, "does not broadcast"),
        ({"mask": torch.ones(5, dtype=torch.int64)}, TypeError, "True = takes part"),
        ({"mask": torch.zeros(4, 5), "way": "fused"}, ValueError, "differs between queries"),
        ({"dropout_p": 0.1, "way": "flex"}, ValueError, "no dropout"),
    ],
)
@needs_kernels
def test_refusals_say_what_is_wrong(options, error, says):
    query, key, value = random(1, 1, 4, 8), random(1, 1, 5, 8), random(1, 1, 5, 8)
    with pytest.raises(error, match=says):
        evsoftmax_attention(query, key, value, **options)


def test_shapes_and_types_must_fit():
    with pytest.raises(ValueError, match="do not fit"):
        evsoftmax_attention(random(4, 8), random(5, 7), random(5, 8))
    with pytest.raises(TypeError, match="one floating-point type"):
        evsoftmax_attention(random(4, 8), random(5, 8).double(), random(5, 8))
    with pytest.raises(ValueError, match="float32"), kernels.using("auto"):
        evsoftmax_attention(*(random(5, 8).double() for _ in range(3)), way="fused")


def test_without_kernels_the_explicit_way_is_taken():
    tensors = [random(2, 3, 20, 8, seed=i) for i in range(3)]
    with kernels.using("torch"):
        out = evsoftmax_attention(*tensors)
        with pytest.raises(ValueError, match="not compiled"):
            evsoftmax_attention(*tensors, way="fused")
    torch.testing.assert_close(out, evsoftmax_attention(*tensors), atol=2e-6, rtol=1e-5)


# --- torch's transformations ----------------------------------------------------------------------


@needs_kernels
def test_compiles_without_graph_breaks():
    tensors = [random(2, 2, 30, 8, seed=i).requires_grad_() for i in range(3)]
    mask = torch.arange(30) < 25
    compiled = torch.compile(evsoftmax_attention, fullgraph=True, backend="aot_eager")
    for options in ({}, {"is_causal": True}):
        expected = evsoftmax_attention(*tensors, mask, **options)
        out = compiled(*tensors, mask, **options)
        assert torch.equal(out, expected)
        grads = torch.autograd.grad(out.square().sum(), tensors)
        for got, want in zip(
            grads, torch.autograd.grad(expected.square().sum(), tensors), strict=True
        ):
            torch.testing.assert_close(got, want)
    dropped = compiled(*tensors, dropout_p=0.5)
    assert dropped.isfinite().all()


@needs_kernels
def test_operators_keep_torch_s_rules():
    tensors = [random(2, 2, 20, 8, seed=i).requires_grad_() for i in range(3)]
    mask = torch.ones(2, 2, 20, dtype=torch.bool)
    forward = torch.ops.onmt_evsoftmax.attention_forward.default
    torch.library.opcheck(forward, (*tensors, mask, True, 0.3, 0.0, None))
    torch.library.opcheck(forward, (*tensors, None, False, 0.3, 0.5, torch.tensor(7)))


@needs_kernels
def test_vmap_equals_a_loop():
    query, key, value = (random(3, 2, 20, 8, seed=i) for i in range(3))
    mask = torch.rand(3, 20, generator=generator(3)) < 0.8
    looped = torch.stack([evsoftmax_attention(*t) for t in zip(query, key, value, strict=True)])
    assert torch.equal(torch.vmap(evsoftmax_attention)(query, key, value), looped)
    shared = torch.vmap(evsoftmax_attention, in_dims=(0, None, None))(query, key[0], value[0])
    torch.testing.assert_close(shared[1], evsoftmax_attention(query[1], key[0], value[0]))
    masked = torch.vmap(evsoftmax_attention)(query, key, value, mask)
    torch.testing.assert_close(masked[2], evsoftmax_attention(query[2], key[2], value[2], mask[2]))
    gradient = torch.func.grad(lambda q: evsoftmax_attention(q, key[0], value[0]).square().sum())
    leaf = query[0].clone().requires_grad_()
    evsoftmax_attention(leaf, key[0], value[0]).square().sum().backward()
    torch.testing.assert_close(gradient(query[0]), leaf.grad, atol=1e-5, rtol=1e-4)


# --- FlexAttention --------------------------------------------------------------------------------


def flex_case(masked: bool):
    query, key, value = (random(2, 2, 48, 16, seed=i) for i in range(3))
    mask = None
    if masked:
        mask = torch.rand(2, 1, 1, 48, generator=generator(3)) < 0.7
        mask[..., 0] = True
    return query, key, value, mask


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_computes_the_same(is_causal, masked):
    """Uncompiled: torch's own definition of FlexAttention, applied to our ``score_mod``."""
    from torch.nn.attention.flex_attention import flex_attention

    query, key, value, mask = flex_case(masked)
    key_mask = None if mask is None else mask.select(-2, 0)
    out, lost = flex.attention(query, key, value, key_mask, is_causal, 0.25, run=flex_attention)
    expected = evsoftmax_attention(query, key, value, mask, is_causal, way="explicit")
    assert not lost.any()
    close = (out - expected).abs().amax(-1) < 2e-6
    assert close.float().mean() > 0.99


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_reports_rows_that_rounding_emptied():
    from torch.nn.attention.flex_attention import flex_attention

    query = random(1, 2, 64, 16) * 3
    key = random(1, 2, 1, 16, seed=1).expand(1, 2, 48, 16)
    value = random(1, 2, 48, 16, seed=2)
    out, lost = flex.attention(query, key, value, None, False, 0.25, run=flex_attention)
    assert lost.any()
    mean = value.mean(-2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out[~lost], mean[~lost], atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_compiled_on_the_cpu():
    query, key, value, mask = flex_case(True)
    with torch.no_grad():
        try:
            out = evsoftmax_attention(query, key, value, mask, is_causal=True, way="flex")
        except Exception as error:
            if "compile" in str(error).lower() and "c++" in str(error).lower():
                pytest.skip(f"torch.compile needs a C++ compiler: install g++ ({error})")
            raise
        expected = evsoftmax_attention(query, key, value, mask, is_causal=True, way="explicit")
    close = (out - expected).abs().amax(-1) < 2e-6
    assert close.float().mean() > 0.99


# --- memory ---------------------------------------------------------------------------------------

PEAK = """
import resource, torch
from onmt_evsoftmax.attention import evsoftmax_attention
torch.set_num_threads(1)
def run(length):
    tensors = [torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3)]
    evsoftmax_attention(*tensors, way="fused").sum().backward()
run(256)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(6000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_memory_does_not_grow_with_the_square_of_the_length():
    run = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, cwd="."
    )
    assert int(run.stdout) < 30_000, "kilobytes; one matrix of scores would be 144000"

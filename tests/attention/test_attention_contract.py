"""What attention promises: torch's arguments, every normalizer, equal keys, derivatives forward."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from attention_cases import generator, random
from compiled import needs_kernels
from torch.func import hessian, jacfwd, jacrev
from torch.nn.functional import scaled_dot_product_attention

from onmt_evsoftmax import evsoftmax_attention, get_normalizer, kernels, sparse_attention
from onmt_evsoftmax.attention import BACKENDS, fusion_blocker
from onmt_evsoftmax.kernels.triton import available, interpreted
from onmt_evsoftmax.normalizers.registry import get_record, normalizer_names

# --- torch's arguments ----------------------------------------------------------------------------


def test_the_arguments_are_torch_s_in_torch_s_order():
    torch_s = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale"]
    torch_s.append("enable_gqa")
    for function in (sparse_attention, evsoftmax_attention):
        parameters = inspect.signature(function).parameters
        assert list(parameters)[:8] == torch_s
        assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[8:])


def test_softmax_is_torch_s_attention():
    query, key, value = (random(2, 4, 7, 8, seed=i) for i in range(3))
    mask = torch.rand(2, 1, 7, 7, generator=generator(3)) < 0.8
    mask[..., 0] = True
    for arguments in (
        (),
        (mask,),
        (random(7, 7),),
        (None, 0.0, True),
        (None, 0.0, False, 0.3),
        (None, 1.0),
    ):
        torch.testing.assert_close(
            sparse_attention(query, key, value, *arguments, normalizer="softmax"),
            scaled_dot_product_attention(
                query,
                key,
                value,
                *arguments[:3],
                **({"scale": arguments[3]} if len(arguments) > 3 else {}),
            ),
        )


@pytest.mark.parametrize("backend", ["auto", "explicit"])
def test_dropout_of_everything_gives_zeros(backend):
    leaves = [random(1, 2, 70, 8, seed=i).requires_grad_() for i in range(3)]
    out = evsoftmax_attention(*leaves, None, 1.0, backend=backend)
    assert (out == 0).all()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert (grad == 0).all()


@pytest.mark.parametrize("backend", ["auto", "explicit"])
@pytest.mark.parametrize("shared", [1, 2, 6])
def test_heads_may_share_keys_and_values(backend, shared):
    query = random(2, 6, 9, 8).requires_grad_()
    key, value = (random(2, shared, 9, 8, seed=i).requires_grad_() for i in (1, 2))
    out = evsoftmax_attention(query, key, value, enable_gqa=True, backend=backend)
    whole = [t.repeat_interleave(6 // shared, 1) for t in (key, value)]
    expected = evsoftmax_attention(query, *whole, backend=backend)
    assert torch.equal(out, expected)
    grads = [torch.autograd.grad(o.square().sum(), (query, key, value)) for o in (out, expected)]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)
    dense = sparse_attention(query, key, value, enable_gqa=True, normalizer="softmax")
    torch.testing.assert_close(
        dense, scaled_dot_product_attention(query, key, value, enable_gqa=True)
    )


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((None, True), {}, TypeError, "dropout_p must be a number from 0 to 1, not True"),
        ((None, 0.0, 0.5), {}, TypeError, "is_causal must be True or False, not 0.5"),
        ((None, 0.0, False, "0.5"), {}, TypeError, "scale must be a number"),
        ((True,), {}, TypeError, "attn_mask must be a Tensor or None, not bool"),
        ((), {"normalizer": 3}, TypeError, "normalizer must be a name"),
        ((), {"normalizer": "evsotfmax"}, ValueError, "did you mean evsoftmax"),
        (
            (),
            {"backend": "way"},
            ValueError,
            "backend must be one of auto, fused, triton, blocks, explicit",
        ),
        ((), {"positions": torch.ones(3, 8)}, TypeError, "positions must be Positions or None"),
        (
            (),
            {"normalizer": get_normalizer("entmax", alpha="learn", heads=4)},
            ValueError,
            r"alpha of shape \(4, 1, 1\) does not fit",
        ),
        ((), {"enable_gqa": True}, ValueError, "a multiple of those of key and value"),
    ],
)
def test_arguments_of_the_wrong_kind_are_told(arguments, options, error, says):
    query, key = random(1, 3, 5, 8), random(1, 3, 5, 8)
    if "enable_gqa" in options:
        key = random(1, 2, 5, 8)
    with pytest.raises(error, match=says):
        sparse_attention(query, key, key, *arguments, **options)
    with pytest.raises(TypeError, match="query must be a Tensor, not list"):
        sparse_attention([1.0], key, key)


# --- every normalizer -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", normalizer_names())
def test_every_normalizer_has_attention(name):
    query, key, value = (random(2, 3, 9, 8, seed=i) for i in range(3))
    mask = torch.arange(9) < 7
    scores = query @ key.transpose(-2, -1) / math.sqrt(8)
    expected = get_record(name).function(scores, mask) @ value
    module = get_normalizer(name).eval()
    for normalizer in (name, get_record(name), module, lambda s, m, d: module(s, m, d)):
        out = sparse_attention(query, key, value, mask, normalizer=normalizer)
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def test_a_module_brings_its_parameters():
    query, key, value = (random(1, 2, 9, 8, seed=i) for i in range(3))
    module = get_normalizer("evsoftmax", eps=0.5)
    scores = query @ key.transpose(-2, -1) / math.sqrt(8)
    out = sparse_attention(query, key, value, normalizer=module)
    torch.testing.assert_close(out, module(scores) @ value)
    exact = sparse_attention(query, key, value, normalizer=module.eval())
    torch.testing.assert_close(exact, evsoftmax_attention(query, key, value))
    learned = get_normalizer("entmax", alpha="learn", heads=2)
    sparse_attention(query, key, value, normalizer=learned).square().sum().backward()
    assert (learned.pre_alpha.grad != 0).all()


@needs_kernels
def test_what_cannot_be_fused_says_why():
    assert fusion_blocker("evsoftmax", 64) is None
    assert fusion_blocker(get_normalizer("evsoftmax", eps=0.1).eval(), 64) is None
    assert "only evsoftmax" in fusion_blocker("softmax")
    assert "eps = 0, not 0.1" in fusion_blocker(get_normalizer("evsoftmax", eps=0.1))
    assert "300 dimensions" in fusion_blocker("evsoftmax", 300)
    with kernels.using("torch"):
        assert "not compiled" in fusion_blocker("evsoftmax")
        assert fusion_blocker("evsoftmax", kernels_needed=False) is None
    query = random(1, 1, 4, 8)
    with pytest.raises(ValueError, match=r"fused attention is not possible here: .*only evsoftmax"):
        sparse_attention(query, query, query, normalizer="softmax", backend="fused")


# --- equal keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_equal_keys_get_equal_weights_in_every_backend(backend, dtype):
    """BLAS may give equal keys scores with different last bits; how often depends on the sizes."""
    if backend == "fused" and (dtype == torch.float64 or not kernels.available()):
        pytest.skip("not what the kernel computes")
    if backend == "triton" and (dtype == torch.float64 or not (available() and interpreted())):
        pytest.skip("needs Triton's interpreter, and float32")
    for seed in range(4):
        for keys in (5, 12, 37, 65, 100):
            for size in (7, 16, 64):
                query = random(1, 2, 9, size, seed=seed).to(dtype)
                key = random(1, 2, 1, size, seed=seed + 50).to(dtype).expand(1, 2, keys, size)
                value = torch.eye(keys, dtype=dtype).expand(1, 2, keys, keys)
                with torch.no_grad():
                    out = evsoftmax_attention(query, key.contiguous(), value, backend=backend)
                tolerance = 1e-3 if dtype == torch.bfloat16 else 1e-6
                assert (out.double() - 1 / keys).abs().max() < tolerance, (seed, keys, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_keys_under_masks_and_with_gradients(dtype):
    """The keys that a query may see are equal; others are not, or are junk."""
    query = random(1, 1, 30, 16).to(dtype).requires_grad_()
    key = random(1, 1, 1, 16, seed=1).to(dtype).repeat(1, 1, 30, 1)
    key[..., 20:, :] = random(1, 1, 10, 16, seed=2).to(dtype)
    mask = (torch.rand(30, 30, generator=generator(3)) < 0.7) & (torch.arange(30) < 20)
    mask[:, 0] = True
    value = torch.eye(30, dtype=dtype).view(1, 1, 30, 30)
    key.requires_grad_()
    out = evsoftmax_attention(query, key, value, mask, backend="explicit")
    expected = mask.to(dtype) / mask.sum(-1, keepdim=True)
    torch.testing.assert_close(out[0, 0], expected)
    weight = random(1, 1, 30, 30, seed=5).to(dtype)
    grads = torch.autograd.grad((out * weight).sum(), (query, key))
    dense = sparse_attention(query, key, value, mask, normalizer="softmax", backend="explicit")
    for got, want in zip(
        grads, torch.autograd.grad((dense * weight).sum(), (query, key)), strict=True
    ):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


def test_scores_that_differ_by_more_than_rounding_stay_different():
    query, value = torch.ones(1, 1, 1, 1), torch.eye(3).view(1, 1, 3, 3)
    for gap in (1e-3, 1e-5, 3e-6):
        key = torch.tensor([1.0, 1.0, 1.0 - gap]).view(1, 1, 3, 1)
        out = evsoftmax_attention(query, key, value, scale=1.0, backend="explicit")
        assert (out[0, 0, 0] > 0).tolist() == [True, True, False], gap


# --- derivatives forward --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evsoftmax", "sparsemax", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_forward_derivatives(name, dtype):
    query, key, value = (random(1, 1, 3, 4, seed=i).to(dtype) for i in range(3))

    def loss(q):
        return sparse_attention(q, key, value, is_causal=True, normalizer=name).square().sum()

    exact = {"atol": 1e-5, "rtol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(jacfwd(loss)(query), jacrev(loss)(query), **exact)
    torch.testing.assert_close(hessian(loss)(query), jacrev(jacrev(loss))(query), **exact)


@needs_kernels
def test_the_kernel_has_no_forward_derivative_and_says_so():
    query = random(1, 1, 3, 4)
    with pytest.raises(ValueError, match="no forward-mode derivative"):
        jacfwd(lambda q: evsoftmax_attention(q, query, query, backend="fused"))(query)

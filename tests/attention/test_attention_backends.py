"""Which backend computes attention when, and that all of them agree."""

from __future__ import annotations

import math

import functional
import pytest
import torch
from attention_cases import check, generator, random
from compiled import needs_kernels
from torch.nn.functional import scaled_dot_product_attention

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention, sparse_attention


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
    expected = evsoftmax_attention(query, key, value, mask, is_causal=is_causal)
    assert torch.equal(evsoftmax_attention(query, key, value, whole, is_causal=is_causal), expected)
    copied = evsoftmax_attention(query, key, value, whole.contiguous(), is_causal=is_causal)
    torch.testing.assert_close(copied, expected, atol=2e-6, rtol=1e-5)


def test_the_explicit_backend_passes_gradcheck():
    tensors = [random(1, 2, 5, 3, seed=i).double().requires_grad_() for i in range(3)]
    assert torch.autograd.gradcheck(evsoftmax_attention, tensors)
    assert torch.autograd.gradgradcheck(evsoftmax_attention, tensors)


@needs_kernels
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_second_derivatives(dropout_p):
    query, key, value = (random(1, 2, 12, 8, seed=i).requires_grad_() for i in range(3))
    mask = torch.arange(12) < 9

    def second(backend: str):
        out = evsoftmax_attention(
            query, key, value, mask, dropout_p, True, generator=generator(1), backend=backend
        )
        first = torch.autograd.grad(out.square().sum(), (query, key, value), create_graph=True)
        total = sum(g.square().sum() for g in first)
        return torch.autograd.grad(total, (query, key, value))

    for got, want in zip(second("fused"), second("explicit"), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["auto", "explicit", "blocks"])
@pytest.mark.parametrize("name", ["evsoftmax", "sparsemax", "entmax", "softmax"])
def test_sizes_of_0(name, backend):
    for shape in ((0, 3, 20, 8), (2, 0, 20, 8), (2, 3, 20, 0), (0, 3, 1, 8)):
        leaves = [random(*shape, seed=i).requires_grad_() for i in range(3)]
        out = sparse_attention(*leaves, is_causal=True, normalizer=name, backend=backend)
        assert out.shape == shape
        for grad in torch.autograd.grad(out.sum(), leaves):
            assert (grad.shape, grad.abs().sum()) == (shape, 0)
        with torch.no_grad():
            assert sparse_attention(*leaves, normalizer=name, backend=backend).shape == shape


@pytest.mark.parametrize("backend", ["auto", "explicit", "blocks"])
def test_a_mask_of_one_number(backend):
    query, key, value = (random(2, 3, 20, 8, seed=i) for i in range(3))
    out = evsoftmax_attention(query, key, value, torch.tensor(True), backend=backend)
    torch.testing.assert_close(out, evsoftmax_attention(query, key, value))
    assert (evsoftmax_attention(query, key, value, torch.tensor(False), backend=backend) == 0).all()


def test_custom_scale_and_empty_tensors():
    query, key, value = (random(2, 3, 20, 8, seed=i) for i in range(3))
    scaled = evsoftmax_attention(query, key, value, scale=0.5)
    torch.testing.assert_close(
        scaled, evsoftmax_attention(query * 0.5 * math.sqrt(8), key, value), atol=2e-6, rtol=1e-5
    )
    assert evsoftmax_attention(query[:, :, :0], key, value).shape == (2, 3, 0, 8)
    assert evsoftmax_attention(query[:0], key[:0], value[:0]).shape == (0, 3, 20, 8)
    assert (evsoftmax_attention(query, key[:, :, :0], value[:, :, :0]) == 0).all()


@needs_kernels
def test_gradients_of_empty_values_are_zero(instruction_set):
    leaves = [random(1, 2, 40, size, seed=i).requires_grad_() for i, size in enumerate((16, 16, 0))]
    big = [random(1, 2, 40, 16, seed=i).requires_grad_() for i in range(3)]
    # What this leaves behind in memory must not come up as a gradient.
    (evsoftmax_attention(*big, backend="fused") * 1e6).square().sum().backward()
    out = evsoftmax_attention(*leaves, backend="fused")
    assert out.shape == (1, 2, 40, 0)
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert (grad == 0).all()


def test_masks_and_dropout_where_only_the_values_differ():
    """Heads with values of their own but the same query and key."""
    query, key, value = random(1, 1, 5, 8), random(1, 1, 6, 8, seed=1), random(3, 2, 6, 4, seed=2)
    whole = [t.expand(3, 2, -1, -1) for t in (query, key, value)]
    mask = torch.rand(3, 2, 5, 6, generator=generator(3)) < 0.7
    for options in (
        {"attn_mask": mask},
        {"attn_mask": random(3, 2, 5, 6)},
        {"attn_mask": mask[:, :, :1]},
    ):
        expected = evsoftmax_attention(*whole, **options)
        torch.testing.assert_close(evsoftmax_attention(query, key, value, **options), expected)
    expected = evsoftmax_attention(*whole, dropout_p=0.5, generator=generator(1))
    for backend in ("auto", "explicit"):
        got = evsoftmax_attention(
            query, key, value, dropout_p=0.5, generator=generator(1), backend=backend
        )
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("queries", [0, 4])
def test_any_mask_does_where_there_are_no_queries(queries):
    query, key = random(1, 1, queries, 8), random(1, 1, 6, 8, seed=1)
    mask = torch.ones(1, 6, dtype=torch.bool).expand(queries, 6)
    for given in (mask, mask.clone()):
        assert evsoftmax_attention(query, key, key, given).shape == (1, 1, queries, 8)


@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_autocast_changes_the_type_of_the_result_as_torch_s_and_nothing_else(backend, dtype):
    if backend == "fused" and (not kernels.available() or dtype == torch.float64):
        pytest.skip("not what the kernel computes")
    given = [random(2, 4, 50, 32, seed=i).to(dtype) for i in range(3)]
    expected = evsoftmax_attention(*given, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        out = evsoftmax_attention(*given, backend=backend)
        assert out.dtype == scaled_dot_product_attention(*given).dtype
    assert torch.equal(out, expected.to(out.dtype))


@needs_kernels
def test_autocast_changes_no_second_derivative():
    leaves = [random(1, 2, 12, 8, seed=i).requires_grad_() for i in range(3)]

    def first(autocast: bool):
        out = evsoftmax_attention(*leaves, backend="fused")
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.autograd.grad(out.square().sum(), leaves, create_graph=True)

    for got, want in zip(first(True), first(False), strict=True):
        assert torch.equal(got, want)


def test_autocast_brings_different_types_together():
    query, key, value = (random(2, 2, 20, 16, seed=i) for i in range(3))
    half = [t.bfloat16() for t in (query, key, value)]
    expected = evsoftmax_attention(query, *(t.float() for t in half[1:])).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(evsoftmax_attention(query, *half[1:]), expected)
        with pytest.raises(TypeError, match="one floating-point type"):
            evsoftmax_attention(query.double(), *half[1:])


@needs_kernels
def test_negated_views_are_read_as_what_they_are():
    """``z.conj().imag`` is a view of z's memory and a note that its numbers are negated."""
    tensors = [torch.complex(random(1, 2, 9, 8), random(1, 2, 9, 8, seed=i)) for i in range(4)]
    negated = [t.conj().imag for t in tensors]
    assert all(t.is_neg() for t in negated)
    plain = [t.clone().resolve_neg() for t in negated]
    results = []
    for *leaves, grad in (negated, plain):
        leaves = [t.detach().requires_grad_() for t in leaves]
        out = evsoftmax_attention(*leaves, backend="fused")
        results.append([out, *torch.autograd.grad(out, leaves, grad)])
        p = functional.evsoftmax(leaves[0])
        results[-1] += [p, *torch.autograd.grad(p, leaves[:1], grad)]
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"backend": "quick"}, ValueError, "must be one of"),
        ({"dropout_p": 1.1}, ValueError, "from 0 to 1"),
        ({"attn_mask": torch.ones(3, dtype=torch.bool)}, ValueError, "does not broadcast"),
        ({"attn_mask": torch.ones(5, dtype=torch.int64)}, TypeError, "True = takes part"),
        (
            {"attn_mask": torch.zeros(4, 5, requires_grad=True), "backend": "fused"},
            ValueError,
            "the bias needs a gradient",
        ),
        (
            {"attn_mask": torch.zeros(4, 5, requires_grad=True), "backend": "triton"},
            ValueError,
            "the bias needs a gradient",
        ),
        ({"attn_mask": torch.zeros(4, 5).double()}, TypeError, "needs a query of float64"),
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
    with pytest.raises(ValueError, match=r"float32|not compiled"), kernels.using("auto"):
        evsoftmax_attention(*(random(5, 8).double() for _ in range(3)), backend="fused")
    with pytest.raises(ValueError, match="enable_gqa=True"):
        evsoftmax_attention(random(1, 8, 5, 4), random(1, 2, 5, 4), random(1, 2, 5, 4))


def test_without_kernels_attention_is_explicit():
    tensors = [random(2, 3, 20, 8, seed=i) for i in range(3)]
    with kernels.using("torch"):
        out = evsoftmax_attention(*tensors)
        with pytest.raises(ValueError, match="not compiled"):
            evsoftmax_attention(*tensors, backend="fused")
    torch.testing.assert_close(out, evsoftmax_attention(*tensors), atol=2e-6, rtol=1e-5)

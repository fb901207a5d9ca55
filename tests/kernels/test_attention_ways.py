"""When attention is computed in which way, and that all of them agree."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import check, generator, random
from compiled import needs_kernels

from onmt_evsoftmax import functional, kernels
from onmt_evsoftmax.attention import evsoftmax_attention


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


@needs_kernels
def test_gradients_of_empty_values_are_zero(instruction_set):
    leaves = [random(1, 2, 40, size, seed=i).requires_grad_() for i, size in enumerate((16, 16, 0))]
    big = [random(1, 2, 40, 16, seed=i).requires_grad_() for i in range(3)]
    # What this leaves behind in memory must not come up as a gradient.
    (evsoftmax_attention(*big, way="fused") * 1e6).square().sum().backward()
    out = evsoftmax_attention(*leaves, way="fused")
    assert out.shape == (1, 2, 40, 0)
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert (grad == 0).all()


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
    with pytest.raises(ValueError, match=r"float32|not compiled"), kernels.using("auto"):
        evsoftmax_attention(*(random(5, 8).double() for _ in range(3)), way="fused")


def test_without_kernels_the_explicit_way_is_taken():
    tensors = [random(2, 3, 20, 8, seed=i) for i in range(3)]
    with kernels.using("torch"):
        out = evsoftmax_attention(*tensors)
        with pytest.raises(ValueError, match="not compiled"):
            evsoftmax_attention(*tensors, way="fused")
    torch.testing.assert_close(out, evsoftmax_attention(*tensors), atol=2e-6, rtol=1e-5)

"""Inputs of attention, and how what comes out is held against the reference."""

from __future__ import annotations

import math

import numpy as np
import torch
from attention_reference import reference

from onmt_evsoftmax.attention import dropout, sparse_attention


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


def check(query, key, value, mask=None, tolerance=4e-6, normalizer="evsoftmax", **options) -> None:
    """Result and gradients of ``sparse_attention`` against the reference."""
    leaves = [t.clone().requires_grad_() for t in (query, key, value)]
    factor = None
    if options.get("dropout_p"):
        seed = torch.randint(2**62, (), generator=generator(9))
        heads = query[..., 0, 0].numel()
        factor = dropout.factors(seed, options["dropout_p"], heads, query.size(-2), key.size(-2))
        options["generator"] = generator(9)
    out = sparse_attention(*leaves, mask, normalizer=normalizer, **options)
    grad = torch.randn(out.shape, generator=generator(5))
    scale, causal = 1 / math.sqrt(query.size(-1)), options.get("is_causal", False)
    limits = (mask, None) if mask is None or mask.dtype == torch.bool else (None, mask)
    expected = reference(normalizer, query, key, value, grad, scale, *limits, causal, factor)
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

"""Inputs of attention, and a float64 NumPy reference of its result and gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from onmt_evsoftmax.attention import dropout, sparse_attention


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


class Expected(NamedTuple):
    out: np.ndarray
    grads: tuple[np.ndarray, np.ndarray, np.ndarray]
    clear: np.ndarray  # rows whose support rounding cannot change


#: Normalizers with a fused attention → the slope s of their Jacobian diag(s) − s sᵀ / Σs.
SLOPES = {
    "evsoftmax": lambda p: p,
    "sparsemax": lambda p: (p > 0).astype(float),
    "entmax15": np.sqrt,
}


def entmax(scores, alpha) -> np.ndarray:
    """alpha-entmax of all rows at once, by bisection; zeros where a row is -inf throughout."""
    most = scores.max(-1, keepdims=True)
    z = (alpha - 1) * (scores - np.where(most > -np.inf, most, 0))
    low, high = np.full_like(most, -1.0), np.zeros_like(most)
    for _ in range(60):
        tau = (low + high) / 2
        enough = (np.maximum(z - tau, 0) ** (1 / (alpha - 1))).sum(-1, keepdims=True) >= 1
        low, high = np.where(enough, tau, low), np.where(enough, high, tau)
    p = np.maximum(z - low, 0) ** (1 / (alpha - 1))
    return p / np.maximum(p.sum(-1, keepdims=True), 1e-300)


def probabilities(scores, valid, normalizer) -> tuple[np.ndarray, np.ndarray]:
    """p in float64, and which rows are clear: rounding cannot change their support."""
    if normalizer != "evsoftmax":
        p = entmax(
            np.where(valid, scores, -np.inf), {"sparsemax": 2.0, "entmax15": 1.5}[normalizer]
        )
        return p, np.ones(scores.shape[:-1], dtype=bool)
    count = valid.sum(-1, keepdims=True)
    mean = np.where(valid, scores, 0).sum(-1, keepdims=True) / np.maximum(count, 1)
    distance = np.where(valid, np.abs(scores - mean), np.inf).min(-1)
    clear = (distance > 1e-5) | (count[..., 0] == 1)
    most = np.where(valid, scores, -np.inf).max(-1, keepdims=True)
    keep = valid & (scores >= np.minimum(mean, most))
    e = np.where(keep, np.exp(scores - np.where(valid.any(-1, keepdims=True), most, 0)), 0)
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300), clear


def reference(
    query, key, value, grad, mask=None, is_causal=False, factor=None, normalizer="evsoftmax"
) -> Expected:
    """Forward and backward pass in float64; ``grad`` counts in clear rows only."""
    q, k, v, g = (t.double().numpy() for t in (query, key, value, grad))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale
    valid = np.ones(scores.shape, dtype=bool)
    if mask is not None and mask.dtype == torch.bool:
        valid &= mask.numpy()
    elif mask is not None:
        scores = scores + mask.double().numpy()
        valid &= scores > -np.inf
    if is_causal:
        valid &= np.tri(*scores.shape[-2:], dtype=bool)
    p, clear = probabilities(scores, valid, normalizer)
    m = 1.0 if factor is None else factor.double().numpy().reshape(p.shape)
    g = np.where(clear[..., None], g, 0)
    dp = (g @ v.swapaxes(-1, -2)) * m
    s = SLOPES[normalizer](p)
    mean = (s * dp).sum(-1, keepdims=True) / np.maximum(s.sum(-1, keepdims=True), 1e-300)
    ds = s * (dp - mean) * scale
    grads = (ds @ k, ds.swapaxes(-1, -2) @ q, (p * m).swapaxes(-1, -2) @ g)
    return Expected((p * m) @ v, grads, clear)


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
    causal = options.get("is_causal", False)
    expected = reference(query, key, value, grad, mask, causal, factor, normalizer)
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

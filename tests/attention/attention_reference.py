"""Attention of every normalizer, and its gradients, in float64 NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Expected(NamedTuple):
    out: np.ndarray
    grads: tuple[np.ndarray, ...]  # of query, key, value, and relative keys and values if given
    clear: np.ndarray  # rows whose support rounding cannot change


#: Normalizers with a fused attention → alpha of the slope p^(2 − alpha) of their Jacobian.
ALPHAS = {"evsoftmax": 1.0, "sparsemax": 2.0, "entmax15": 1.5}


def _projection(scores: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """(p, which rows are clear: all); -inf takes no part."""
    top = scores.max(-1, keepdims=True)
    z = (alpha - 1) * (scores - np.where(np.isfinite(top), top, 0))
    low, high = np.full(top.shape, -1.0), np.zeros(top.shape)
    for _ in range(60):
        tau = (low + high) / 2
        more = (np.maximum(z - tau, 0) ** (1 / (alpha - 1))).sum(-1, keepdims=True) >= 1
        low, high = np.where(more, tau, low), np.where(more, high, tau)
    p = np.maximum(z - low, 0) ** (1 / (alpha - 1))
    p = p / np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return p, np.ones(p.shape[:-1], dtype=bool)


def _evsoftmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(p, which rows are clear); -inf takes no part."""
    valid = scores > -np.inf
    count = valid.sum(-1, keepdims=True)
    mean = np.where(valid, scores, 0).sum(-1, keepdims=True) / np.maximum(count, 1)
    distance = np.where(valid, np.abs(scores - mean), np.inf).min(-1)
    top = np.where(count > 0, scores.max(-1, keepdims=True), 0)
    e = np.where(valid & (scores >= np.minimum(mean, top)), np.exp(scores - top), 0)
    p = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    return p, (distance > 1e-5) | (count[..., 0] == 1)


class Places(NamedTuple):
    """Position terms, as ``attention/positions.py`` explains them; slopes are (B, H)."""

    relative_keys: Any = None
    relative_values: Any = None
    slopes: Any = None
    offset: int = 0

    def one_hot(self, queries: int, keys: int) -> np.ndarray:
        """(L, S, 2w + 1): 1 at the clipped distance of each pair."""
        size = len(self.relative_keys if self.relative_keys is not None else self.relative_values)
        window = size // 2
        rows = np.clip(self.distances(queries, keys), -window, window) + window
        return np.eye(size)[rows]

    def distances(self, queries: int, keys: int) -> np.ndarray:
        return np.arange(keys) - np.arange(queries)[:, None] - self.offset


def reference(
    name,
    query,
    key,
    value,
    grad,
    scale,
    mask=None,
    bias=None,
    causal=False,
    factor=None,
    places=None,
) -> Expected:
    """Result and gradients; ``grad`` counts in clear rows only."""
    q, k, v, g = (t.double().numpy() for t in (query, key, value, grad))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.swapaxes(-1, -2) * scale
    places = Places() if places is None else places
    rk, rv, slopes = (None if t is None else t.double().numpy() for t in places[:3])
    at = places.one_hot(q.shape[2], k.shape[2]) if rk is not None or rv is not None else None
    if rk is not None:
        scores = scores + np.einsum("bhle,me,lsm->bhls", q, rk, at, optimize=True) * scale
    if slopes is not None:
        distances = np.abs(places.distances(q.shape[2], k.shape[2]))
        scores = scores - slopes[:, :, None, None] * distances
    if bias is not None:
        scores = scores + bias.double().numpy()
    valid = np.ones(scores.shape, dtype=bool)
    if mask is not None:
        valid &= mask.numpy()
    if causal:
        valid &= np.tri(*scores.shape[-2:], dtype=bool)
    scores = np.where(valid, scores, -np.inf)
    alpha = ALPHAS[name]
    p, clear = _evsoftmax(scores) if name == "evsoftmax" else _projection(scores, alpha)
    slope = np.where(p > 0, p ** (2 - alpha), 0)
    m = 1.0 if factor is None else factor.double().numpy().reshape(p.shape)
    g = np.where(clear[..., None], g, 0)
    dp = g @ v.swapaxes(-1, -2)
    out, more = (p * m) @ v, []
    if rv is not None:
        dp = dp + np.einsum("bhlv,mv,lsm->bhls", g, rv, at, optimize=True)
        out = out + np.einsum("bhls,lsm,mv->bhlv", p * m, at, rv, optimize=True)
    dp = dp * m
    total = slope.sum(-1, keepdims=True)
    delta = (slope * dp).sum(-1, keepdims=True) / np.where(total > 0, total, 1)
    ds = slope * (dp - delta) * scale
    of_query = ds @ k
    if rk is not None:
        of_query = of_query + np.einsum("bhls,lsm,me->bhle", ds, at, rk, optimize=True)
        more.append(np.einsum("bhls,lsm,bhle->me", ds, at, q, optimize=True))
    if rv is not None:
        more.append(np.einsum("bhls,lsm,bhlv->mv", p * m, at, g, optimize=True))
    of_key, of_value = ds.swapaxes(-1, -2) @ q, (p * m).swapaxes(-1, -2) @ g
    shape = (q.shape[0], -1, group)
    shared = (
        of_key.reshape(*shape, *of_key.shape[2:]).sum(2),
        of_value.reshape(*shape, *of_value.shape[2:]).sum(2),
    )
    return Expected(out, (of_query, *shared, *more), clear)

"""The normalizers once more, in plain float64 NumPy and by other algorithms than the package uses.

Each takes one row without masks and returns (probabilities, support). Thresholds of the entmax
family are found by bisection; means are exactly rounded sums (math.fsum).
"""

from __future__ import annotations

import math

import numpy as np


def softmax(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    e = np.exp(v - v.max())
    return e / e.sum(), np.ones(len(v), dtype=bool)


def mean(v: np.ndarray) -> float:
    return math.fsum(v) / len(v)


def evsoftmax(v: np.ndarray, eps: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    weight = (v >= mean(v)) + eps
    e = weight * np.exp(v - v.max())
    return e / e.sum(), weight > 0


def entmax(v: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    z = (alpha - 1) * (v - v.max())
    low, high = -1.0, 0.0  # the sum of probabilities is ≥ 1 at low and 0 at high
    for _ in range(200):
        tau = (low + high) / 2
        if (np.maximum(z - tau, 0) ** (1 / (alpha - 1))).sum() >= 1:
            low = tau
        else:
            high = tau
    p = np.maximum(z - low, 0) ** (1 / (alpha - 1))
    return p / p.sum(), z > low


def sparsehourglass(v: np.ndarray, q: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    k = len(v)
    return entmax(v * (1 + k * q) / (abs(math.fsum(v)) + k * q), 2.0)


def belief_mass(v: np.ndarray) -> np.ndarray:
    """Dempster's rule as the paper writes it; products, no logarithms."""
    w = v - mean(v)
    plus, minus = np.maximum(0, w), np.maximum(0, -w)
    others = np.array([np.prod(np.delete(1 - np.exp(-minus), k)) for k in range(len(v))])
    return np.exp(-minus) * (np.exp(plus) - 1 + others)


def posthoc_evidential(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keep = belief_mass(v) != 0
    keep = keep if keep.any() else np.ones(len(v), dtype=bool)
    e = keep * np.exp(v - v.max())
    return e / e.sum(), keep


def margin(v: np.ndarray, name: str) -> float:
    """Distance of the row from a change of support, relative to the size of its scores."""
    if name.startswith("evsoftmax"):
        distance = np.abs(v - mean(v))
    else:
        alpha = {"sparsemax": 2.0, "sparsehourglass": 2.0, "entmax15": 1.5, "entmax": 1.5}
        alpha["entmax1.3"] = 1.3
        if name not in alpha:
            return math.inf
        if name == "sparsehourglass":
            v = v * (1 + len(v)) / (abs(math.fsum(v)) + len(v))
        p, _ = entmax(v, alpha[name])
        top = np.argmax(v)
        tau = v[top] - p[top] ** (alpha[name] - 1) / (alpha[name] - 1)
        distance = np.abs(v - tau)
    return float(distance.min() / max(np.abs(v).max(), 1e-300))

"""Categorical latent variables that a named normalizer makes out of scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_evsoftmax.normalizers import functional
from onmt_evsoftmax.normalizers.registry import get_normalizer

#: The mass that keeps logarithms finite in training, as in the paper.
EPS = 1e-6


def log_probabilities(name: str, scores: Tensor, eps: float = EPS) -> Tensor:
    """log p (…, K) in training form: finite for every class, also for those without mass.

    ev-softmax has such a form of its own; sparsemax, entmax and any other normalizer with zeros are
    mixed with the uniform distribution, (p + eps) / (1 + K eps).
    """
    if name == "softmax":
        return torch.log_softmax(scores, -1)
    if name == "evsoftmax":
        return functional.log_evsoftmax(scores, eps=eps)
    p = get_normalizer(name)(scores)
    return torch.log((p + eps) / (1 + eps * scores.size(-1)))


def exact(name: str, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (…, K) as the normalizer defines them, and their support (True = has mass)."""
    return get_normalizer(name).eval()(scores, return_support=True)


def methods_of(normalizer: str) -> list[str]:
    """What one trained model is evaluated as: a softmax model also gives post-hoc evidential."""
    return ["softmax", "posthoc"] if normalizer == "softmax" else [normalizer]


def of_layer(method: str, features: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Exact p (…, K) and support of a last layer, weight (K, J) and bias (K,), on features (…, J).

    ``method`` is a normalizer, or ``posthoc``: a softmax layer sparsified by its evidence.
    """
    if method == "posthoc":
        return functional.posthoc_evidential(features, weight, bias, return_support=True)
    return exact(method, F.linear(features, weight, bias))


def categorical_kl(log_q: Tensor, log_p: Tensor) -> Tensor:
    """KL(q ‖ p) (…) of two log probabilities (…, K), both finite."""
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def entropy(p: Tensor) -> Tensor:
    """Shannon entropy (…) of probabilities (…, K); 0 log 0 is 0, in value and in gradient."""
    safe = torch.where(p > 0, p, 1.0)
    return -(safe * safe.log()).sum(-1)


def gumbel_noise(like: Tensor) -> Tensor:
    """Standard Gumbel noise of the shape of ``like``."""
    # An exponential variable is never 0 in torch, so the logarithm is finite.
    return -torch.empty_like(like).exponential_().log()


def gumbel_softmax(log_p: Tensor, temperature: float, noise: Tensor | None = None) -> Tensor:
    """A relaxed one-hot sample (…, K) of log probabilities (Jang et al.; Maddison et al., 2017)."""
    noise = gumbel_noise(log_p) if noise is None else noise
    return torch.softmax((log_p + noise) / temperature, -1)

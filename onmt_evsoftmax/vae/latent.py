"""Categorical latent variables that a named normalizer makes out of scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers.registry import get_normalizer, get_record, records


def log_probabilities(name: str, scores: Tensor, eps: float) -> Tensor:
    """log p (…, K) in training form: finite for every class, also for those without mass.

    ``eps`` is the mass that keeps it finite, 1e-6 in the paper.
    softmax has such a form, and so has a normalizer with an ``eps`` of its own; any other is mixed
    with the uniform distribution, (p + eps) / (1 + K eps).
    """
    record = get_record(name)
    if record.log_function is not None:
        options = {"eps": eps} if record.parameter("eps") else {}
        log_p = record.log_function(scores, **options)
        if log_p.isfinite().all():
            return log_p
    p: Tensor = get_normalizer(name)(scores)
    return torch.log((p + eps) / (1 + eps * scores.size(-1)))


def mixed(log_p: Tensor, eps: float) -> Tensor:
    """The logarithm of (p + eps) / (1 + K eps) for a finite log p (…, K)."""
    floor = torch.full_like(log_p, math.log(eps))
    return torch.logaddexp(log_p, floor) - math.log1p(eps * log_p.size(-1))


def exact(name: str, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (…, K) as the normalizer defines them, and their support (True = has mass)."""
    return get_normalizer(name).eval()(scores, return_support=True)


def methods_of(method: str) -> list[str]:
    """What a model of this method is judged as: itself, and the normalizers made out of it."""
    return [method, *(r.name for r in records() if r.trained_as == method)]


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


def gumbel_softmax(log_p: Tensor, temperature: float) -> Tensor:
    """A relaxed one-hot sample (…, K) of log probabilities (Jang et al.; Maddison et al., 2017)."""
    return torch.softmax((log_p + gumbel_noise(log_p)) / temperature, -1)

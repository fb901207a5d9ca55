"""The definition of attention, with the L × S matrix: for every normalizer, mask and device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import dropout
from onmt_evsoftmax.attention.call import Call
from onmt_evsoftmax.normalizers.masked import HALF, may_look


def blocker(call: Call) -> str | None:
    """Why this cannot be computed explicitly, or None."""
    if call.dropout_p > 0 and kernels.exporting():
        return "dropout cannot be exported: pass dropout_p=0, as in evaluation"
    return None


def run(call: Call) -> Tensor:
    """(…, L, V)."""
    if call.mask is not None or call.seed is not None:  # which may differ where only values do
        query = call.query.expand(*call.leading, *call.query.shape[-2:])
        call = call._replace(query=query)
    dtype = call.query.dtype
    if dtype in HALF:  # the threshold must not be rounded to half precision
        query, key, value = (t.float() for t in call[:3])
        positions = call.positions and call.positions.to(torch.float32)
        call = call._replace(query=query, key=key, value=value, positions=positions)
    with without_autocast(call.query):
        scores, allowed, value = scored(call)
        p = call.choice.function(scores, allowed, -1)
        weights = p * _dropped(p, call)
        out = weights @ value
        if call.positions is not None:
            out = out + call.positions.values_of(weights)
        return out.to(dtype)


def gradients(
    grad: Tensor, call_of: Callable[..., Call], tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The backward pass of ``call_of(*tensors)`` in steps that torch differentiates in turn."""
    pull_back: Any = torch.func.vjp(lambda *given: run(call_of(*given)), *tensors)[1]
    with without_autocast(grad):
        found: tuple[Tensor, ...] = pull_back(grad)
        return found


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """No autocast: it would compute the scores, and so the thresholds, in half precision."""
    if not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type):
        return torch.autocast(tensor.device.type, enabled=False)
    return nullcontext()


def scored(call: Call) -> tuple[Tensor, Tensor | None, Tensor]:
    """Scores (…, L, S), which of them count (True), and values, 0 where none does."""
    query, key, value, mask = call[:4]
    bias, allowed = (None, mask) if mask is None or mask.dtype == torch.bool else (mask, None)
    if call.is_causal:
        causal = query.new_ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
        allowed = causal if allowed is None else allowed & causal
    seen = None
    if allowed is not None:
        seen = allowed.any(-2) if allowed.dim() > 1 else allowed
        # 0 · nan would be nan.
        key, value = (torch.where(seen.unsqueeze(-1), t, 0.0) for t in (key, value))
    query = query * call.scale
    scores = query @ key.transpose(-2, -1)
    if bias is None and call.positions is None:
        scores = _level(scores, query, key, allowed, seen)
    if call.positions is not None:
        scores = call.positions.add_to_scores(scores, query)
    if bias is not None:
        scores = scores + bias
    return scores, allowed, value


def _level(
    scores: Tensor, query: Tensor, key: Tensor, allowed: Tensor | None, seen: Tensor | None
) -> Tensor:
    """Make the scores of rows that are equal up to the rounding of the matrix product equal.

    Those are the rows whose keys are all equal; ``allowed`` (…, L, S) and ``seen`` (…, S) are True
    for what takes part.
    """
    if 0 in scores.shape:
        return scores
    look = may_look(scores) and not torch._C._are_functorch_transforms_active()
    if look and not _may_have_equal_keys(key, seen):
        return scores
    high = low = scores.detach()
    if allowed is not None:
        high, low = torch.where(allowed, high, -math.inf), torch.where(allowed, low, math.inf)
    top = high.amax(-1, keepdim=True)
    rounding = (8 + query.size(-1) / 4) * torch.finfo(scores.dtype).eps
    longest = torch.linalg.vector_norm(key.detach(), dim=-1).amax(-1, keepdim=True).unsqueeze(-1)
    bound = rounding * longest * torch.linalg.vector_norm(query.detach(), dim=-1, keepdim=True)
    flat = (top - low.amin(-1, keepdim=True) <= bound) & (bound < math.inf)
    # Exactly `top`, with the derivatives of the scores.
    level = scores + (top - scores).detach()
    return torch.where(flat, level, scores)


def _may_have_equal_keys(key: Tensor, seen: Tensor | None) -> bool:
    """Whether any two keys of a head might be equal: seldom, so this saves the work above."""
    mark = key.new_zeros(key.shape[:-1], dtype=torch.float64)
    for d in range(min(4, key.size(-1))):
        mark = mark + key[..., d].detach().double() * math.pi**d
    if seen is not None:
        mark = torch.where(seen, mark, math.nan)  # equal to nothing
    ordered = mark.sort(-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _dropped(p: Tensor, call: Call) -> Tensor | float:
    """What to multiply probabilities (…, L, S) with."""
    if call.seed is None:
        return 1.0
    queries, keys = p.shape[-2:]
    heads = p.numel() // max(queries * keys, 1)
    first, total = call.rows or (0, queries)
    seed = call.seed.to(p.device)
    factors = dropout.factors(seed, call.dropout_p, heads, queries, keys, first, total)
    return factors.view(p.shape).to(p)

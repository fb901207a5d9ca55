"""ev-softmax attention for GPUs: FlexAttention, with the threshold of every query as ``score_mod``.

Compiled, FlexAttention is one fused kernel, forward and backward, that never stores the scores.
(Compiled for a CPU it has a forward pass only, which is what can be tested without a GPU.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: Of query and value, on a GPU; the blocks that Triton multiplies are not smaller.
SMALLEST_HEAD = 16

#: Of calls, compiled each on its own.
KINDS = 256


def thresholds(
    query: Tensor, key: Tensor, key_mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """What scores of every query must reach (…, L), and the number of keys that it attends to.

    The mean score is query · (mean of its keys), summed in float64. ``key_mask`` (…, S): True =
    takes part.
    """
    keys, count = key.double(), torch.ones(key.shape[:-1], dtype=torch.float64, device=key.device)
    if key_mask is not None:
        keys, count = torch.where(key_mask.unsqueeze(-1), keys, 0.0), count * key_mask
    if causal:
        last = torch.arange(query.size(-2), device=key.device).clamp(max=key.size(-2) - 1)
        sums, count = keys.cumsum(-2)[..., last, :], count.cumsum(-1)[..., last]
    else:
        sums, count = keys.sum(-2, keepdim=True), count.sum(-1, keepdim=True)
    mean = (query.double() * scale * sums).sum(-1) / count
    # A single key is its own mean, which rounding must not raise above it.
    return torch.where(count > 1, mean, -math.inf).float(), count.expand(mean.shape)


@functools.cache
def _compiled() -> Callable[..., Any]:
    """One kernel for all lengths; and more kernels than 8, after which torch would compile no more.

    Another is compiled for every kind of call: masked or not, causal, with as many queries as keys,
    with gradients, a size of 1, a scale, a type.
    """
    from torch.nn.attention.flex_attention import flex_attention

    kinds = torch._dynamo.config.patch(recompile_limit=KINDS)
    return kinds(torch.compile(flex_attention, dynamic=True))


def why_not(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    key_mask: Tensor | None,
    dropout_p: float,
) -> str | None:
    """What stands against FlexAttention, or None."""
    tensors = (query, key, value)
    if mask is not None and key_mask is None:
        return "the mask differs between queries, or is a bias"
    if dropout_p > 0:
        return "FlexAttention has no dropout"
    if query.dim() != 4:
        return "FlexAttention takes (batch, heads, length, size)"
    if query.dtype == torch.float64:
        return "FlexAttention computes in float32"
    if query.is_cpu and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "FlexAttention has no backward pass on a CPU"
    if query.is_cuda and min(query.size(-1), value.size(-1)) < SMALLEST_HEAD:
        return f"FlexAttention takes heads of at least {SMALLEST_HEAD} dimensions on a GPU"
    if any(0 in t.shape for t in tensors):
        return "FlexAttention takes no empty tensors"
    return None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
    run: Callable[..., Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lost): lost (batch, heads, L) marks rows that seem to have kept no key.

    Rounding can put the threshold of a row above all its scores (as where all are equal); the
    caller computes such rows by another way. ``run`` is FlexAttention, by default compiled.
    """
    batch, heads, _, _ = query.shape
    if not torch.is_grad_enabled():  # FlexAttention looks at the tensors only, and refuses
        query, key, value = query.detach(), key.detach(), value.detach()
    with torch.no_grad():
        if key_mask is not None:
            key_mask = key_mask.expand(batch, heads, key.size(-2))
        bar, count = thresholds(query, key, key_mask, causal, scale)

    def keep(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        kept = score >= bar[b, h, i]
        if key_mask is not None:
            kept = kept & key_mask[b, h, j]
        if causal:
            kept = kept & (j <= i)
        return torch.where(kept, score, -math.inf)

    out = (run or _compiled())(query, key, value, score_mod=keep, scale=scale)
    with torch.no_grad():
        # A row that keeps nothing comes out as zeros or NaN, by torch's version and device.
        empty = ~(out != 0).any(-1) | out.isnan().any(-1)
    return torch.where((count > 0).unsqueeze(-1), out, 0.0), empty & (count > 0)

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

from onmt_evsoftmax.attention import explicit, reasons
from onmt_evsoftmax.attention.call import Call

#: Of query and value on a GPU: Triton multiplies no smaller blocks.
SMALLEST_HEAD = 16

#: Kinds of calls that are compiled, each on its own, before torch gives up.
MAX_RECOMPILES = 256


def thresholds(
    query: Tensor, key: Tensor, key_mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The threshold of every query's scores (…, L), and the number of keys that it attends to.

    The mean score is query · (mean of its keys), summed in float64. ``key_mask`` (…, S): True =
    takes part.
    """
    keys, count = key.double(), torch.ones(key.shape[:-1], dtype=torch.float64, device=key.device)
    low = high = keys
    if key_mask is not None:
        shown = key_mask.unsqueeze(-1)
        low, high = torch.where(shown, keys, math.inf), torch.where(shown, keys, -math.inf)
        keys, count = torch.where(shown, keys, 0.0), count * key_mask
    if causal:
        last = torch.arange(query.size(-2), device=key.device).clamp(max=key.size(-2) - 1)
        sums, count = keys.cumsum(-2)[..., last, :], count.cumsum(-1)[..., last]
        low, high = (t[..., last, :] for t in (low.cummin(-2).values, high.cummax(-2).values))
    else:
        sums, count = keys.sum(-2, keepdim=True), count.sum(-1, keepdim=True)
        low, high = low.amin(-2, keepdim=True), high.amax(-2, keepdim=True)
    mean = (query.double() * scale * sums).sum(-1) / count
    # Equal keys, and a single one, are all kept: rounding must not put the mean above some.
    equal = (high <= low).all(-1)
    return torch.where(equal, -math.inf, mean).float(), count.expand(mean.shape)


@functools.cache
def _compiled() -> Callable[..., Any]:
    """One kernel for all lengths, and more kernels than the 8 after which torch compiles no more.

    Another is compiled for every kind of call: masked or not, causal, with as many queries as keys,
    with gradients, a size of 1, a scale, a type.
    """
    from torch.nn.attention.flex_attention import flex_attention

    kinds = torch._dynamo.config.patch(recompile_limit=MAX_RECOMPILES)
    return kinds(torch.compile(flex_attention, dynamic=True))


def blocker(call: Call) -> str | None:
    """Why FlexAttention cannot compute this, or None."""
    query, _, value = tensors = call[:3]
    other = reasons.of_normalizer(call.choice) or reasons.of_mask(call)
    other = other or reasons.of_positions(call)
    other = other or reasons.of_transformation()
    if other is not None:
        return other
    if call.choice.record is None or not call.choice.record.mean_threshold:
        return "FlexAttention must know the threshold of a row before its scores"
    if call.dropout_p > 0:
        return "FlexAttention has no dropout"
    if not len(call.leading) == query.dim() - 2 == 2:
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


def run(call: Call) -> Tensor:
    """(batch, heads, L, V); head by head explicitly where FlexAttention lost rows to rounding."""
    call = call.expanded()
    query, key, value, key_mask = *call[:3], call.key_mask
    if key_mask is not None:  # 0 · nan would be nan
        key, value = (torch.where(key_mask.unsqueeze(-1), t, 0.0) for t in (key, value))
    out, lost = attention(query, key, value, key_mask, call.is_causal, call.scale)
    heads = lost.any(-1).nonzero().tolist()
    if not heads:
        return out
    whole = out.clone()
    for b, h in heads:
        mask = None if key_mask is None else key_mask[b, h]
        one = call._replace(
            query=query[b, h],
            key=key[b, h],
            value=value[b, h],
            mask=mask,
            key_mask=mask,
            leading=torch.Size(()),
        )
        whole[b, h] = torch.where(lost[b, h].unsqueeze(-1), explicit.run(one), whole[b, h])
    return whole


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
    caller computes such rows explicitly. ``run`` is FlexAttention, by default compiled.
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

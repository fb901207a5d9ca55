"""The ways to compute ev-softmax attention that :mod:`.sparse_attention` chooses from.

Shapes: query (…, L, E), key (…, S, E), value (…, S, V); a mask is True where a key takes part.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import dropout, flex
from onmt_evsoftmax.normalizers import functional

HALF = (torch.float16, torch.bfloat16)


def through_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """FlexAttention, and head by head the explicit way where it lost rows to rounding."""
    if key_mask is not None:
        key, value = _cleared(key_mask.unsqueeze(-2), key, value)
    out, lost = flex.attention(query, key, value, key_mask, is_causal, scale)
    heads = lost.any(-1).nonzero().tolist()
    if not heads:
        return out
    whole = out.clone()
    for b, h in heads:
        mask = None if key_mask is None else key_mask[b, h]
        one = explicit(query[b, h], key[b, h], value[b, h], mask, is_causal, scale, 0.0, None)
        whole[b, h] = torch.where(lost[b, h].unsqueeze(-1), one, whole[b, h])
    return whole


def autocasts(tensor: Tensor) -> bool:
    """Whether autocast is on for the device of the tensor; a meta tensor's has none."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def _as_given(tensor: Tensor) -> AbstractContextManager[Any]:
    """No autocast: it would compute the scores, and so the thresholds, in half precision."""
    if autocasts(tensor):
        return torch.autocast(tensor.device.type, enabled=False)
    return nullcontext()


def _split(
    mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """(bias, allowed): what is added to the scores, and which (…, L, S) count (True); or None."""
    bias, allowed = (None, mask) if mask is None or mask.dtype == torch.bool else (mask, None)
    if is_causal:
        sizes = (query.size(-2), key.size(-2))
        causal = torch.ones(sizes, dtype=torch.bool, device=query.device).tril()
        allowed = causal if allowed is None else allowed & causal
    return bias, allowed


def _cleared(allowed: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Keys or values (…, S, size), 0 where no query may see them: 0 · NaN would be NaN."""
    if allowed is None:
        return tensors
    seen = allowed.any(-2) if allowed.dim() > 1 else allowed
    return tuple(torch.where(seen.unsqueeze(-1), tensor, 0.0) for tensor in tensors)


def _probabilities(
    query: Tensor, key: Tensor, bias: Tensor | None, allowed: Tensor | None, scale: float
) -> Tensor:
    """The whole matrix of attention (…, L, S)."""
    scores = (query * scale) @ key.transpose(-2, -1)
    return functional.evsoftmax(scores if bias is None else scores + bias, allowed)


def _dropped(p: Tensor, dropout_p: float, seed: Tensor | None) -> Tensor | float:
    """What to multiply probabilities (…, L, S) with."""
    if seed is None:
        return 1.0
    queries, keys = p.shape[-2:]
    heads = p.numel() // max(queries * keys, 1)
    return dropout.factors(seed.to(p.device), dropout_p, heads, queries, keys).view(p.shape).to(p)


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> Tensor:
    """The definition, with the matrix of scores."""
    dtype = query.dtype
    if dtype in HALF:  # the threshold must not be rounded to half precision
        query, key, value = query.float(), key.float(), value.float()
    with _as_given(query):
        bias, allowed = _split(mask, is_causal, query, key)
        key, value = _cleared(allowed, key, value)
        p = _probabilities(query, key, bias, allowed, scale)
        return ((p * _dropped(p, dropout_p, seed)) @ value).to(dtype)


def _explicit_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel's backward pass computes, in steps that torch can differentiate."""
    with _as_given(query):
        bias, allowed = _split(mask, is_causal, query, key)
        key, value = _cleared(allowed, key, value)
        p = _probabilities(query, key, bias, allowed, scale)
        factor = _dropped(p, dropout_p, seed)
        grad_p = (grad @ value.transpose(-2, -1)) * factor
        grad_scores = p * (grad_p - (p * grad_p).sum(-1, keepdim=True)) * scale
        return (
            grad_scores @ key,
            grad_scores.transpose(-2, -1) @ query,
            (p * factor).transpose(-2, -1) @ grad,
        )


class Fused(torch.autograd.Function):
    """The kernel: (query, key, value, key_mask, causal, scale, dropout_p, seed) → (out, …).

    All are (batch, heads, …), key_mask is (batch, heads, S). The other results are what the
    backward pass needs of every row: the logarithm of its sum, and its threshold.
    """

    @staticmethod
    def forward(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        return kernels.attention_forward(query, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        query, key, value, key_mask, ctx.causal, ctx.scale, ctx.dropout_p, seed = inputs
        ctx.save_for_backward(query, key, value, key_mask, *output, seed)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        query, key, value, key_mask, out, log_sum, threshold, seed = ctx.saved_tensors
        options = (ctx.causal, ctx.scale, ctx.dropout_p, seed)
        if torch.is_grad_enabled():  # the gradient is to be differentiated in turn
            mask = None if key_mask is None else key_mask.unsqueeze(-2)
            grads = _explicit_gradients(grad, query, key, value, mask, *options)
        else:
            grads = kernels.attention_backward(
                grad, query, key, value, key_mask, out, log_sum, threshold, *options
            )
        return (*grads, None, None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        """One more batch dimension is a larger batch."""
        if in_dims[7] is not None:
            raise ValueError(
                "the attention kernel drops by one seed for the whole batch: use "
                'vmap(randomness="same"), or way="explicit"'
            )

        def larger(tensor: Tensor | None, axis: int | None) -> Tensor | None:
            if tensor is None:
                return None
            if axis is None:
                tensor, axis = tensor.expand(info.batch_size, *tensor.shape), 0
            return tensor.movedim(axis, 0).flatten(0, 1)

        results = Fused.apply(*map(larger, inputs[:4], in_dims[:4]), *inputs[4:])
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0, 0)

"""ev-softmax attention without the L × S matrix of scores.

The mean of a row of scores is the query times the mean of its keys: mean_j(q·k_j) = q·mean_j(k_j).
So the threshold of every row is known before its scores, and attention takes one pass over the
keys; keys below the threshold need neither an exponential nor their value. On a CPU this is the
kernel of :mod:`onmt_evsoftmax.kernels`; on a GPU it is FlexAttention with the threshold as
``score_mod``. A mask that differs between queries, or an additive bias, takes the explicit way:
scores, :func:`~onmt_evsoftmax.functional.evsoftmax`, product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import functional, kernels
from onmt_evsoftmax.kernels import dropout, flex
from onmt_evsoftmax.rows import apply

#: The ways to compute; ``auto`` takes the first that can.
WAYS = ("auto", "fused", "flex", "explicit")

_HALF = (torch.float16, torch.bfloat16)


def evsoftmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    *,
    generator: torch.Generator | None = None,
    way: str = "auto",
) -> Tensor:
    """``evsoftmax(query @ keyᵀ · scale) @ value``, as torch's ``scaled_dot_product_attention``.

    ``query`` is (…, L, E), ``key`` (…, S, E), ``value`` (…, S, V); the result is (…, L, V). A
    boolean ``mask``, broadcastable to (…, L, S), is **True where a key takes part**; a mask of
    floating point is added to the scores. ``is_causal`` lets query i attend to keys 0 … i and,
    unlike in torch, may be combined with a mask. ``scale`` is 1/√E by default. Rows without any key
    give zeros.

    ``dropout_p`` drops probabilities always (as torch's does: pass 0 when evaluating); what is
    dropped follows from one number drawn from ``generator``, and is the same in every way to
    compute. ``way`` forces one of ``fused``, ``flex`` and ``explicit``, or says why it cannot.
    """
    _check(query, key, value, mask, dropout_p, way)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1)) if query.size(-1) else 1.0
    seed = None
    if dropout_p > 0:
        seed = torch.randint(2**62, (), generator=generator, device=_device_of(generator))
    key_mask = _as_key_mask(mask)
    obstacles = {
        "fused": _why_not_fused(query, value, mask, key_mask),
        "flex": flex.why_not(query, value, mask, key_mask, dropout_p),
        "explicit": None,
    }
    if way == "auto":
        # FlexAttention is for GPUs; on a CPU it is there to be tested.
        order = ("flex", "explicit") if query.is_cuda else ("fused", "explicit")
        way = next(way for way in order if obstacles[way] is None)
    elif obstacles[way] is not None:
        raise ValueError(f"{way} attention is not possible here: {obstacles[way]}")
    if way == "explicit":
        return _explicit(query, key, value, mask, is_causal, scale, dropout_p, seed)
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (t.expand(*leading, *t.shape[-2:]) for t in (query, key, value))
    if key_mask is not None:
        key_mask = key_mask.expand(*leading, key.size(-2))
    if way == "flex":
        return _flex(query, key, value, key_mask, is_causal, scale)
    if key_mask is not None:
        key_mask = _as4d(key_mask.unsqueeze(-1)).squeeze(-1)
    wide = (_as4d(t.float() if t.dtype in _HALF else t) for t in (query, key, value))
    out = apply(Fused, *wide, key_mask, is_causal, scale, dropout_p, seed)[0]
    return out.reshape(*leading, *out.shape[2:]).to(query.dtype)


def _check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, way: str
) -> None:
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError("query, key and value must have at least the dimensions (length, size)")
    if query.size(-1) != key.size(-1) or key.size(-2) != value.size(-2):
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do "
            "not fit: they must be (…, L, E), (…, S, E) and (…, S, V)"
        )
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise TypeError(
            "query, key and value must have one floating-point type, not "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p must be at least 0 and below 1, not {dropout_p}")
    if mask is None:
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"mask must be boolean (True = takes part) or a bias, not {mask.dtype}")
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    whole = torch.Size((*leading, query.size(-2), key.size(-2)))
    try:
        fits = torch.broadcast_shapes(mask.shape, whole) == whole
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to the scores {tuple(whole)}"
        )


def _device_of(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _as_key_mask(mask: Tensor | None) -> Tensor | None:
    """A boolean mask that is the same for every query, without the queries: (…, S); else None."""
    if mask is None or mask.dtype != torch.bool:
        return None
    if mask.dim() < 2:
        return mask.reshape(-1)
    return mask.select(-2, 0) if mask.size(-2) == 1 or mask.stride(-2) == 0 else None


def _as4d(tensor: Tensor) -> Tensor:
    """(…, length, size) → (batch, heads, length, size)."""
    if tensor.dim() <= 4:
        return tensor.reshape(*(1,) * (4 - tensor.dim()), *tensor.shape)
    return tensor.flatten(0, -4)


def _why_not_fused(
    query: Tensor, value: Tensor, mask: Tensor | None, key_mask: Tensor | None
) -> str | None:
    """What stands against the kernel, or None."""
    if not kernels.available():
        return "the kernels are not compiled or ONMT_EVSOFTMAX_BACKEND is torch"
    if query.device.type != "cpu":
        return f"the kernel computes on the CPU, and query is on {query.device}"
    if query.dtype != torch.float32 and query.dtype not in _HALF:
        return f"the kernel computes in float32, and query is {query.dtype}"
    if mask is not None and key_mask is None:
        return "the mask differs between queries, or is a bias"
    if max(query.size(-1), value.size(-1)) > kernels.MAX_HEAD:
        return f"a head has more than {kernels.MAX_HEAD} dimensions"
    return None


def _flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """FlexAttention, and head by head the explicit way where it lost rows to rounding."""
    out, lost = flex.attention(query, key, value, key_mask, is_causal, scale)
    heads = lost.any(-1).nonzero().tolist()
    if not heads:
        return out
    whole = out.clone()
    for b, h in heads:
        mask = None if key_mask is None else key_mask[b, h]
        one = _explicit(query[b, h], key[b, h], value[b, h], mask, is_causal, scale, 0.0, None)
        whole[b, h] = torch.where(lost[b, h].unsqueeze(-1), one, whole[b, h])
    return whole


def _probabilities(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """The whole matrix of attention (…, L, S)."""
    scores = (query * scale) @ key.transpose(-2, -1)
    if mask is not None and mask.dtype != torch.bool:
        scores, mask = scores + mask, None
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        mask = causal if mask is None else mask & causal
    return functional.evsoftmax(scores, mask)


def _dropped(p: Tensor, dropout_p: float, seed: Tensor | None) -> Tensor | float:
    """What to multiply probabilities (…, L, S) with."""
    if seed is None:
        return 1.0
    queries, keys = p.shape[-2:]
    heads = p.numel() // max(queries * keys, 1)
    return dropout.factors(seed.to(p.device), dropout_p, heads, queries, keys).view(p.shape).to(p)


def _explicit(
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
    if dtype in _HALF:  # the threshold must not be rounded to half precision
        query, key, value = query.float(), key.float(), value.float()
    p = _probabilities(query, key, mask, is_causal, scale)
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
    p = _probabilities(query, key, mask, is_causal, scale)
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

        def larger(tensor: Tensor | None, axis: int | None) -> Tensor | None:
            if tensor is None:
                return None
            if axis is None:
                tensor, axis = tensor.expand(info.batch_size, *tensor.shape), 0
            return tensor.movedim(axis, 0).flatten(0, 1)

        results = Fused.apply(*map(larger, inputs[:4], in_dims[:4]), *inputs[4:])
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0, 0)

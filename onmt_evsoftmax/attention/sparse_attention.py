"""ev-softmax attention without the L × S matrix of scores.

The mean of a row of scores is the query times the mean of its keys: mean_j(q·k_j) = q·mean_j(k_j).
So the threshold of every row is known before its scores, and attention takes one pass over the
keys; keys below the threshold need neither an exponential nor their value. On a CPU this is the
kernel of :mod:`onmt_evsoftmax.kernels`; on a GPU it is FlexAttention with the threshold as
``score_mod``. A mask that differs between queries, or an additive bias, takes the explicit way:
scores, :func:`~onmt_evsoftmax.normalizers.functional.evsoftmax`, product.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import flex
from onmt_evsoftmax.attention.backends import (
    HALF,
    Fused,
    autocasts,
    explicit,
    through_flex,
)
from onmt_evsoftmax.normalizers.masked import apply, fits

#: The ways to compute; ``auto`` takes the first that can.
WAYS = ("auto", "fused", "flex", "explicit")


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

    Autocast changes nothing for tensors of one type; those of different types take its type.
    """
    if not query.dtype == key.dtype == value.dtype and autocasts(query):
        query, key, value = _in_type_of_autocast(query, key, value)
    leading = _check(query, key, value, mask, dropout_p, way)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1)) if query.size(-1) else 1.0
    seed = None
    if dropout_p > 0:
        device = None if generator is None else generator.device
        seed = torch.randint(2**62, (), generator=generator, device=device)
    key_mask = _as_key_mask(mask)
    way = _choose(way, query, key, value, mask, key_mask, dropout_p)
    if way == "explicit":
        if mask is not None or seed is not None:  # which may differ where only the values do
            query = query.expand(*leading, *query.shape[-2:])
        return explicit(query, key, value, mask, is_causal, scale, dropout_p, seed)
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        query, key, value = (t.expand(*leading, *t.shape[-2:]) for t in (query, key, value))
    if key_mask is not None:
        key_mask = key_mask.expand(*leading, key.size(-2))
    if way == "flex":
        return through_flex(query, key, value, key_mask, is_causal, scale)
    dtype = query.dtype
    if dtype in HALF:
        query, key, value = query.float(), key.float(), value.float()
    if len(leading) == 2:
        out = _fused(query, key, value, key_mask, is_causal, scale, dropout_p, seed)
    else:
        if key_mask is not None:
            key_mask = _as4d(key_mask.unsqueeze(-1)).squeeze(-1)
        flat = (_as4d(t) for t in (query, key, value))
        out = _fused(*flat, key_mask, is_causal, scale, dropout_p, seed)
        out = out.reshape(*leading, *out.shape[2:])
    return out if dtype == torch.float32 else out.to(dtype)


def _fused(*arguments: Any) -> Tensor:
    """The kernel; see :class:`~onmt_evsoftmax.attention.backends.Fused` for its arguments."""
    if torch.compiler.is_compiling():  # which knows operators better than Functions
        return torch.ops.onmt_evsoftmax.attention_forward(*arguments)[0]
    return apply(Fused, *arguments)[0]


def _in_type_of_autocast(*tensors: Tensor) -> list[Tensor]:
    """As torch's own attention does: all but float64."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    cast = (t.is_floating_point() and t.dtype != torch.float64 for t in tensors)
    return [t.to(dtype) if do else t for t, do in zip(tensors, cast, strict=True)]


def _check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, way: str
) -> torch.Size:
    """Refuse what does not fit; return the dimensions before (length, size), broadcast."""
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
    leading = query.shape[:-2]
    if not leading == key.shape[:-2] == value.shape[:-2]:
        leading = _broadcast(leading, key.shape[:-2], value.shape[:-2])
    if mask is None:
        return leading
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"mask must be boolean (True = takes part) or a bias, not {mask.dtype}")
    if mask.dtype == torch.float64 != query.dtype:
        raise TypeError(f"a bias of float64 needs a query of float64, not {query.dtype}")
    whole = torch.Size((*leading, query.size(-2), key.size(-2)))
    if not fits(mask.shape, whole):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to the scores {tuple(whole)}"
        )
    return leading


def _broadcast(*shapes: torch.Size) -> torch.Size:
    """The common dimensions before (length, size)."""
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        found = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(
            f"the dimensions of query, key and value before (length, size), {found}, do not "
            "broadcast; heads that share keys and values must repeat them"
        ) from None


def _choose(
    way: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    key_mask: Tensor | None,
    dropout_p: float,
) -> str:
    """The way to go; ValueError, with the reason, if one is forced that cannot be gone."""
    if way == "explicit":
        return way
    if way == "flex" or (way == "auto" and query.is_cuda):
        wanted, obstacle = "flex", flex.why_not(query, key, value, mask, key_mask, dropout_p)
    else:
        # FlexAttention is for GPUs; on a CPU it is there to be tested.
        wanted, obstacle = "fused", _why_not_fused(query, value, mask, key_mask)
    if obstacle is None:
        return wanted
    if way == "auto":
        return "explicit"
    raise ValueError(f"{way} attention is not possible here: {obstacle}")


def _as_key_mask(mask: Tensor | None) -> Tensor | None:
    """A boolean mask that is the same for every query, without the queries: (…, S); else None."""
    if mask is None or mask.dtype != torch.bool:
        return None
    if mask.dim() < 2:
        return mask.reshape(-1)
    if mask.size(-2) == 0:  # without queries, all masks are the same
        return mask.any(-2)
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
    if not query.is_cpu:
        return f"the kernel computes on the CPU, and query is on {query.device}"
    if query.dtype != torch.float32 and query.dtype not in HALF:
        return f"the kernel computes in float32, and query is {query.dtype}"
    if mask is not None and key_mask is None:
        return "the mask differs between queries, or is a bias"
    if max(query.size(-1), value.size(-1)) > kernels.MAX_HEAD:
        return f"a head has more than {kernels.MAX_HEAD} dimensions"
    return None

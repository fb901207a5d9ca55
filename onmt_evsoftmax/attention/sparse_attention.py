"""The function that users call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.attention import backends
from onmt_evsoftmax.attention.call import Call, Choice
from onmt_evsoftmax.attention.positions import Positions
from onmt_evsoftmax.normalizers.evsoftmax import RECORDS
from onmt_evsoftmax.normalizers.masked import fits
from onmt_evsoftmax.normalizers.registry import Normalizer, own_records

# Known before anything is compiled: looking for them is nothing that torch.compile could follow.
own_records()


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    normalizer: str | Normalizer | Callable[..., Any] = "evsoftmax",
    positions: Positions | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """``normalizer(query @ keyᵀ · scale) @ value``, as torch's ``scaled_dot_product_attention``.

    ``query`` is (…, L, E), ``key`` (…, S, E), ``value`` (…, S, V); the result is (…, L, V). A
    boolean ``attn_mask``, broadcastable to (…, L, S), is **True where a key takes part**; one of
    floating point is added to the scores. ``is_causal`` lets query i attend to keys 0 … i and,
    unlike in torch, may be combined with a mask. ``scale`` is 1/√E by default. With ``enable_gqa``,
    key and value may have fewer heads (dimension −3), each for as many heads of the query. Rows
    without any key give zeros.

    ``dropout_p`` drops probabilities always (as torch's does: pass 0 when evaluating); what is
    dropped follows from one number drawn from ``generator``, and is the same in every backend.

    ``positions`` are terms that depend on the distance of a key: relative positions and ALiBi.

    ``normalizer`` is a name, a record, a Module, or any function (scores, mask, dim) →
    probabilities. ``backend`` is one of ``auto``, ``fused`` (kernels for CPUs), ``triton`` (kernels
    for GPUs), ``blocks`` (of queries, in torch) and ``explicit``; one that cannot compute a call
    says why.

    Under autocast the result has autocast's type, as torch's has, but scores and thresholds are
    computed from the tensors as they are given.
    """
    _check_types(query, key, value, attn_mask, dropout_p, is_causal, scale, positions, backend)
    dtype = None
    if not query.is_meta and torch.is_autocast_enabled(query.device.type):
        query, key, value, dtype = _under_autocast(query, key, value)
    shared = 1
    if enable_gqa:
        key, value, shared = _shared_heads(query, key, value)
    leading = _check_shapes(query, key, value, attn_mask, shared)
    if positions is not None:
        positions.check(query, value, leading)
        positions = positions.to(query.dtype)
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1)) if query.size(-1) else 1.0
    seed = None
    if dropout_p > 0:
        device = None if generator is None else generator.device
        seed = torch.randint(2**62, (), generator=generator, device=device)
    options = (is_causal, scale, dropout_p, seed, Choice.of(normalizer), leading, positions)
    key_mask = _as_key_mask(attn_mask)
    call = Call(query, key, value, attn_mask, key_mask, *options, heads_per_key=shared)
    out = backends.compute(call, backend)
    return out if dtype is None else out.to(dtype)


def evsoftmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """:func:`sparse_attention` with ev-softmax."""
    return sparse_attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        normalizer=RECORDS[0],
        generator=generator,
        backend=backend,
    )


def _check_types(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: Any,
    is_causal: Any,
    scale: Any,
    positions: Any,
    backend: Any,
) -> None:
    """A sentence for arguments of the wrong kind, such as in another order."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a Tensor, not {type(tensor).__name__}")
    if not (mask is None or isinstance(mask, Tensor)):
        raise TypeError(f"attn_mask must be a Tensor or None, not {type(mask).__name__}")
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float):
        raise TypeError(f"dropout_p must be a number from 0 to 1, not {dropout_p!r}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must be a number from 0 to 1, not {dropout_p}")
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, not {is_causal!r}")
    if not (scale is None or (isinstance(scale, int | float) and not isinstance(scale, bool))):
        raise TypeError(f"scale must be a number or None, not {scale!r}")
    if not (positions is None or isinstance(positions, Positions)):
        raise TypeError(f"positions must be Positions or None, not {type(positions).__name__}")
    if backend != "auto" and backend not in backends.BACKENDS:
        known = ", ".join(["auto", *backends.BACKENDS])
        raise ValueError(f"backend must be one of {known}, not {backend!r}")


def _under_autocast(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor, torch.dtype | None]:
    """Different types become the widest of them, and the result has autocast's.

    Autocast leaves float64 alone; it also does not mix with others.
    """
    tensors = [query, key, value]
    if not all(t.is_floating_point() and t.dtype != torch.float64 for t in tensors):
        return query, key, value, None
    if not query.dtype == key.dtype == value.dtype:
        tensors = [t.float() for t in tensors]
    return *tensors, torch.get_autocast_dtype(query.device.type)  # type: ignore[return-value]


def _shared_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, int]:
    """Key and value (…, heads, S, size), and how many heads of the query share one of them.

    Where the two have different numbers of heads, both get those of the query.
    """
    shares = []
    for tensor in (key, value):
        heads, shared = (t.size(-3) if t.dim() > 2 else 0 for t in (query, tensor))
        if not heads or not shared or heads % shared:
            raise ValueError(
                f"enable_gqa needs (…, heads, length, size), the {heads} heads of the query a "
                f"multiple of those of key and value, {shared}"
            )
        shares.append(heads // shared)
    if shares[0] == shares[1]:
        return key, value, shares[0]
    key, value = (t.repeat_interleave(n, -3) for t, n in zip((key, value), shares, strict=True))
    return key, value, 1


def _check_shapes(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, heads_per_key: int
) -> torch.Size:
    """Refuse what does not fit; return the dimensions before (length, size), broadcast."""
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
    leading, *others = (t.shape[:-2] for t in (query, key, value))
    if heads_per_key > 1:
        others = [torch.Size((*shape[:-1], shape[-1] * heads_per_key)) for shape in others]
    if not all(shape == leading for shape in others):
        leading = _broadcast(leading, *others)
    if mask is None:
        return leading
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"attn_mask must be boolean (True = takes part) or a bias, not {mask.dtype}"
        )
    if mask.dtype == torch.float64 != query.dtype:
        raise TypeError(f"a bias of float64 needs a query of float64, not {query.dtype}")
    whole = torch.Size((*leading, query.size(-2), key.size(-2)))
    if not fits(mask.shape, whole):
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} does not broadcast to the scores "
            f"{tuple(whole)}"
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
            "broadcast; for heads that share keys and values pass enable_gqa=True"
        ) from None


def _as_key_mask(mask: Tensor | None) -> Tensor | None:
    """A boolean mask that is the same for every query, without the queries: (…, S); else None."""
    if mask is None or mask.dtype != torch.bool:
        return None
    if mask.dim() < 2:
        return mask.reshape(-1)
    if mask.size(-2) == 0:  # without queries, all masks are the same
        return mask.any(-2)
    return mask.select(-2, 0) if mask.size(-2) == 1 or mask.stride(-2) == 0 else None

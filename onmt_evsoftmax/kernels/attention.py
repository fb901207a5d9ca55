"""The attention kernel as functions of tensors, and as torch operators for what traces through.

Shapes: query (batch, heads, L, E), key (batch, heads, S, E), value (batch, heads, S, V), key_mask
(batch, heads, S) or None, True = this key takes part; all float32. Results are laid out in memory
as (batch, L, heads, V), as torch's own attention does, so that joining the heads copies nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import library

CHUNK = 64  # queries of one piece of work, as in ``c/kernels.h``


def _like_query(query: Tensor, length: int, size: int) -> Tensor:
    """An empty (batch, heads, length, size), in memory (batch, length, heads, size)."""
    batch, heads = query.shape[:2]
    return query.new_empty(batch, length, heads, size).transpose(1, 2)


def _of_rows(query: Tensor) -> tuple[Tensor, Tensor]:
    """Empty: the logarithm of every row's sum, in double beside large scores, and its threshold."""
    shape = query.shape[:3]
    return query.new_empty(shape, dtype=torch.float64), query.new_empty(shape)


def _readable(tensor: Tensor) -> Tensor:
    """The tensor with the entries of a row adjacent in memory, and not marked as negated."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) == 1 else tensor.contiguous()


def _run(
    backward: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rest: Sequence[Tensor | None],
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
    log_sum: Tensor,
    threshold: Tensor,
    splits: int,
) -> None:
    """Call the C function; ``rest`` is out and the gradients of out, query, key and value."""
    sizes = [*query.shape[:3], key.size(2), query.size(3), value.size(3), splits]
    tensors = [query, key, value, *rest]
    strides: list[int] = []
    for tensor in tensors:
        # Gradients of keys and values may have the splits as a dimension in front.
        strides += [0, 0, 0] if tensor is None else tensor.stride()[-4:-1]
    strides += [0, 0] if key_mask is None else key_mask.stride()[:2]
    strides += [0 if t is None or t.dim() == 4 else t.stride(0) for t in tensors[6:]]
    library.call(
        "attention",
        backward,
        (ctypes.c_int64 * 7)(*sizes),
        (ctypes.c_int64 * 28)(*strides),
        (ctypes.c_void_p * 8)(*(None if t is None else t.data_ptr() for t in tensors)),
        None if key_mask is None else key_mask.data_ptr(),
        causal,
        scale,
        dropout_p,
        0 if seed is None else int(seed),
        log_sum.data_ptr(),
        threshold.data_ptr(),
        torch.get_num_threads(),
    )


def attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, log of the sum of exponentials, threshold); the latter two (batch, heads, L)."""
    query, key, value = _readable(query), _readable(key), _readable(value)
    key_mask = None if key_mask is None else _readable(key_mask)
    out = _like_query(query, query.size(2), value.size(3))
    log_sum, threshold = _of_rows(query)
    options = (key_mask, causal, scale, dropout_p, seed, log_sum, threshold)
    _run(False, query, key, value, (out, None, None, None, None), *options, splits=1)
    return out, log_sum, threshold


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    log_sum: Tensor,
    threshold: Tensor,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    query, key, value = _readable(query), _readable(key), _readable(value)
    grad, out = _readable(grad), _readable(out)
    log_sum, threshold = log_sum.contiguous(), threshold.contiguous()
    key_mask = None if key_mask is None else _readable(key_mask)
    grad_query = _like_query(query, query.size(2), query.size(3))
    # Fewer heads than threads: the queries of a head are split, and what each part finds is added.
    parts = torch.get_num_threads() // max(query.size(0) * query.size(1), 1)
    splits = max(1, min(parts, query.size(2) // CHUNK))
    grad_key = _like_query(key, key.size(2), key.size(3))
    grad_value = _like_query(key, key.size(2), value.size(3))
    if splits > 1:
        grad_key = grad_key.new_empty(splits, *grad_key.shape)
        grad_value = grad_value.new_empty(splits, *grad_value.shape)
    grads = (out, grad, grad_query, grad_key, grad_value)
    options = (key_mask, causal, scale, dropout_p, seed, log_sum, threshold)
    _run(True, query, key, value, grads, *options, splits=splits)
    if splits > 1:
        grad_key = _like_query(key, key.size(2), key.size(3)).copy_(grad_key.sum(0))
        grad_value = _like_query(key, key.size(2), value.size(3)).copy_(grad_value.sum(0))
    return grad_query, grad_key, grad_value


# --- operators ------------------------------------------------------------------------------------

_operators = torch.library.Library("onmt_evsoftmax", "FRAGMENT")
_operators.define(
    "attention_forward(Tensor query, Tensor key, Tensor value, Tensor? key_mask, bool causal,"
    " float scale, float dropout_p, Tensor? seed) -> (Tensor, Tensor, Tensor)"
)
_operators.define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? key_mask,"
    " Tensor out, Tensor log_sum, Tensor threshold, bool causal, float scale, float dropout_p,"
    " Tensor? seed) -> (Tensor, Tensor, Tensor)"
)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    dropout_p: float,
    seed: Tensor | None,
) -> None:
    """Anybody can call an operator: check what the callers of the functions have checked."""
    tensors = (query, key, value)
    fit = (
        all(t.dim() == 4 and t.dtype == torch.float32 for t in tensors)
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.size(3) == key.size(3)
        and key.size(2) == value.size(2)
        and (key_mask is None or (key_mask.dtype, key_mask.shape) == (torch.bool, key.shape[:3]))
    )
    if not fit:
        raise ValueError(
            "query, key and value must be float32 (B, H, L, E), (B, H, S, E) and (B, H, S, V), a "
            f"mask boolean (B, H, S); they are {[tuple(t.shape) for t in tensors]}"
            + ("" if key_mask is None else f" and {tuple(key_mask.shape)}")
        )
    if not 0.0 <= dropout_p <= 1.0 or (dropout_p > 0 and seed is None):
        raise ValueError(f"dropout_p must be from 0 to 1, with a seed if above 0, not {dropout_p}")


def _attention_forward(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _check(query, key, value, key_mask, *options[2:])
    return attention_forward(query, key, value, key_mask, *options)


def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    log_sum: Tensor,
    threshold: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(query, key, value, key_mask, *options[2:])
    rows = query.shape[:3]
    for name, tensor, shape, dtype in (
        ("grad", grad, (*rows, value.size(3)), torch.float32),
        ("out", out, (*rows, value.size(3)), torch.float32),
        ("log_sum", log_sum, rows, torch.float64),
        ("threshold", threshold, rows, torch.float32),
    ):
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            raise ValueError(
                f"{name} must be {dtype} {tuple(shape)}, as attention_forward returned it, not "
                f"{tensor.dtype} {tuple(tensor.shape)}"
            )
    return attention_backward(grad, query, key, value, key_mask, out, log_sum, threshold, *options)


_operators.impl("attention_forward", _attention_forward, "CPU")
_operators.impl("attention_backward", _attention_backward, "CPU")


@torch.library.register_fake("onmt_evsoftmax::attention_forward", lib=_operators)
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    out = _like_query(query, query.size(2), value.size(3))
    return out, *_of_rows(query)


@torch.library.register_fake("onmt_evsoftmax::attention_backward", lib=_operators)
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _like_query(query, query.size(2), query.size(3)),
        _like_query(key, key.size(2), key.size(3)),
        _like_query(key, key.size(2), value.size(3)),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, key_mask, ctx.causal, ctx.scale, ctx.dropout_p, seed = inputs
    ctx.save_for_backward(query, key, value, key_mask, *output, seed)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, seed = ctx.saved_tensors
    grads = torch.ops.onmt_evsoftmax.attention_backward(
        grad, *tensors, ctx.causal, ctx.scale, ctx.dropout_p, seed
    )
    return (*grads, None, None, None, None, None)


torch.library.register_autograd(
    "onmt_evsoftmax::attention_forward", _differentiate, setup_context=_remember, lib=_operators
)

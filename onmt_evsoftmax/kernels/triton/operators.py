"""The kernels as torch operators, ``torch.ops.onmt_evsoftmax_triton``.

torch's dispatcher then knows their shapes (``torch.compile``, fake tensors) and their gradients.
They serve CUDA tensors, and CPU tensors where Triton's interpreter stands in for a GPU. Importing
this registers them; Triton itself is imported when one is first called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.kernels.triton import interpreted
from onmt_evsoftmax.kernels.triton.normalizers import load
from onmt_evsoftmax.kernels.triton.tiles import MAX_HEAD

NAMESPACE = "onmt_evsoftmax_triton"
ROW_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ATTENTION_DTYPES = ROW_DTYPES[:3]
_TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? bias"
_OPTIONS = (
    "bool causal, float scale, float dropout_p, Tensor? seed, bool skip_empty=False,"
    " Tensor? relative_keys=None, Tensor? relative_values=None, Tensor? slopes=None, int offset=0"
)

_operators = torch.library.Library(NAMESPACE, "DEF")
_operators.define(
    "rows_forward(str normalizer, Tensor scores, Tensor? mask, float parameter, Tensor? alpha,"
    " bool want_support) -> (Tensor, Tensor)"
)
_operators.define(
    "rows_backward(str normalizer, Tensor p, Tensor grad, Tensor? alpha, bool want_alpha,"
    " float parameter=0.0) -> (Tensor, Tensor)"
)
_operators.define(
    f"attention_forward(str normalizer, {_TENSORS}, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_operators.define(
    f"attention_backward(Tensor grad, str normalizer, {_TENSORS}, Tensor out, Tensor tops,"
    f" Tensor thresholds, Tensor inverses, Tensor masses, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)

# --- rows -----------------------------------------------------------------------------------------


def _check_broadcast(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is None:
        return
    pairs = zip(tensor.shape, shape, strict=False)
    if tensor.dim() != len(shape) or any(size not in (1, whole) for size, whole in pairs):
        raise ValueError(
            f"{name} {tuple(tensor.shape)} must have the rank of {shape} and broadcast to it"
        )


def _check_rows(normalizer: str, scores: Tensor, mask: Tensor | None, alpha: Tensor | None) -> None:
    """Operators are within everybody's reach, and a kernel reads whatever it is pointed to."""
    per_row = load(normalizer).per_row
    if scores.dtype not in ROW_DTYPES or scores.dim() == 0:
        raise TypeError(
            f"rows must be of a floating-point type in at least one dimension, not {scores.dtype} "
            f"in {scores.dim()}"
        )
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = takes part), not {mask.dtype}")
    if (alpha is not None) != per_row:
        raise ValueError(f"{normalizer} {'needs an' if per_row else 'has no'} alpha")
    _check_broadcast("mask", mask, tuple(scores.shape))
    _check_broadcast("alpha", alpha, (*scores.shape[:-1], 1))


def _one_for_all(
    normalizer: str, rows: Tensor, parameter: float, alpha: Tensor | None
) -> Tensor | None:
    """A number for a kernel that takes one per row becomes such a tensor."""
    if alpha is not None or parameter == 0.0 or not load(normalizer).per_row:
        return alpha
    return rows.new_full((1,) * rows.dim(), parameter, dtype=_wide(rows))


def _rows_forward(
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None,
    parameter: float,
    alpha: Tensor | None,
    want_support: bool,
) -> tuple[Tensor, Tensor]:
    """An operator returns tensors: a support that is not wanted is empty."""
    from onmt_evsoftmax.kernels.triton import rows

    alpha = _one_for_all(normalizer, scores, parameter, alpha)
    _check_rows(normalizer, scores, mask, alpha)
    p, support = rows.rows_forward(
        normalizer, scores, mask, parameter=parameter, alpha=alpha, want_support=want_support
    )
    return p, p.new_empty(0, dtype=torch.bool) if support is None else support


def _rows_backward(
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    alpha: Tensor | None,
    want_alpha: bool,
    parameter: float = 0.0,
) -> tuple[Tensor, Tensor]:
    from onmt_evsoftmax.kernels.triton import rows

    alpha = _one_for_all(normalizer, p, parameter, alpha)
    _check_rows(normalizer, p, None, alpha)
    if p.shape != grad.shape:
        raise ValueError(
            f"probabilities {tuple(p.shape)} and their gradient {tuple(grad.shape)} must be alike"
        )
    grad_scores, grad_alpha = rows.rows_backward(
        normalizer, p, grad, alpha=alpha, want_alpha=want_alpha
    )
    return grad_scores, grad_scores.new_empty(0) if grad_alpha is None else grad_alpha


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@torch.library.register_fake(f"{NAMESPACE}::rows_forward", lib=_operators)
def _(
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None,
    parameter: float,
    alpha: Tensor | None,
    want_support: bool,
) -> tuple[Tensor, Tensor]:
    p = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return p, scores.new_empty(scores.shape if want_support else 0, dtype=torch.bool)


@torch.library.register_fake(f"{NAMESPACE}::rows_backward", lib=_operators)
def _(
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    alpha: Tensor | None,
    want_alpha: bool,
    parameter: float = 0.0,
) -> tuple[Tensor, Tensor]:
    of_alpha = p.new_empty(*p.shape[:-1], 1, dtype=_wide(p)) if want_alpha else p.new_empty(0)
    return torch.empty_like(p, memory_format=torch.contiguous_format), of_alpha


def _remember_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.normalizer, ctx.parameter = inputs[0], inputs[3]
    ctx.save_for_backward(output[0], inputs[4])
    ctx.mark_non_differentiable(output[1])


def _differentiate_rows(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    p, alpha = ctx.saved_tensors
    want_alpha = alpha is not None and ctx.needs_input_grad[4]
    grad_scores, grad_alpha = torch.ops.onmt_evsoftmax_triton.rows_backward(
        ctx.normalizer, p, grads[0], alpha, want_alpha, ctx.parameter
    )
    of_alpha = grad_alpha.sum_to_size(alpha.shape).to(alpha.dtype) if want_alpha else None
    return None, grad_scores, None, None, of_alpha, None


torch.library.register_autograd(
    f"{NAMESPACE}::rows_forward",
    _differentiate_rows,
    setup_context=_remember_rows,
    lib=_operators,
)

# --- attention ------------------------------------------------------------------------------------


#: Of query, key, value, relative keys and relative values; or out and what backward needs.
Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _check_attention(
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    options: Any,
) -> None:
    if load(normalizer).attention_weights is None:
        raise ValueError(f"there is no attention kernel for {normalizer}")
    tensors = (query, key, value)
    fit = (
        all(t.dim() == 4 and t.dtype == query.dtype and t.size(3) <= MAX_HEAD for t in tensors)
        and query.dtype in ATTENTION_DTYPES
        and query.size(0) == key.size(0)
        and key.shape[:3] == value.shape[:3]
        and query.size(3) == key.size(3)
        and (query.size(1) % key.size(1) == 0 if key.size(1) else query.size(1) == 0)
    )
    if not fit:
        raise ValueError(
            "query, key and value must be (B, H, L, E), (B, H / G, S, E) and (B, H / G, S, V), of "
            f"one type up to float32, E and V up to {MAX_HEAD}; they are "
            f"{[(t.dtype, tuple(t.shape)) for t in tensors]}"
        )
    whole = (*query.shape[:3], key.size(2))
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = takes part), not {mask.dtype}")
    _check_broadcast("mask", mask, whole)
    _check_broadcast("bias", bias, whole)
    _check_positions(query, value, options)
    dropped = options.dropout_p
    if not 0.0 <= dropped <= 1.0 or (dropped > 0 and options.seed is None):
        raise ValueError(f"dropout_p must be from 0 to 1, with a seed, not {dropped}")


def _check_positions(query: Tensor, value: Tensor, options: Any) -> None:
    tables = (options.relative_keys, options.relative_values)
    distances = {t.size(0) for t in tables if t is not None and t.dim()} or {1}
    shapes = (
        ("relative_keys", tables[0], (*distances, query.size(3))),
        ("relative_values", tables[1], (*distances, value.size(3))),
        ("slopes", options.slopes, tuple(query.shape[:2])),
    )
    for name, tensor, shape in shapes:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be of shape {shape}, not {tuple(tensor.shape)}")
    if min(distances) % 2 == 0:
        raise ValueError(f"relative positions need an odd number of rows, not {min(distances)}")


def _attention_forward(*arguments: Any) -> Five:
    from onmt_evsoftmax.kernels.triton import attention

    normalizer, query, key, value, mask, bias, *rest = arguments
    options = attention.Options(*rest)
    _check_attention(normalizer, query, key, value, mask, bias, options)
    return attention.attention_forward(normalizer, query, key, value, mask, bias, options)


def _attention_backward(grad: Tensor, *arguments: Any) -> Five:
    from onmt_evsoftmax.kernels.triton import attention

    normalizer, query, key, value, mask, bias = arguments[:6]
    out, tops, thresholds, inverses, masses = saved = arguments[6:11]
    options = attention.Options(*arguments[11:])
    _check_attention(normalizer, query, key, value, mask, bias, options)
    rows, size = query.shape[:3], value.size(3)
    distances = masses_size(options.relative_values)
    if (
        not grad.shape == out.shape == (*rows, size)
        or any((t.shape, t.dtype) != (rows, torch.float32) for t in saved[1:4])
        or masses.shape != (*rows, distances)
    ):
        raise ValueError(
            f"out and its gradient must be {(*rows, size)}, what else attention_forward returned "
            f"float32 {tuple(rows)} and {(*rows, distances)}"
        )
    of_query, of_key, of_value, *of_tables = attention.attention_backward(
        grad, normalizer, query, key, value, mask, bias, out, tops, thresholds, inverses, masses,
        options,
    )  # fmt: skip
    # An operator returns tensors: what there is not is empty.
    of_keys, of_values = (query.new_empty(0) if t is None else t for t in of_tables)
    return of_query, of_key, of_value, of_keys, of_values


def _laid_out(like: Tensor, length: int, size: int) -> Tensor:
    batch, heads = like.shape[:2]
    return like.new_empty(batch, length, heads, size).transpose(1, 2)


@torch.library.register_fake(f"{NAMESPACE}::attention_forward", lib=_operators)
def _(
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    dropout_p: float,
    seed: Tensor | None,
    skip_empty: bool = False,
    relative_keys: Tensor | None = None,
    relative_values: Tensor | None = None,
    slopes: Tensor | None = None,
    offset: int = 0,
) -> Five:
    tops, thresholds, inverses = (
        query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(3)
    )
    masses = tops.new_empty(*tops.shape, masses_size(relative_values))
    return (
        _laid_out(query, query.size(2), value.size(3)),
        tops,
        thresholds,
        inverses,
        masses,
    )


def masses_size(relative_values: Tensor | None) -> int:
    """The last dimension of masses: that of relative values; a window of 0 counts as one of 1."""
    return 0 if relative_values is None else max(3, relative_values.size(0))


@torch.library.register_fake(f"{NAMESPACE}::attention_backward", lib=_operators)
def _(grad: Tensor, normalizer: str, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Five:
    relative_keys, relative_values = (*rest[7:], *(None,) * 9)[5:7]
    return (
        _laid_out(query, query.size(2), query.size(3)),
        _laid_out(key, key.size(2), key.size(3)),
        _laid_out(value, value.size(2), value.size(3)),
        query.new_empty(0) if relative_keys is None else torch.empty_like(relative_keys),
        query.new_empty(0) if relative_values is None else torch.empty_like(relative_values),
    )


def _remember_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    for name, at in (("a bias", 5), ("slopes", 13)):
        if inputs[at] is not None and inputs[at].requires_grad:
            raise ValueError(
                f"the attention kernels have no gradient for {name}: compute explicitly"
            )
    ctx.normalizer, *tensors, ctx.causal, ctx.scale, ctx.dropout_p, seed, ctx.skip_empty = inputs[
        :11
    ]
    *terms, ctx.offset = inputs[11:]
    ctx.save_for_backward(*tensors, *output, seed, *terms)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate_attention(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, seed, keys, values, slopes = ctx.saved_tensors
    options = (ctx.causal, ctx.scale, ctx.dropout_p, seed, ctx.skip_empty)
    *grads, of_keys, of_values = torch.ops.onmt_evsoftmax_triton.attention_backward(
        grad, ctx.normalizer, *tensors, *options, keys, values, slopes, ctx.offset
    )
    of_tables = (None if keys is None else of_keys, None if values is None else of_values)
    return (None, *grads, *(None,) * 7, *of_tables, None, None)


torch.library.register_autograd(
    f"{NAMESPACE}::attention_forward",
    _differentiate_attention,
    setup_context=_remember_attention,
    lib=_operators,
)

for _name, _function in {
    "rows_forward": _rows_forward,
    "rows_backward": _rows_backward,
    "attention_forward": _attention_forward,
    "attention_backward": _attention_backward,
}.items():
    _operators.impl(_name, _function, "CUDA")
    if interpreted():
        _operators.impl(_name, _function, "CPU")

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
from onmt_evsoftmax.kernels.triton.tiles import MAX_HEAD

NAMESPACE = "onmt_evsoftmax_triton"
#: What :mod:`.rows` and :mod:`.attention` have kernels for; that they agree is a test.
ROW_NORMALIZERS = ("evsoftmax", "sparsemax", "entmax15", "entmax")
ATTENTION_NORMALIZERS = ("evsoftmax", "sparsemax", "entmax15")

ROW_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ATTENTION_DTYPES = ROW_DTYPES[:3]
_OPTIONS = "str normalizer, bool causal, float scale, float dropout_p, bool skip_empty"

_operators = torch.library.Library(NAMESPACE, "DEF")
_operators.define(
    "rows_forward(Tensor scores, Tensor? mask, Tensor? alpha, str normalizer, float eps,"
    " bool want_support) -> (Tensor, Tensor)"
)
_operators.define(
    "rows_backward(Tensor p, Tensor grad, Tensor? alpha, str normalizer, bool want_alpha)"
    " -> (Tensor, Tensor)"
)
_operators.define(
    "attention_forward(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? bias,"
    f" Tensor? seed, {_OPTIONS}) -> (Tensor, Tensor)"
)
_operators.define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask,"
    f" Tensor? bias, Tensor? seed, Tensor out, Tensor rows, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor)"
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
    if normalizer not in ROW_NORMALIZERS:
        raise ValueError(
            f"normalizer must be one of {', '.join(ROW_NORMALIZERS)}, not {normalizer!r}"
        )
    if scores.dtype not in ROW_DTYPES or scores.dim() == 0:
        raise TypeError(
            f"rows must be of a floating-point type in at least one dimension, not {scores.dtype} "
            f"in {scores.dim()}"
        )
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean (True = takes part), not {mask.dtype}")
    if (alpha is None) != (normalizer != "entmax"):
        raise ValueError("entmax needs an alpha, and only entmax has one")
    _check_broadcast("mask", mask, tuple(scores.shape))
    _check_broadcast("alpha", alpha, (*scores.shape[:-1], 1))


def _rows_forward(
    scores: Tensor,
    mask: Tensor | None,
    alpha: Tensor | None,
    normalizer: str,
    eps: float,
    want_support: bool,
) -> tuple[Tensor, Tensor]:
    """An operator returns tensors: a support that is not wanted is empty."""
    from onmt_evsoftmax.kernels.triton import rows

    _check_rows(normalizer, scores, mask, alpha)
    p, support = rows.rows_forward(
        normalizer, scores, mask, eps=eps, alpha=alpha, want_support=want_support
    )
    return p, p.new_empty(0, dtype=torch.bool) if support is None else support


def _rows_backward(
    p: Tensor, grad: Tensor, alpha: Tensor | None, normalizer: str, want_alpha: bool
) -> tuple[Tensor, Tensor]:
    from onmt_evsoftmax.kernels.triton import rows

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
    scores: Tensor,
    mask: Tensor | None,
    alpha: Tensor | None,
    normalizer: str,
    eps: float,
    want_support: bool,
) -> tuple[Tensor, Tensor]:
    p = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return p, scores.new_empty(scores.shape if want_support else 0, dtype=torch.bool)


@torch.library.register_fake(f"{NAMESPACE}::rows_backward", lib=_operators)
def _(
    p: Tensor, grad: Tensor, alpha: Tensor | None, normalizer: str, want_alpha: bool
) -> tuple[Tensor, Tensor]:
    of_alpha = p.new_empty(*p.shape[:-1], 1, dtype=_wide(p)) if want_alpha else p.new_empty(0)
    return torch.empty_like(p, memory_format=torch.contiguous_format), of_alpha


def _remember_rows(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.normalizer = inputs[3]
    ctx.save_for_backward(output[0], inputs[2])
    ctx.mark_non_differentiable(output[1])


def _differentiate_rows(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    p, alpha = ctx.saved_tensors
    want_alpha = alpha is not None and ctx.needs_input_grad[2]
    grad_scores, grad_alpha = torch.ops.onmt_evsoftmax_triton.rows_backward(
        p, grads[0], alpha, ctx.normalizer, want_alpha
    )
    of_alpha = grad_alpha.sum_to_size(alpha.shape).to(alpha.dtype) if want_alpha else None
    return grad_scores, None, of_alpha, None, None, None


torch.library.register_autograd(
    f"{NAMESPACE}::rows_forward",
    _differentiate_rows,
    setup_context=_remember_rows,
    lib=_operators,
)

# --- attention ------------------------------------------------------------------------------------


def _check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    normalizer: str,
    dropout_p: float,
) -> None:
    if normalizer not in ATTENTION_NORMALIZERS:
        raise ValueError(
            f"normalizer must be one of {', '.join(ATTENTION_NORMALIZERS)}, not {normalizer!r}"
        )
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
    if not 0.0 <= dropout_p < 1.0 or (dropout_p > 0 and seed is None):
        raise ValueError(f"dropout_p must be at least 0 and below 1, with a seed, not {dropout_p}")


def _attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    normalizer: str,
    causal: bool,
    scale: float,
    dropout_p: float,
    skip_empty: bool,
) -> tuple[Tensor, Tensor]:
    from onmt_evsoftmax.kernels.triton import attention

    _check_attention(query, key, value, mask, bias, seed, normalizer, dropout_p)
    options = attention.Options(normalizer, causal, scale, dropout_p, skip_empty)
    return attention.attention_forward(query, key, value, mask, bias, seed, options)


def _attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    rows: Tensor,
    normalizer: str,
    causal: bool,
    scale: float,
    dropout_p: float,
    skip_empty: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from onmt_evsoftmax.kernels.triton import attention

    _check_attention(query, key, value, mask, bias, seed, normalizer, dropout_p)
    expected = (*query.shape[:3], value.size(3))
    if grad.shape != expected or out.shape != expected or rows.shape != (3, *query.shape[:3]):
        raise ValueError(
            f"grad {tuple(grad.shape)}, out {tuple(out.shape)} and rows {tuple(rows.shape)} must "
            "be those of attention_forward"
        )
    options = attention.Options(normalizer, causal, scale, dropout_p, skip_empty)
    return attention.attention_backward(
        grad, query, key, value, mask, bias, seed, out, rows, options
    )


def _laid_out(like: Tensor, length: int, size: int) -> Tensor:
    batch, heads = like.shape[:2]
    return like.new_empty(batch, length, heads, size).transpose(1, 2)


@torch.library.register_fake(f"{NAMESPACE}::attention_forward", lib=_operators)
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    rows = query.new_empty(3, *query.shape[:3], dtype=torch.float32)
    return _laid_out(query, query.size(2), value.size(3)), rows


@torch.library.register_fake(f"{NAMESPACE}::attention_backward", lib=_operators)
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _laid_out(query, query.size(2), query.size(3)),
        _laid_out(key, key.size(2), key.size(3)),
        _laid_out(value, value.size(2), value.size(3)),
    )


def _remember_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    if inputs[4] is not None and inputs[4].requires_grad:
        raise ValueError("the attention kernels have no gradient for a bias: compute explicitly")
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.options = inputs[6:]
    ctx.mark_non_differentiable(output[1])


def _differentiate_attention(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    grads = torch.ops.onmt_evsoftmax_triton.attention_backward(
        grad, *ctx.saved_tensors, *ctx.options
    )
    return (*grads, *(None,) * 8)


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

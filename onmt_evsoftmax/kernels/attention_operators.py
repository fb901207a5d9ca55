"""The attention kernels as torch operators, for what traces through; see `attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import library
from onmt_evsoftmax.kernels.attention import (
    Gradients,
    Terms,
    attention_backward,
    attention_forward,
    gradients_of_inputs,
    gradients_of_terms,
    like_query,
    of_rows,
)

_operators = torch.library.Library("onmt_evsoftmax", "FRAGMENT")
_TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? bias, Tensor? alpha,"
    " Tensor? relative_keys, Tensor? relative_values, Tensor? slopes"
)
_OPTIONS = "int offset, bool causal, float scale, float dropout_p, Tensor? seed"
_operators.define(
    f"attention_forward(str normalizer, {_TENSORS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)
_operators.define(
    f"attention_backward(Tensor grad, str normalizer, {_TENSORS}, Tensor out, Tensor level,"
    f" Tensor bar, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _check(
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    terms: Terms,
    dropout_p: float,
    seed: Tensor | None,
) -> None:
    """Anybody can call an operator: check what the callers of the functions have checked."""
    if normalizer not in library.NORMALIZERS:
        known = ", ".join(library.NORMALIZERS)
        raise ValueError(f"normalizer must be one of {known}, not {normalizer!r}")
    tensors = (query, key, value)
    fit = (
        all(t.dim() == 4 and t.dtype == torch.float32 for t in tensors)
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.size(3) == key.size(3)
        and key.size(2) == value.size(2)
    )
    if not fit:
        raise ValueError(
            "query, key and value must be float32 (B, H, L, E), (B, H, S, E) and (B, H, S, V), not "
            f"{[tuple(t.shape) for t in tensors]}"
        )
    whole = (*query.shape[:3], key.size(2))
    for name, tensor, dtype in (("mask", mask, torch.bool), ("bias", bias, torch.float32)):
        if tensor is None:
            continue
        pairs = zip(tensor.shape, whole, strict=False)
        if (
            (tensor.dim(), tensor.dtype) != (4, dtype)
            or tensor.size(3) != whole[3]
            or any(size not in (1, full) for size, full in pairs)
        ):
            raise ValueError(
                f"{name} must be {dtype} and broadcast to {whole}, its last dimension in full; it "
                f"is {tensor.dtype} {tuple(tensor.shape)}"
            )
    _check_terms(normalizer, query, value, terms)
    if not 0.0 <= dropout_p <= 1.0 or (dropout_p > 0 and seed is None):
        raise ValueError(f"dropout_p must be from 0 to 1, with a seed, not {dropout_p}")


def _check_terms(normalizer: str, query: Tensor, value: Tensor, terms: Terms) -> None:
    distances = {t.size(0) for t in (terms.relative_keys, terms.relative_values) if t is not None}
    shapes = (
        ("alpha", terms.alpha, query.shape[:2]),
        ("slopes", terms.slopes, query.shape[:2]),
        ("relative_keys", terms.relative_keys, (*distances, query.size(3))),
        ("relative_values", terms.relative_values, (*distances, value.size(3))),
    )
    for name, tensor, shape in shapes:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be of shape {tuple(shape)}, not {tuple(tensor.shape)}")
    if any(size % 2 == 0 or size < 3 for size in distances):
        raise ValueError(f"relative positions need an odd number of rows, 3 or more: {distances}")
    if terms.relative_values is not None and terms.relative_keys is None:
        raise ValueError("relative_values need relative_keys, if only of zeros")
    if (terms.alpha is None) != (library.RANGES[normalizer][0] <= 1):
        raise ValueError("alpha is for the entmax kernel, which needs it")
    if terms.alpha is not None and terms.alpha.numel():
        least, most = (bound.item() for bound in terms.alpha.aminmax())
        if not (library.accepts(normalizer, least) and library.accepts(normalizer, most)):
            raise ValueError(f"the {normalizer} kernel takes no alpha from {least} to {most}")


def _attention_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    normalizer, query, key, value, mask, bias, *terms = arguments[:11]
    _check(normalizer, query, key, value, mask, bias, Terms(*terms), *arguments[13:])
    return attention_forward(*arguments)


def _attention_backward(grad: Tensor, *arguments: Any) -> Gradients:
    normalizer, query, key, value, mask, bias, *terms = arguments[:10]
    out, level, bar, _, _, _, *dropout = arguments[10:]
    _check(normalizer, query, key, value, mask, bias, Terms(*terms), *dropout)
    rows = query.shape[:3]
    for name, tensor, shape, dtype in (
        ("grad", grad, (*rows, value.size(3)), torch.float32),
        ("out", out, (*rows, value.size(3)), torch.float32),
        ("level", level, rows, torch.float64),
        ("bar", bar, rows, torch.float32),
    ):
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            raise ValueError(
                f"{name} must be {dtype} {tuple(shape)}, as attention_forward returned it, not "
                f"{tensor.dtype} {tuple(tensor.shape)}"
            )
    return attention_backward(grad, *arguments)


_operators.impl("attention_forward", _attention_forward, "CPU")
_operators.impl("attention_backward", _attention_backward, "CPU")


@torch.library.register_fake("onmt_evsoftmax::attention_forward", lib=_operators)
def _(
    normalizer: str, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return like_query(query, query.size(2), value.size(3)), *of_rows(query)


@torch.library.register_fake("onmt_evsoftmax::attention_backward", lib=_operators)
def _(
    grad: Tensor,
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    *terms: Any,
) -> Gradients:
    like = (None if t is None else torch.empty_like(t) for t in terms[:3])
    return (
        like_query(query, query.size(2), query.size(3)),
        like_query(key, key.size(2), key.size(3)),
        like_query(key, key.size(2), value.size(3)),
        *gradients_of_terms(query, *like),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.normalizer, *tensors = inputs[:10]
    *ctx.options, seed = inputs[10:]
    ctx.save_for_backward(*tensors, *output, seed)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, seed = ctx.saved_tensors
    grads = torch.ops.onmt_evsoftmax.attention_backward(
        grad, ctx.normalizer, *tensors, *ctx.options, seed
    )
    return gradients_of_inputs(grads, tensors)


torch.library.register_autograd(
    "onmt_evsoftmax::attention_forward", _differentiate, setup_context=_remember, lib=_operators
)

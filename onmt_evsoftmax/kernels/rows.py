"""The row kernels as functions of tensors, and as torch operators for what traces through them.

Both work along the last dimension. The functions are for plain CPU tensors. The operators,
``torch.ops.onmt_evsoftmax.rows_forward`` and ``rows_backward``, do the same through torch's
dispatcher, which knows their shapes (for ``torch.compile`` and meta tensors), their gradient and
how to batch them (for ``torch.vmap``).
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import library

#: Of a normalizer: a number, or a tensor of one for every row, which has size 1 along the row.
Parameter = float | Tensor

#: Numbers that ``c/kernels.h`` gives to types.
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
MAX_RANK = 16

_Four = ctypes.c_int64 * 4


def rows_forward(
    normalizer: str, scores: Tensor, mask: Tensor | None, parameter: Parameter, want_support: bool
) -> tuple[Tensor, Tensor | None]:
    """Probabilities of ``scores`` (…, K), and their support, if wanted.

    ``mask`` (True = takes part) has the rank of the scores, K entries in its last dimension, and
    broadcasts over the others, which is not materialised. A ``parameter`` that the kernel does not
    take is a RuntimeError.
    """
    columns = scores.size(-1)
    rows = scores.numel() // columns if columns else 0
    whole = scores.is_contiguous()
    if not whole and scores.stride(-1) != 1:
        scores, whole = scores.contiguous(), True
    if whole:
        p = torch.empty_like(scores)
    else:
        p = torch.empty_like(scores, memory_format=torch.contiguous_format)
    support = p.new_empty(p.shape, dtype=torch.bool) if want_support else None
    layout: Any = None
    if mask is not None:
        if whole and mask.shape == scores.shape and mask.is_contiguous():
            layout = _Four(1, rows, columns, columns)
        else:
            mask = mask if mask.stride(-1) == 1 else mask.contiguous()
    if layout is None and (mask is not None or not whole):
        layout = _layout(scores, mask)
    number, each = _one_for_each(parameter)
    library.call(
        "rows_forward",
        library.NORMALIZERS[normalizer],
        DTYPES[scores.dtype],
        rows,
        columns,
        layout,
        scores.data_ptr(),
        None if mask is None else mask.data_ptr(),
        p.data_ptr(),
        None if support is None else support.data_ptr(),
        number,
        None if each is None else each.data_ptr(),
        torch.get_num_threads(),
    )
    return p, support


def _one_for_each(parameter: Parameter) -> tuple[float, Tensor | None]:
    """The number for all rows, and those of every row, adjacent in double, if there are any."""
    if isinstance(parameter, Tensor):
        return 0.0, parameter.detach().double().contiguous()
    return parameter, None


def _layout(scores: Tensor, mask: Tensor | None) -> ctypes.Array[ctypes.c_int64]:
    """Rank, sizes, strides of the scores and strides of the mask, without the last dimension."""
    sizes, strides = scores.shape[:-1], scores.stride()[:-1]
    if mask is None:
        mask_strides = (0,) * len(sizes)
    else:
        mask_strides = tuple(
            0 if size == 1 else stride
            for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True)
        )
    numbers = (len(sizes), *sizes, *strides, *mask_strides)
    return (ctypes.c_int64 * len(numbers))(*numbers)


def rows_backward(
    normalizer: str, p: Tensor, grad: Tensor, parameter: Parameter
) -> tuple[Tensor, Tensor | None]:
    """Gradient of the scores (…, K) from the probabilities and their gradient.

    And that of the parameter, (…, 1), if there is one for every row.
    """
    if not p.is_contiguous():
        p = p.contiguous()
    if not grad.is_contiguous():
        grad = grad.contiguous()
    columns = p.size(-1)
    grad_scores = torch.empty_like(p)
    grad_parameter = None
    number, each = _one_for_each(parameter)
    if each is not None:
        grad_parameter = torch.empty_like(each)
    library.call(
        "rows_backward",
        library.NORMALIZERS[normalizer],
        DTYPES[p.dtype],
        p.numel() // columns if columns else 0,
        columns,
        p.data_ptr(),
        grad.data_ptr(),
        grad_scores.data_ptr(),
        number,
        None if each is None else each.data_ptr(),
        None if grad_parameter is None else grad_parameter.data_ptr(),
        torch.get_num_threads(),
    )
    if isinstance(parameter, Tensor) and grad_parameter is not None:
        grad_parameter = grad_parameter.to(parameter.dtype)
    return grad_scores, grad_parameter


# --- operators ------------------------------------------------------------------------------------

_operators = torch.library.Library("onmt_evsoftmax", "DEF")
_operators.define(
    "rows_forward(str normalizer, Tensor scores, Tensor? mask, float parameter, bool want_support)"
    " -> (Tensor, Tensor)"
)
_operators.define(
    "rows_backward(str normalizer, Tensor p, Tensor grad, float parameter=0.0) -> Tensor"
)


# Anybody can call an operator: they check what the callers of the functions have checked.


def _check(normalizer: str, tensor: Tensor, parameter: float) -> None:
    if normalizer not in library.NORMALIZERS:
        known = ", ".join(library.NORMALIZERS)
        raise ValueError(f"normalizer must be one of {known}, not {normalizer!r}")
    if tensor.dtype not in DTYPES or not 0 < tensor.dim() <= MAX_RANK:
        raise TypeError(
            f"rows must be of {', '.join(map(str, DTYPES))} in 1 to {MAX_RANK} dimensions, not of "
            f"{tensor.dtype} in {tensor.dim()}"
        )
    if not library.accepts(normalizer, parameter):
        raise ValueError(f"the {normalizer} kernel does not take the parameter {parameter}")


def _rows_forward(
    normalizer: str, scores: Tensor, mask: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    """An operator returns tensors: a support that is not wanted is empty."""
    _check(normalizer, scores, rest[0])
    if mask is not None:
        same_rank = mask.dtype == torch.bool and mask.dim() == scores.dim()
        pairs = zip(mask.shape[:-1], scores.shape[:-1], strict=False)
        if (
            not same_rank
            or mask.size(-1) != scores.size(-1)
            or any(m not in (1, s) for m, s in pairs)
        ):
            raise ValueError(
                f"a boolean mask of whole rows must fit the scores {tuple(scores.shape)}; it is "
                f"{mask.dtype} {tuple(mask.shape)}"
            )
    p, support = rows_forward(normalizer, scores, mask, *rest)
    return p, p.new_empty(0, dtype=torch.bool) if support is None else support


def _rows_backward(normalizer: str, p: Tensor, grad: Tensor, parameter: float = 0.0) -> Tensor:
    _check(normalizer, p, parameter)
    if p.shape != grad.shape or p.dtype != grad.dtype:
        raise ValueError(
            f"probabilities {p.dtype} {tuple(p.shape)} and their gradient {grad.dtype} "
            f"{tuple(grad.shape)} must be alike"
        )
    return rows_backward(normalizer, p, grad, parameter)[0]


_operators.impl("rows_forward", _rows_forward, "CPU")
_operators.impl("rows_backward", _rows_backward, "CPU")


@torch.library.register_fake("onmt_evsoftmax::rows_forward", lib=_operators)
def _(
    normalizer: str, scores: Tensor, mask: Tensor | None, parameter: float, want_support: bool
) -> tuple[Tensor, Tensor]:
    p = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return p, scores.new_empty(scores.shape if want_support else 0, dtype=torch.bool)


@torch.library.register_fake("onmt_evsoftmax::rows_backward", lib=_operators)
def _(normalizer: str, p: Tensor, grad: Tensor, parameter: float = 0.0) -> Tensor:
    return torch.empty_like(p, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.normalizer, ctx.parameter = inputs[0], inputs[3]
    ctx.save_for_backward(output[0])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    (p,) = ctx.saved_tensors
    grad_scores = torch.ops.onmt_evsoftmax.rows_backward(ctx.normalizer, p, grads[0], ctx.parameter)
    return None, grad_scores, None, None, None


torch.library.register_autograd(
    "onmt_evsoftmax::rows_forward", _differentiate, setup_context=_remember, lib=_operators
)


def _front(tensor: Tensor, axis: int | None, size: int, rank: int) -> Tensor:
    """The batch dimension moved to the front, the others padded to ``rank`` in all."""
    tensor = tensor.unsqueeze(0) if axis is None else tensor.movedim(axis, 0)
    return tensor.reshape(tensor.size(0), *(1,) * (rank - tensor.dim()), *tensor.shape[1:])


@torch.library.register_vmap("onmt_evsoftmax::rows_forward", lib=_operators)
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    normalizer, scores, mask, parameter, want_support = inputs
    rank = scores.dim() + (in_dims[1] is None)
    scores = _front(scores, in_dims[1], info.batch_size, rank)
    scores = scores.expand(info.batch_size, *scores.shape[1:])
    mask = None if mask is None else _front(mask, in_dims[2], info.batch_size, rank)
    p, support = torch.ops.onmt_evsoftmax.rows_forward(
        normalizer, scores, mask, parameter, want_support
    )
    return (p, support), (0, 0 if want_support else None)


@torch.library.register_vmap("onmt_evsoftmax::rows_backward", lib=_operators)
def _(
    info: Any,
    in_dims: tuple[Any, ...],
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    parameter: float = 0.0,
) -> Any:
    rank = max(p.dim() + (in_dims[1] is None), grad.dim() + (in_dims[2] is None))
    both = [
        _front(tensor, axis, info.batch_size, rank).expand(info.batch_size, *(-1,) * (rank - 1))
        for tensor, axis in ((p, in_dims[1]), (grad, in_dims[2]))
    ]
    return torch.ops.onmt_evsoftmax.rows_backward(normalizer, *both, parameter), 0

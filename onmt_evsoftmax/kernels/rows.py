"""The row kernels for CPUs as functions of tensors; `operators` has them as operators.

They work along the last dimension.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import library

#: Numbers that ``c/kernels.h`` gives to types.
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
MAX_RANK = 16

_Four = ctypes.c_int64 * 4


def rows_forward(
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None,
    parameter: float,
    alpha: Tensor | None,
    want_support: bool,
) -> tuple[Tensor, Tensor | None]:
    """Probabilities of ``scores`` (…, K), and their support, if wanted.

    ``mask`` (True = takes part) has the rank of the scores, K entries in its last dimension, and
    broadcasts over the others, which is not materialised. ``alpha`` (…, 1) stands for ``parameter``
    where every row has its own. One that the kernel does not take is a RuntimeError.
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
    alpha = _of_every_row(alpha, scores)
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
        parameter,
        None if alpha is None else alpha.data_ptr(),
        torch.get_num_threads(),
    )
    return p, support


def _of_every_row(alpha: Tensor | None, rows: Tensor) -> Tensor | None:
    """Those of all rows, adjacent, in double."""
    if alpha is None:
        return None
    return alpha.detach().double().expand(*rows.shape[:-1], 1).contiguous()


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
    normalizer: str,
    p: Tensor,
    grad: Tensor,
    parameter: float,
    alpha: Tensor | None,
    want_alpha: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the scores (…, K), and of the alpha of every row (…, 1) if wanted."""
    if not p.is_contiguous():
        p = p.contiguous()
    if not grad.is_contiguous():
        grad = grad.contiguous()
    columns = p.size(-1)
    grad_scores = torch.empty_like(p)
    alpha = _of_every_row(alpha, p)
    grad_alpha = torch.empty_like(alpha) if alpha is not None and want_alpha else None
    library.call(
        "rows_backward",
        library.NORMALIZERS[normalizer],
        DTYPES[p.dtype],
        p.numel() // columns if columns else 0,
        columns,
        p.data_ptr(),
        grad.data_ptr(),
        grad_scores.data_ptr(),
        parameter,
        None if alpha is None else alpha.data_ptr(),
        None if grad_alpha is None else grad_alpha.data_ptr(),
        torch.get_num_threads(),
    )
    return grad_scores, grad_alpha

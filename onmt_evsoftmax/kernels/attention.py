"""The attention kernels for CPUs as functions of tensors; `operators` has them as operators.

All of the last dimension of a mask or bias must be there; a
mask that is the same for every query should have size 1 or stride 0 in the third, which is faster.
Everything else is float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from onmt_evsoftmax.kernels import library
from onmt_evsoftmax.kernels.attention_task import Gradients, Saved, Task, laid_out, readable

CHUNK = 64  # queries of one piece of work, as in ``c/kernels.h``


def _steps(tensor: Tensor | None) -> list[int]:
    """Strides (batch, head, query) of a mask or bias; 0 where it broadcasts."""
    if tensor is None:
        return [0, 0, 0]
    pairs = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return [0 if size == 1 else stride for size, stride in pairs]


def _as_read(task: Task) -> Task:
    """With its tensors as the C functions read them."""
    normalizer, query, key, value, mask, bias, alpha, keys, values, slopes = task[:10]
    return Task(
        normalizer,
        readable(query),
        readable(key),
        readable(value),
        None if mask is None else readable(mask),
        None if bias is None else readable(bias),
        None if alpha is None else alpha.double().contiguous(),
        None if keys is None else keys.float().contiguous(),
        None if values is None else values.float().contiguous(),
        None if slopes is None else slopes.float().contiguous(),
        *task[10:],
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _run(
    backward: bool,
    task: Task,
    results: Sequence[Tensor | None],
    of_terms: Sequence[Tensor | None],
    level: Tensor,
    bar: Tensor,
    splits: int,
) -> None:
    """Call the C function.

    ``results`` is out and the gradients of out, query, key and value; ``of_terms`` the gradients of
    alpha, relative keys and relative values.
    """
    task = _as_read(task)
    query, key, value = task[1:4]
    if 0 in query.shape[:2]:  # no head at all, whose alphas the kernel would miss
        return
    sizes = [*query.shape[:3], key.size(2), query.size(3), value.size(3), splits]
    # What the kernel writes is readable as it was made, and so no copy.
    written = (None if t is None else readable(t) for t in results)
    tensors = [query, key, value, *written]
    strides: list[int] = []
    for tensor in tensors:
        # Gradients of keys and values may have the splits as a dimension in front.
        strides += [0, 0, 0] if tensor is None else tensor.stride()[-4:-1]
    strides += [*_steps(task.mask), *_steps(task.bias)]
    strides += [0 if t is None or t.dim() == 4 else t.stride(0) for t in tensors[6:]]
    grad_alpha, *grad_tables = of_terms
    tables = (task.slopes, task.relative_keys, task.relative_values, *grad_tables)
    library.call(
        "attention",
        backward,
        library.NORMALIZERS[task.normalizer],
        (ctypes.c_int64 * 7)(*sizes),
        (ctypes.c_int64 * 32)(*strides),
        (ctypes.c_void_p * 8)(*map(_address, tensors)),
        _address(task.mask),
        _address(task.bias),
        task.causal,
        task.scale,
        task.dropout_p,
        0 if task.seed is None else int(task.seed),
        level.data_ptr(),
        bar.data_ptr(),
        (ctypes.c_int64 * 2)(task.window, task.offset),
        (ctypes.c_void_p * 5)(*map(_address, tables)),
        (ctypes.c_void_p * 2)(*map(_address, (task.alpha, grad_alpha))),
        torch.get_num_threads(),
    )


def saved_rows(task: Task) -> Saved:
    """Of the level, in double beside large scores, and the bar of rows, both (batch, heads, L).

    ``c/kernels.h`` says what they are for each normalizer; backward needs them.
    """
    rows = tuple(task.query.shape[:3])
    return (rows, torch.float64), (rows, torch.float32)


def attention_forward(task: Task) -> tuple[Tensor, ...]:
    """(out, level, bar); see :func:`saved_rows`."""
    query = task.query
    out = laid_out(query, query.size(2), task.value.size(3))
    level, bar = (query.new_empty(size, dtype=t) for size, t in saved_rows(task))
    none = (None, None, None)
    _run(False, task, (out, None, *none), none, level, bar, splits=1)
    return out, level, bar


def attention_backward(
    grad: Tensor, task: Task, out: Tensor, level: Tensor, bar: Tensor
) -> Gradients:
    """Gradients, from what the forward pass returned."""
    query, key, value = task[1:4]
    level, bar = level.contiguous(), bar.contiguous()
    grad_query = laid_out(query, query.size(2), query.size(3))
    # Fewer heads than threads: the queries of a head are split, and what each part finds is added.
    heads = query.size(0) * query.size(1)
    parts = torch.get_num_threads() // max(heads, 1)
    splits = max(1, min(parts, query.size(2) // CHUNK))
    grad_key = laid_out(key, key.size(2), key.size(3))
    grad_value = laid_out(key, key.size(2), value.size(3))
    if splits > 1:
        grad_key = grad_key.new_empty(splits, *grad_key.shape)
        grad_value = grad_value.new_empty(splits, *grad_value.shape)
    alpha = task.alpha
    grad_alpha = None if alpha is None else alpha.new_zeros(heads * splits, dtype=torch.float64)
    grad_tables = [
        None if t is None else t.new_zeros(heads * splits, *t.shape, dtype=torch.float32)
        for t in (task.relative_keys, task.relative_values)
    ]
    results, of_terms = (out, grad, grad_query, grad_key, grad_value), (grad_alpha, *grad_tables)
    _run(True, task, results, of_terms, level, bar, splits=splits)
    if splits > 1:
        grad_key = laid_out(key, key.size(2), key.size(3)).copy_(grad_key.sum(0))
        grad_value = laid_out(key, key.size(2), value.size(3)).copy_(grad_value.sum(0))
    if alpha is not None and grad_alpha is not None:
        grad_alpha = grad_alpha.view(heads, splits).sum(1).view(query.shape[:2]).to(alpha.dtype)
    of_keys, of_values = (None if t is None else t.sum(0) for t in grad_tables)
    return grad_query, grad_key, grad_value, grad_alpha, of_keys, of_values


def single_query(task: Task) -> tuple[Tensor, Tensor]:
    """(out, probabilities (batch, heads, 1, S)) of one query per head, without a gradient."""
    task = _as_read(task)
    query, key, value = task[1:4]
    out = laid_out(query, 1, value.size(3))
    probabilities = query.new_empty(*query.shape[:3], key.size(2))
    tensors = (query, key, value, out)
    strides = [step for tensor in tensors for step in tensor.stride()[:3]]
    sizes = (*query.shape[:2], key.size(2), query.size(3), value.size(3))
    tables = (task.slopes, task.relative_keys, task.relative_values)
    library.call(
        "single",
        library.NORMALIZERS[task.normalizer],
        (ctypes.c_int64 * 5)(*sizes),
        (ctypes.c_int64 * 14)(*strides, *_steps(task.mask)[:2]),
        (ctypes.c_void_p * 4)(*map(_address, tensors)),
        _address(task.mask),
        task.scale,
        (ctypes.c_int64 * 2)(task.window, task.offset),
        (ctypes.c_void_p * 3)(*map(_address, tables)),
        _address(task.alpha),
        probabilities.data_ptr(),
        torch.get_num_threads(),
    )
    return out, probabilities

"""The attention kernels for GPUs as functions of tensors; `operators` has them as operators.

Key and value may have fewer heads, H / G: then G heads of the query share them. A mask or bias may
have any dimension 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax.kernels.attention_task import Gradients, Task, readable
from onmt_evsoftmax.kernels.triton import attention_kernels, positions, threshold_kernels
from onmt_evsoftmax.kernels.triton.attention_call import Call, empty
from onmt_evsoftmax.kernels.triton.attention_means import find_means
from onmt_evsoftmax.kernels.triton.rows import _device
from onmt_evsoftmax.kernels.triton.serving import saved_rows


def attention_forward(task: Task) -> tuple[Tensor, ...]:
    """(out, tops, thresholds, inverses, masses); see :func:`saved_rows`."""
    query, key, value = task[1:4]
    queries, values = query.size(2), task.relative_values
    out = empty(query, queries, value.size(3), wide=values is not None)
    saved = [query.new_zeros(size, dtype=t) for size, t in saved_rows(task)]
    tops, thresholds, inverses, masses = saved
    if 0 in (*query.shape[:3], key.size(2), value.size(3)):
        return out.zero_().to(query.dtype), *saved
    call = Call(task)
    with _device(query):
        positions.set_terms(call)
        if call.functions.mean:
            find_means(call, thresholds)
        else:
            call.run(
                threshold_kernels.searched_thresholds,
                "searched_thresholds",
                {"tops": tops, "thresholds": thresholds},
            )
        of_rows = {"tops": tops, "thresholds": thresholds, "inverses": inverses}
        call.run(
            attention_kernels.attention_forward,
            "forward",
            {"out": out, "masses": None if values is None else masses, **of_rows},
        )
        if values is not None:
            positions.fill_near(call, masses, of_rows, None)
            positions.add_product(out, masses, values)
    return out.to(query.dtype), *saved


def attention_backward(
    grad: Tensor,
    task: Task,
    out: Tensor,
    tops: Tensor,
    thresholds: Tensor,
    inverses: Tensor,
    masses: Tensor,
) -> Gradients:
    """Gradients, from what the forward pass returned; none of alpha."""
    query, key, value = task[1:4]
    queries, keys = query.size(2), key.size(2)
    of_keys, of_values = (
        None if table is None else torch.zeros_like(table)
        for table in (task.relative_keys, task.relative_values)
    )
    grad_query = empty(query, queries, query.size(3), wide=of_keys is not None)
    grad_key, grad_value = empty(key, keys, key.size(3)), empty(value, keys, value.size(3))
    if 0 in (*out.shape, keys):
        grads = (grad_query.zero_(), grad_key.zero_(), grad_value.zero_())
    else:
        grads = (grad_query, grad_key, grad_value)
        call = Call(task)
        of_rows = {"tops": tops, "thresholds": thresholds, "inverses": inverses}
        of_rows = {name: numbers.contiguous() for name, numbers in of_rows.items()}
        of_rows["deltas"] = torch.empty_like(of_rows["tops"])
        grad = readable(grad.to(query.dtype))
        with _device(query):
            positions.set_terms(call, grad)
            grad_terms = None if of_keys is None else positions.new_table(call)
            rest = {"grad": grad, "grad_query": grad_query, "grad_terms": grad_terms}
            call.run(
                attention_kernels.attention_grad_query,
                "grad_query",
                {"out": readable(out), **rest, **of_rows},
            )
            call.run(
                attention_kernels.attention_grad_key_value,
                "grad_key_value",
                {"grad": grad, "grad_key": grad_key, "grad_value": grad_value, **of_rows},
                over_keys=True,
            )
            if task.relative_keys is not None and grad_terms is not None:
                positions.fill_near(call, grad_terms, of_rows, grad)
                scale = task.scale
                positions.add_product(grad_query, grad_terms, task.relative_keys, scale)
                of_keys = positions.gradient(grad_terms, query, task.relative_keys, scale)
            if task.relative_values is not None:
                of_values = positions.gradient(masses, grad, task.relative_values)
    grad_query, grad_key, grad_value = (g.to(query.dtype) for g in grads)
    return grad_query, grad_key, grad_value, None, of_keys, of_values

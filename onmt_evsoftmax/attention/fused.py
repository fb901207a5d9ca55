"""Attention by the kernel of :mod:`onmt_evsoftmax.kernels`, on a CPU.

The mean of a row of scores is the query times the mean of its keys: mean_j(q·k_j) = q·mean_j(k_j).
So ev-softmax's threshold of every row is known before its scores, and attention takes one pass over
the keys; keys below the threshold need neither an exponential nor their value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import explicit, reasons
from onmt_evsoftmax.attention.call import Call, Choice
from onmt_evsoftmax.normalizers.evsoftmax import RECORDS
from onmt_evsoftmax.normalizers.masked import HALF, apply


def blocker(call: Call) -> str | None:
    """Why the kernel cannot compute this, or None."""
    query, value = call.query, call.value
    return (
        reasons.of_normalizer(call.choice)
        or reasons.of_library()
        or reasons.of_head(max(query.size(-1), value.size(-1)))
        or reasons.of_mask(call)
        or reasons.of_transformation()
        or (None if query.is_cpu else f"the kernel computes on the CPU, not on {query.device}")
        or (
            None
            if query.dtype == torch.float32 or query.dtype in HALF
            else f"the kernel computes in float32, not in {query.dtype}"
        )
    )


def run(call: Call) -> Tensor:
    """(…, L, V)."""
    call = call.expanded()
    query, key, value, key_mask, dtype = *call[:3], call.key_mask, call.query.dtype
    if dtype in HALF:
        query, key, value = query.float(), key.float(), value.float()
    options = (call.is_causal, call.scale, call.dropout_p, call.seed)
    if len(call.leading) == 2:
        out = _kernel(query, key, value, key_mask, *options)
    else:
        if key_mask is not None:
            key_mask = _as4d(key_mask.unsqueeze(-1)).squeeze(-1)
        out = _kernel(_as4d(query), _as4d(key), _as4d(value), key_mask, *options)
        out = out.reshape(*call.leading, *out.shape[2:])
    return out if dtype == torch.float32 else out.to(dtype)


def _as4d(tensor: Tensor) -> Tensor:
    """(…, length, size) → (batch, heads, length, size)."""
    if tensor.dim() <= 4:
        return tensor.reshape(*(1,) * (4 - tensor.dim()), *tensor.shape)
    return tensor.flatten(0, -4)


def _kernel(*arguments: Any) -> Tensor:
    if torch.compiler.is_compiling():  # which knows operators better than Functions
        return torch.ops.onmt_evsoftmax.attention_forward(*arguments)[0]
    return apply(Fused, *arguments)[0]


class Fused(torch.autograd.Function):
    """The kernel: (query, key, value, key_mask, causal, scale, dropout_p, seed) → (out, …).

    All are (batch, heads, …), key_mask is (batch, heads, S). The other results are what the
    backward pass needs of every row: the logarithm of its sum, and its threshold.
    """

    @staticmethod
    def forward(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        return kernels.attention_forward(query, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        query, key, value, key_mask, ctx.causal, ctx.scale, ctx.dropout_p, seed = inputs
        ctx.save_for_backward(query, key, value, key_mask, *output, seed)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        query, key, value, key_mask, out, log_sum, threshold, seed = ctx.saved_tensors
        options = (ctx.causal, ctx.scale, ctx.dropout_p, seed)
        if torch.is_grad_enabled():  # the gradient is to be differentiated in turn
            mask = None if key_mask is None else key_mask.unsqueeze(-2)
            choice = Choice.of(RECORDS[0])
            call = Call(query, key, value, mask, key_mask, *options, choice, query.shape[:2])
            grads = explicit.gradients(grad, call)
        else:
            grads = kernels.attention_backward(
                grad, query, key, value, key_mask, out, log_sum, threshold, *options
            )
        return (*grads, None, None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        """One more batch dimension is a larger batch."""
        if in_dims[7] is not None:
            raise ValueError(
                "the attention kernel drops by one seed for the whole batch: use "
                'vmap(randomness="same"), or backend="explicit"'
            )

        def larger(tensor: Tensor | None, axis: int | None) -> Tensor | None:
            if tensor is None:
                return None
            if axis is None:
                tensor, axis = tensor.expand(info.batch_size, *tensor.shape), 0
            return tensor.movedim(axis, 0).flatten(0, 1)

        results: Any = Fused.apply(*map(larger, inputs[:4], in_dims[:4]), *inputs[4:])  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0, 0)

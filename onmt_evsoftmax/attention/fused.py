"""Attention by the kernels of :mod:`onmt_evsoftmax.kernels`, on a CPU or a GPU.

The mean of a row of scores is the query times the mean of its keys: mean_j(q·k_j) = q·mean_j(k_j).
So ev-softmax's threshold of every row is known before its scores, and attention takes one pass over
the keys; keys below the threshold need neither an exponential nor their value. Other normalizers,
and ev-softmax with a bias or a mask per query, keep the few scores of a row that may matter in a
list, find the threshold there, and multiply with the values in the support only. (On a GPU they go
over the keys again and again until the threshold is found.) Nowhere is there a matrix of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import explicit, reasons
from onmt_evsoftmax.attention.call import Call, Choice
from onmt_evsoftmax.attention.positions import Positions
from onmt_evsoftmax.kernels import Task, operators
from onmt_evsoftmax.normalizers.masked import HALF, apply
from onmt_evsoftmax.normalizers.registry import Normalizer, get_record


def blocker(call: Call) -> str | None:
    """Why the kernels for CPUs cannot compute this, or None."""
    query, value = call.query, call.value
    return (
        reasons.of_normalizer(call.choice)
        or reasons.of_library()
        or reasons.of_head(max(query.size(-1), value.size(-1)))
        or reasons.of_bias(call)
        or reasons.of_transformation()
        or reasons.of_positions(call.positions)
        or reasons.of_parameter(call)
        or (None if query.is_cpu else f"the kernel computes on the CPU, not on {query.device}")
        or (
            None
            if query.dtype == torch.float32 or query.dtype in HALF
            else f"the kernel computes in float32, not in {query.dtype}"
        )
    )


def gpu_blocker(call: Call) -> str | None:
    """Why the kernels for GPUs cannot compute this, or None."""
    return (
        reasons.of_normalizer(call.choice)
        or reasons.of_bias(call)
        or reasons.of_transformation()
        or reasons.of_positions(call.positions)
        or reasons.of_gpu(call)
    )


def run(call: Call) -> Tensor:
    """(…, L, V), by the kernels for CPUs, which take half precision as float32."""
    dtype = call.query.dtype
    if dtype not in HALF:
        return _compute(call, kernels.ON_CPU)
    query, key, value = (t.float() for t in call[:3])
    return _compute(call._replace(query=query, key=key, value=value), kernels.ON_CPU).to(dtype)


def run_on_gpu(call: Call) -> Tensor:
    """(…, L, V), by the kernels for GPUs."""
    return _compute(call, kernels.ON_GPU)


def _is_single(call: Call) -> bool:
    """One query per head, and nobody who wants a gradient or records what is computed: decoding."""
    return (
        call.query.size(-2) == 1
        and 0 not in (*call.leading, call.key.size(-2))
        and (call.mask is None or call.key_mask is not None)
        and not (call.is_causal or call.dropout_p or torch.is_grad_enabled())
        and not (kernels.transformed(call.query) or torch._C._are_functorch_transforms_active())
    )


def _run_single(call: Call) -> tuple[Tensor, Tensor]:
    """(…, 1, V) and the probabilities (…, 1, S)."""
    out, p = kernels.single_query(_task(call))
    if len(call.leading) == 2:
        return out, p
    return out.reshape(*call.leading, *out.shape[2:]), p.reshape(*call.leading, *p.shape[2:])


def single_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    normalizer: str | Normalizer | Callable[..., Any],
    positions: Positions | None,
) -> tuple[Tensor, Tensor] | None:
    """Attention of one query (…, 1, E) to keys (…, S, E), and its probabilities (…, 1, S).

    ``key_mask`` (…, S) is True where a key takes part. None where the kernel cannot compute this.
    """
    options = (False, query.size(-1) ** -0.5, 0.0, None, Choice.of(normalizer), query.shape[:-2])
    mask = None if key_mask is None else key_mask.unsqueeze(-2)
    call = Call(query, key, value, mask, key_mask, *options, positions)
    if query.dtype != torch.float32 or not _is_single(call) or blocker(call) is not None:
        return None
    return _run_single(call)


def _compute(call: Call, namespace: str) -> Tensor:
    if namespace == kernels.ON_CPU and _is_single(call):
        return _run_single(call)[0]
    task = _task(call)
    if torch.compiler.is_compiling():  # which knows operators better than Functions
        out = kernels.attention_forward(namespace, task)[0]
    else:
        out = apply(Fused, namespace, *task)[0]
    return out if len(call.leading) == 2 else out.reshape(*call.leading, *out.shape[2:])


def _as4d(tensor: Tensor) -> Tensor:
    """(…, length, size) → (batch, heads, length, size)."""
    if tensor.dim() <= 4:
        return tensor if tensor.dim() == 4 else tensor[(None,) * (4 - tensor.dim())]
    return tensor.flatten(0, -4)


def _task(call: Call) -> Task:
    """As the kernels take it."""
    call = call.expanded()
    query, key, value = (_as4d(t) for t in call[:3])
    mask = bias = None
    if call.key_mask is not None:
        mask = _as4d(call.key_mask.unsqueeze(-2))
    elif call.mask is not None:
        whole = _as4d(call.mask.expand(*call.leading, query.size(2), key.size(2)))
        mask, bias = (whole, None) if whole.dtype == torch.bool else (None, whole.float())
    alpha = call.choice.kernel_parameter()
    if alpha is not None:
        alpha = torch.as_tensor(alpha, dtype=torch.float32)
        alpha = alpha.expand(*call.leading, 1, 1).reshape(query.shape[:2])
    keys = values = slopes = None
    offset = 0
    if call.positions is not None:
        keys, values, slopes, offset = call.positions.to(torch.float32)
    if keys is None and values is not None:
        keys = query.new_zeros(values.size(0), query.size(-1))
    if slopes is not None:
        slopes = slopes.expand(call.leading).reshape(query.shape[:2])
    return Task(
        call.choice.attention_kernel,
        query,
        key,
        value,
        mask,
        bias,
        alpha,
        keys,
        values,
        slopes,
        call.seed,
        offset,
        call.is_causal,
        call.scale,
        call.dropout_p,
    )


class Fused(torch.autograd.Function):
    """A namespace of operators and a :class:`Task`, field by field → out, ….

    After out comes what the backward pass needs of every row.
    """

    @staticmethod
    def forward(namespace: str, *task: Any) -> tuple[Tensor, ...]:
        return kernels.attention_forward(namespace, Task(*task))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.namespace = inputs[0]
        operators.remember_attention(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        task, results = operators.remembered_attention(ctx)
        if torch.is_grad_enabled():  # the gradient is to be differentiated in turn
            grads: Sequence[Tensor | None] = _explicit(grad, task)
        else:
            grads = kernels.attention_backward(ctx.namespace, grad, task, results)
        return None, *operators.gradients_of_attention(grads, task)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        """One more batch dimension is a larger batch."""
        if in_dims[1 + Task._fields.index("seed")] is not None:
            raise ValueError(
                "the attention kernel drops by one seed for the whole batch: use "
                'vmap(randomness="same"), or backend="explicit"'
            )

        def front(tensor: Tensor, axis: int | None) -> Tensor:
            if axis is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(axis, 0)

        tensors = [
            None if tensor is None else front(tensor, axis)
            for tensor, axis in zip(inputs[2:7], in_dims[2:7], strict=True)
        ]
        # A mask or bias may have been one for the whole of the smaller batch.
        size = front(inputs[2], in_dims[2]).size(1)
        larger = [
            None if t is None else t.expand(-1, size, *t.shape[2:]).flatten(0, 1) for t in tensors
        ]
        results = Fused.apply(*inputs[:2], *larger, *inputs[7:])  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0,) * len(results)


def _explicit(grad: Tensor, task: Task) -> list[Tensor | None]:
    """The backward pass in steps that torch differentiates, as the kernel returns it."""
    names = ("query", "key", "value", "alpha", "relative_keys", "relative_values")
    found = {name: getattr(task, name) for name in names}
    given = {name: tensor for name, tensor in found.items() if tensor is not None}

    def call_of(*tensors: Tensor) -> Call:
        changed: dict[str, Any] = dict(zip(given, tensors, strict=True))
        now = task._replace(**changed)
        choice = Choice.of(get_record(now.normalizer))
        if now.alpha is not None:
            choice = choice.with_parameter(now.alpha[..., None, None])
        positions = Positions(now.relative_keys, now.relative_values, now.slopes, now.offset)
        return Call(
            now.query,
            now.key,
            now.value,
            now.mask if now.bias is None else now.bias,
            None,
            now.causal,
            now.scale,
            now.dropout_p,
            now.seed,
            choice,
            now.query.shape[:2],
            positions if now.positions else None,
            heads_per_key=now.query.size(1) // max(now.key.size(1), 1),
        ).repeated()

    grads = dict(zip(given, explicit.gradients(grad, call_of, list(given.values())), strict=True))
    return [grads.get(name) for name in names]

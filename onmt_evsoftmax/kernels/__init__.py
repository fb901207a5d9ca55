"""Fast versions of what the rest of the package defines, each falling back to that definition.

Kernels for CPUs are plain C, compiled when the package is installed if there is a compiler. Those
for GPUs are written in Triton, which torch's CUDA builds bring along, and compiled when first used.
Without them, or with ``ONMT_EVSOFTMAX_BACKEND=torch``, torch computes everything. The functions
here return None for what they do not serve: the caller then computes it itself. ``README.md`` in
this folder shows how a call travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from onmt_evsoftmax.kernels import attention, library, operators, rows
from onmt_evsoftmax.kernels.attention import single_query
from onmt_evsoftmax.kernels.attention_task import Task
from onmt_evsoftmax.kernels.library import BACKENDS, accepts, backend, chosen, using
from onmt_evsoftmax.kernels.triton import serving
from onmt_evsoftmax.kernels.triton.tiles import MAX_HEAD

__all__ = [
    "BACKENDS",
    "MAX_HEAD",
    "ON_CPU",
    "ON_GPU",
    "Task",
    "accepts",
    "attention_backward",
    "attention_forward",
    "available",
    "backend",
    "chosen",
    "exporting",
    "forward_mode",
    "rows_backward",
    "rows_forward",
    "serves",
    "single_query",
    "tracing",
    "transformed",
    "using",
]

#: Where the operators are: ``torch.ops.…``.
ON_CPU, ON_GPU = (kernels.namespace for kernels in operators.KERNELS)

#: Of a normalizer: a number, or a tensor of one for every row, which has size 1 along the row.
Parameter = float | Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # since torch 2.7


def available() -> bool:
    """Whether compiled kernels are in use."""
    return library.active() is not None


# --- who is watching ------------------------------------------------------------------------------


def exporting() -> bool:
    """Whether what is computed is recorded for another program, which does not have the kernels.

    So it is in ``torch.jit.trace``, ``torch.export`` and both of torch's ONNX exporters.
    """
    if torch.compiler.is_compiling():
        return _is_exporting()
    return torch._C._is_tracing()


def tracing() -> bool:
    """Whether operations are recorded, to run later on other values: compiled or exported."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def forward_mode() -> bool:
    """Whether derivatives are being taken forward (``torch.func.jvp``, ``forward_ad``)."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def transformed(tensor: Tensor) -> bool:
    """Whether memory does not hold the tensor as it is: torch's dispatcher must see the call.

    True while compiling, for fake tensors, for what ``torch.func`` transformations wrap, and for
    views that negate (the imaginary part of a conjugate).
    """
    return (
        torch.compiler.is_compiling()
        or type(tensor) not in _PLAIN
        or not torch._C._has_storage(tensor)
        or tensor.is_neg()
    )


# --- rows -----------------------------------------------------------------------------------------


def serves(kernel: str, tensor: Tensor, parameter: Parameter = 0.0) -> bool:
    """Whether there is a row kernel of that name for such tensors, on this device, now."""
    return _server(kernel, tensor, parameter, tensor) is not None


def _server(kernel: str, tensor: Tensor, parameter: Parameter, watched: Tensor) -> Any:
    """Who has ``rows_forward`` and ``rows_backward`` for such a tensor; None: nobody has.

    The C functions themselves, unless torch must see what is done with ``watched``.
    """
    if exporting() or tensor.layout is not torch.strided or tensor.dim() == 0:
        return None
    if (
        tensor.is_cpu
        and library.active() is not None
        and tensor.dtype in rows.DTYPES
        and tensor.dim() <= rows.MAX_RANK
        and _takes(kernel, parameter, watched)
    ):
        return torch.ops.onmt_evsoftmax if transformed(watched) else rows
    chosen = library.chosen()
    forced = chosen == "triton" or (tensor.is_cuda and chosen != "torch")
    if forced and serving.rows_blocker(kernel, tensor) is None:
        return torch.ops.onmt_evsoftmax_triton
    return None


def _takes(kernel: str, parameter: Parameter, watched: Tensor) -> bool:
    """Whether the C kernel takes this parameter, of which a tensor must have values to look at."""
    if not isinstance(parameter, Tensor):
        return accepts(kernel, parameter)
    if transformed(parameter) or transformed(watched) or parameter.numel() == 0:
        return False
    least, most = parameter.detach().aminmax()
    return accepts(kernel, least.item()) and accepts(kernel, most.item())


def _number_and_tensor(parameter: Parameter) -> tuple[float, Tensor | None]:
    return (0.0, parameter) if isinstance(parameter, Tensor) else (parameter, None)


def rows_forward(
    kernel: str,
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    parameter: Parameter = 0.0,
    want_support: bool = True,
) -> tuple[Tensor, Tensor | None] | None:
    """(p, support) of a normalizer along ``dim``.

    ``mask`` (True = takes part) has the rank of the scores, whole rows along ``dim``, and may
    broadcast elsewhere. ``parameter`` is a number, or a tensor of the rank of the scores with one
    for every row. Computes half precision in float32, else in the type of the scores.
    """
    server = _server(kernel, scores, parameter, scores)
    if server is None:
        return None
    last = dim == -1 or dim == scores.dim() - 1
    if not last:
        scores = scores.movedim(dim, -1)
        mask = None if mask is None else mask.movedim(dim, -1)
        parameter = parameter.movedim(dim, -1) if isinstance(parameter, Tensor) else parameter
    number, alpha = _number_and_tensor(parameter)
    p, support = server.rows_forward(kernel, scores, mask, number, alpha, want_support)
    support = support if want_support else None
    if last:
        return p, support
    return p.movedim(-1, dim), None if support is None else support.movedim(-1, dim)


def rows_backward(
    kernel: str, p: Tensor, grad: Tensor, dim: int = -1, parameter: Parameter = 0.0
) -> tuple[Tensor, Tensor | None] | None:
    """Gradients of the scores and of the parameter, if there is one for every row.

    None also where the result must be differentiable in turn.
    """
    if torch.is_grad_enabled() or forward_mode():
        return None
    server = _server(kernel, p, parameter, grad)
    if server is None:
        return None
    last = dim == -1 or dim == p.dim() - 1
    if not last:
        p, grad = p.movedim(dim, -1), grad.movedim(dim, -1)
        parameter = parameter.movedim(dim, -1) if isinstance(parameter, Tensor) else parameter
    grad = grad if grad.dtype == p.dtype else grad.to(p.dtype)
    number, alpha = _number_and_tensor(parameter)
    grad_scores, of_alpha = server.rows_backward(kernel, p, grad, number, alpha, alpha is not None)
    of_alpha = None if alpha is None else of_alpha.to(alpha.dtype)
    if last:
        return grad_scores, of_alpha
    return grad_scores.movedim(-1, dim), None if of_alpha is None else of_alpha.movedim(-1, dim)


# --- attention ------------------------------------------------------------------------------------


def attention_forward(namespace: str, task: Task) -> tuple[Tensor, ...]:
    """(out, what the backward pass needs).

    ``namespace`` is that of the operators: :data:`ON_CPU`, or :data:`ON_GPU`, where there must be
    no alpha.
    """
    if namespace == ON_GPU:
        return torch.ops.onmt_evsoftmax_triton.attention_forward(*task)
    if transformed(task.query):
        return torch.ops.onmt_evsoftmax.attention_forward(*task)
    return attention.attention_forward(task)


def attention_backward(
    namespace: str, grad: Tensor, task: Task, results: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Gradients of query, key, value, alpha, relative keys and values; what is not there is any.

    ``results`` are those of the forward pass.
    """
    if namespace == ON_GPU:
        return torch.ops.onmt_evsoftmax_triton.attention_backward(grad, *task, *results)
    if transformed(grad):
        return torch.ops.onmt_evsoftmax.attention_backward(grad, *task, *results)
    return attention.attention_backward(grad, task, *results)

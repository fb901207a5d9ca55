"""Fast versions of what the rest of the package defines, each falling back to that definition.

Kernels for CPUs are plain C, compiled when the package is installed if there is a compiler. Those
for GPUs are written in Triton, which torch's CUDA builds bring along, and compiled when first used.
Without them, or with ``ONMT_EVSOFTMAX_BACKEND=torch``, torch computes everything. The functions
here return None for what they do not serve: the caller then computes it itself. ``README.md`` in
this folder shows how a call travels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from onmt_evsoftmax.kernels import attention as fused
from onmt_evsoftmax.kernels import attention_operators, library  # noqa: F401 (registers them)
from onmt_evsoftmax.kernels import rows as operators
from onmt_evsoftmax.kernels.attention import single_query
from onmt_evsoftmax.kernels.library import BACKENDS, accepts, backend, chosen, using
from onmt_evsoftmax.kernels.rows import Parameter
from onmt_evsoftmax.kernels.triton import operators as triton_operators
from onmt_evsoftmax.kernels.triton import serving

__all__ = [
    "BACKENDS",
    "MAX_HEAD",
    "ON_CPU",
    "ON_GPU",
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
ON_CPU, ON_GPU = "onmt_evsoftmax", triton_operators.NAMESPACE

#: The largest size of a head that the attention kernel is made (and tested) for.
MAX_HEAD = 256

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
    return _on_cpu(kernel, tensor, parameter) or _on_gpu(kernel, tensor, parameter)


def _on_cpu(kernel: str, tensor: Tensor, parameter: Parameter = 0.0) -> bool:
    return (
        tensor.is_cpu
        and library.active() is not None
        and tensor.dtype in operators.DTYPES
        and tensor.layout is torch.strided
        and 0 < tensor.dim() <= operators.MAX_RANK
        and not exporting()
        and _takes(kernel, parameter, tensor)
    )


def _takes(kernel: str, parameter: Parameter, scores: Tensor) -> bool:
    """Whether the kernel takes this parameter; a tensor's values must be there to be looked at."""
    if not isinstance(parameter, Tensor):
        return accepts(kernel, parameter)
    if transformed(parameter) or transformed(scores) or parameter.numel() == 0:
        return False
    least, most = parameter.detach().aminmax()
    return accepts(kernel, least.item()) and accepts(kernel, most.item())


def _on_gpu(kernel: str, tensor: Tensor, parameter: Parameter = 0.0) -> bool:
    chosen = library.chosen()
    return (
        (chosen == "triton" or (tensor.is_cuda and chosen != "torch"))
        and serving.rows_blocker(kernel, tensor) is None
        and not exporting()
        and _plain(tensor)
        and (not isinstance(parameter, Tensor) or _plain(parameter))
    )


def _number_and_tensor(parameter: Parameter) -> tuple[float, Tensor | None]:
    return (0.0, parameter) if isinstance(parameter, Tensor) else (parameter, None)


def _plain(tensor: Tensor) -> bool:
    """Neither sparse nor wrapped by ``torch.func``, for which the GPU's operators have no rules."""
    return torch.compiler.is_compiling() or (
        tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


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
    on_cpu = _on_cpu(kernel, scores, parameter)
    if not (on_cpu or _on_gpu(kernel, scores, parameter)):
        return None
    last = dim == -1 or dim == scores.dim() - 1
    if not last:
        scores = scores.movedim(dim, -1)
        mask = None if mask is None else mask.movedim(dim, -1)
        parameter = parameter.movedim(dim, -1) if isinstance(parameter, Tensor) else parameter
    if not on_cpu:
        p, support = torch.ops.onmt_evsoftmax_triton.rows_forward(
            kernel, scores, mask, *_number_and_tensor(parameter), want_support
        )
        support = support if want_support else None
    elif transformed(scores):
        p, support = torch.ops.onmt_evsoftmax.rows_forward(
            kernel, scores, mask, parameter, want_support
        )
        support = support if want_support else None
    else:
        p, support = operators.rows_forward(kernel, scores, mask, parameter, want_support)
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
    on_cpu = _on_cpu(kernel, p) and _takes(kernel, parameter, grad)
    if not (on_cpu or (_on_gpu(kernel, p, parameter) and _plain(grad))):
        return None
    last = dim == -1 or dim == p.dim() - 1
    if not last:
        p, grad = p.movedim(dim, -1), grad.movedim(dim, -1)
        parameter = parameter.movedim(dim, -1) if isinstance(parameter, Tensor) else parameter
    grad_parameter: Tensor | None = None
    if not on_cpu:
        number, each = _number_and_tensor(parameter)
        grad_scores, found = torch.ops.onmt_evsoftmax_triton.rows_backward(
            kernel, p, grad, each, each is not None, number
        )
        grad_parameter = None if each is None else found.to(each.dtype)
    elif transformed(grad):
        grad = grad if grad.dtype == p.dtype else grad.to(p.dtype)
        grad_scores = torch.ops.onmt_evsoftmax.rows_backward(kernel, p, grad, parameter)
    else:
        grad = grad if grad.dtype == p.dtype else grad.to(p.dtype)
        grad_scores, grad_parameter = operators.rows_backward(kernel, p, grad, parameter)
    if last:
        return grad_scores, grad_parameter
    back = None if grad_parameter is None else grad_parameter.movedim(-1, dim)
    return grad_scores.movedim(-1, dim), back


# --- attention ------------------------------------------------------------------------------------


def attention_forward(namespace: str, kernel: str, query: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """(out, what the backward pass needs); see :func:`fused.attention_forward`.

    ``namespace`` is that of the operators: :data:`ON_CPU`, or :data:`ON_GPU`, where there must be
    no alpha.
    """
    if namespace == ON_GPU:
        return torch.ops.onmt_evsoftmax_triton.attention_forward(
            kernel, query, *rest[:4], *rest[9:], False, *rest[5:9]
        )
    if transformed(query):
        return torch.ops.onmt_evsoftmax.attention_forward(kernel, query, *rest)
    return fused.attention_forward(kernel, query, *rest)


def attention_backward(namespace: str, grad: Tensor, kernel: str, *rest: Any) -> fused.Gradients:
    """Gradients of query, key, value, …; see :func:`fused.attention_backward`."""
    if namespace == ON_GPU:
        # In `rest`: five tensors, alpha, three terms, five results of the forward pass, offset, …
        *grads, keys, values = torch.ops.onmt_evsoftmax_triton.attention_backward(
            grad, kernel, *rest[:5], *rest[9:14], *rest[15:], False, *rest[6:9], rest[14]
        )
        return *grads, *fused.gradients_of_terms(grad, None, keys, values)
    if transformed(grad):
        return torch.ops.onmt_evsoftmax.attention_backward(grad, kernel, *rest)
    return fused.attention_backward(grad, kernel, *rest)

"""Fast versions of what the rest of the package defines, each falling back to that definition.

The kernels are plain C, compiled when the package is installed if there is a compiler; without one,
or with ``ONMT_EVSOFTMAX_BACKEND=torch``, torch computes everything. They serve tensors on the CPU.
The functions here return None for what they do not serve: the caller then computes it itself.
``README.md`` in this folder shows how a call travels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from onmt_evsoftmax.kernels import attention as fused
from onmt_evsoftmax.kernels import library
from onmt_evsoftmax.kernels import rows as operators
from onmt_evsoftmax.kernels.library import BACKENDS, accepts, backend, using

__all__ = [
    "BACKENDS",
    "MAX_HEAD",
    "accepts",
    "attention_backward",
    "attention_forward",
    "available",
    "backend",
    "exporting",
    "forward_mode",
    "rows_backward",
    "rows_forward",
    "serves",
    "tracing",
    "transformed",
    "using",
]

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


def serves(tensor: Tensor) -> bool:
    """Whether the row kernels take tensors of this type, on this device, now."""
    return (
        tensor.is_cpu
        and library.active() is not None
        and tensor.dtype in operators.DTYPES
        and tensor.layout is torch.strided
        and 0 < tensor.dim() <= operators.MAX_RANK
        and not exporting()
    )


def rows_forward(
    normalizer: str,
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    parameter: float | Tensor = 0.0,
    want_support: bool = True,
) -> tuple[Tensor, Tensor | None] | None:
    """(p, support) of a normalizer of :data:`library.NORMALIZERS` along ``dim``.

    ``mask`` (True = takes part) has the rank of the scores, whole rows along ``dim``, and may
    broadcast elsewhere; a tensor as ``parameter`` has one for every row. Computes half precision in
    float32, else in the type of the scores.
    """
    if not serves(scores) or not _takes(normalizer, parameter, scores):
        return None
    last = dim == -1 or dim == scores.dim() - 1
    if not last:
        scores = scores.movedim(dim, -1)
        mask = None if mask is None else mask.movedim(dim, -1)
        parameter = parameter.movedim(dim, -1) if isinstance(parameter, Tensor) else parameter
    if transformed(scores):
        p, support = torch.ops.onmt_evsoftmax.rows_forward(
            normalizer, scores, mask, parameter, want_support
        )
        support = support if want_support else None
    else:
        p, support = operators.rows_forward(normalizer, scores, mask, parameter, want_support)
    if last:
        return p, support
    return p.movedim(-1, dim), None if support is None else support.movedim(-1, dim)


def _takes(normalizer: str, parameter: float | Tensor, scores: Tensor) -> bool:
    """Whether the kernel takes this parameter; a tensor's values must be there to be looked at."""
    if not isinstance(parameter, Tensor):
        return accepts(normalizer, parameter)
    if transformed(parameter) or transformed(scores) or parameter.numel() == 0:
        return False
    least, most = parameter.detach().aminmax()
    return accepts(normalizer, least.item()) and accepts(normalizer, most.item())


def rows_backward(
    normalizer: str, p: Tensor, grad: Tensor, dim: int = -1, parameter: float | Tensor = 0.0
) -> tuple[Tensor, Tensor | None] | None:
    """Gradients of the scores and of the parameter, if there is one for every row.

    None also where the result must be differentiable in turn.
    """
    if not serves(p) or torch.is_grad_enabled() or forward_mode():
        return None
    if not _takes(normalizer, parameter, grad):
        return None
    last = dim == -1 or dim == p.dim() - 1
    if not last:
        p, grad = p.movedim(dim, -1), grad.movedim(dim, -1)
        parameter = parameter.movedim(dim, -1) if isinstance(parameter, Tensor) else parameter
    grad = grad if grad.dtype == p.dtype else grad.to(p.dtype)
    if transformed(grad):
        grad_scores = torch.ops.onmt_evsoftmax.rows_backward(normalizer, p, grad, parameter)
        grad_parameter = None
    else:
        grad_scores, grad_parameter = operators.rows_backward(normalizer, p, grad, parameter)
    if last:
        return grad_scores, grad_parameter
    back = None if grad_parameter is None else grad_parameter.movedim(-1, dim)
    return grad_scores.movedim(-1, dim), back


# --- attention ------------------------------------------------------------------------------------


def attention_forward(normalizer: str, query: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Attention on the CPU; see :func:`fused.attention_forward`."""
    if transformed(query):
        return torch.ops.onmt_evsoftmax.attention_forward(normalizer, query, *rest)
    return fused.attention_forward(normalizer, query, *rest)


def attention_backward(grad: Tensor, *rest: Any) -> fused.Gradients:
    """Gradients of query, key, value, …; see :func:`fused.attention_backward`."""
    if transformed(grad):
        return torch.ops.onmt_evsoftmax.attention_backward(grad, *rest)
    return fused.attention_backward(grad, *rest)

"""softmax: p ∝ exp(v)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers import losses, masked
from onmt_evsoftmax.normalizers.registry import Normalizer


@masked.both_ways
class Softmax(torch.autograd.Function):
    """(scores, parameter, mask, dim, want_support) → (p, support), either of which may be None."""

    @staticmethod
    def forward(
        scores: Tensor, parameter: None, mask: Tensor | None, dim: int, want_support: bool
    ) -> tuple[Tensor, Tensor | None]:
        hidden = masked.find_hidden(scores, mask)
        logits = masked.shift(scores, hidden, dim)
        return masked.clear(torch.softmax(logits, dim), hidden), logits > -math.inf

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        masked.save(ctx, output)
        ctx.dim = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p,) = ctx.saved_tensors
        fast = kernels.rows_backward("evsoftmax", p, grads[0], ctx.dim)
        if fast is not None:
            return fast[0], None, None, None, None
        grad_scores = torch._softmax_backward_data(grads[0], p, ctx.dim, p.dtype)
        if not masked.is_sound(grad_scores):  # in a row with nan, 0 · nan is nan
            grad_scores = torch.where(p == 0, 0.0, grad_scores)
        return grad_scores, None, None, None, None

    @staticmethod
    def tangent(ctx: Any, *tangents: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return masked.along_simplex(p, tangents[0], ctx.dim), None


@masked.row_function
def softmax(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Any:
    """p ∝ exp(v) over the valid entries."""
    return masked.normalize(Softmax, None, scores, mask, dim, None, return_support)


@masked.row_function
def log_softmax(
    scores: Tensor, mask: Tensor | None = None, dim: int = -1, *, return_support: bool = False
) -> Any:
    """log of :func:`softmax`; masked entries are ``-inf``."""
    mask = masked.check(scores, mask, dim)
    wide = masked.widen(scores)
    hidden = masked.hidden_entries(wide, mask)
    shifted = masked.shift(wide, hidden, dim)
    log_p = torch.where(hidden, -math.inf, torch.log_softmax(shifted, dim))
    return masked.result(log_p.to(scores.dtype), shifted > -math.inf, return_support)


def softmax_loss(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy."""
    log = partial(torch.log_softmax, dim=-1)
    return losses.likelihood(log, logits, target, ignore_index, reduction, label_smoothing)


RECORDS = (
    Normalizer(
        name="softmax",
        function=softmax,
        log_function=log_softmax,
        loss=softmax_loss,
        colour="#e69f00",
        formula="p ∝ exp(v)",
        order=10,
    ),
)

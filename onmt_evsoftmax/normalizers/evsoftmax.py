"""ev-softmax: p ∝ 1{v ≥ v̄} · exp(v), v̄ the mean of the valid entries."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax import kernels
from onmt_evsoftmax.normalizers import losses, masked
from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter, number_parser
from onmt_evsoftmax.normalizers.softmax import Softmax


@masked.both_ways
class EvSoftmax(Softmax):
    """(scores, eps, mask, dim, want_support) → (p, support); the gradient is softmax's, of p."""

    @staticmethod
    def forward(
        scores: Tensor, parameter: Any, mask: Tensor | None, dim: int, want_support: bool
    ) -> tuple[Tensor, Tensor | None]:
        eps: float = parameter
        fast = kernels.rows_forward("evsoftmax", scores, mask, dim, eps, want_support)
        if fast is not None:
            return fast
        hidden = masked.find_hidden(scores, mask)
        logits = masked.shift(scores, hidden, dim)
        support = logits >= masked.mean(logits, hidden, dim)
        if eps > 0:
            logits = logits + _log_weight(support, eps, logits)
            support = logits > -math.inf
        else:
            logits = torch.where(support, logits, -math.inf)
        return masked.clear(torch.softmax(logits, dim), hidden), support


@masked.row_function
def evsoftmax(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    eps: float = 0.0,
    return_support: bool = False,
) -> Any:
    """Evidential softmax: p ∝ (1{v ≥ v̄} + eps) · exp(v).

    With ``eps = 0`` (exact) entries below the mean get probability 0; with ``eps > 0`` every valid
    entry keeps some mass, which is the paper's form for training by likelihood (eps = 1e-6 there).
    """
    _check_eps(eps)
    kernel = ("evsoftmax", eps)
    return masked.normalize(EvSoftmax, kernel, scores, mask, dim, eps, return_support)


@masked.row_function
def log_evsoftmax(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    eps: float = 1e-6,
    return_support: bool = False,
) -> Any:
    """log of :func:`evsoftmax`, computed in log space: finite at any gap when ``eps > 0``.

    Masked entries are ``-inf``, and so are dropped ones when ``eps = 0``. The gradient of entry i
    is δ_i − p for every eps, 0 included, where it is the limit that the paper derives.
    """
    _check_eps(eps)
    mask = masked.check(scores, mask, dim)
    wide = masked.widen(scores)
    hidden = masked.hidden_entries(wide, mask)
    shifted = masked.shift(wide, hidden, dim)
    kept = shifted >= masked.mean(shifted, hidden, dim)
    log_p = torch.log_softmax(shifted + _log_weight(kept, eps, shifted), dim)
    log_p = torch.where(hidden, -math.inf, log_p)
    support = shifted > -math.inf if eps > 0 else kept
    return masked.result(log_p.to(scores.dtype), support, return_support)


def _log_weight(kept: Tensor, eps: float, like: Tensor) -> Tensor:
    """log(1{kept} + eps), the logarithm of what exp(v) is multiplied with, in the type of v."""
    low = math.log(eps) if eps > 0 else -math.inf
    return torch.full_like(like, low).masked_fill(kept, math.log1p(eps))


def _check_eps(eps: float) -> None:
    if isinstance(eps, Tensor):
        raise TypeError("eps must be a number, the same for all rows, not a Tensor")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps must be 0 (exact) or positive and finite, not {eps}")


def _check_positive(eps: float) -> None:
    if not eps > 0:
        raise ValueError(
            f"eps must be positive, not {eps}: exact ev-softmax has zeros, whose logarithm is -inf"
        )


def evsoftmax_loss(
    logits: Tensor,
    target: Tensor,
    *,
    eps: float = 1e-6,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Negative log-likelihood under the training form; finite at any logit gap."""
    _check_positive(eps)
    log = partial(log_evsoftmax, eps=eps)
    return losses.likelihood(log, logits, target, ignore_index, reduction, label_smoothing)


def evsoftmax_kl(
    q_scores: Tensor,
    p_scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    eps: float = 1e-6,
    reduction: str = "none",
) -> Tensor:
    """KL(q ‖ p) of the training forms of two score tensors of one shape, summed along ``dim``.

    ``mask`` (True = takes part) applies to both. This is the paper's ε-KL.
    """
    _check_positive(eps)
    q_scores, p_scores = masked.widen(q_scores), masked.widen(p_scores)
    log_q, valid = log_evsoftmax(q_scores, mask, dim, eps=eps, return_support=True)
    log_p = log_evsoftmax(p_scores, mask, dim, eps=eps)
    ratio = torch.where(valid, log_q, 0.0) - torch.where(valid, log_p, 0.0)
    kl = (log_q.exp() * ratio).sum(dim)
    return losses.reduce(kl, torch.ones_like(kl, dtype=torch.bool), reduction)


RECORDS = (
    Normalizer(
        name="evsoftmax",
        function=evsoftmax,
        log_function=log_evsoftmax,
        loss=evsoftmax_loss,
        parameters=(
            Parameter(
                "eps",
                "weight of the entries below the mean in training, as in the paper; "
                "evaluation is always exact",
                number_parser("eps", "0 (exact) or a positive number", lambda eps: eps >= 0),
                0.0,
                training_only=True,
            ),
        ),
        title="ev-softmax",
        colour="#009e73",
        formula="p ∝ 1{v ≥ mean(v)} · exp(v)",
        order=20,
        row_kernel="evsoftmax",
        attention_kernel="evsoftmax",
        row_target=lambda columns: (0.85, 0.95) if columns <= 256 else (0.95, 1.05),
        attention_target=lambda length, kept: (1.0, 0.95) if kept > 0.2 else (0.7, None),
    ),
)

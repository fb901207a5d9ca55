"""The loss that belongs to each normalizer, with the conventions of torch's ``cross_entropy``.

``logits`` are ``(N, C, …)`` (or ``(C,)``) and ``target`` holds class indices ``(N, …)``; entries
equal to ``ignore_index`` count nowhere; ``reduction`` is ``"mean"`` (over what is not ignored),
``"sum"`` or ``"none"``. Half precision is computed and returned in float32, since a logit gap can
exceed what float16 holds.

softmax and evsoftmax are trained by likelihood; sparsemax and entmax by their Fenchel–Young loss
(Blondel et al., 2020), which is 0 exactly when the target has all the mass and whose gradient is
p − y.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers import functional


def softmax_loss(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy."""
    return _likelihood(
        lambda rows: torch.log_softmax(rows, -1),
        logits,
        target,
        ignore_index,
        reduction,
        label_smoothing,
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
    """Negative log-likelihood under ev-softmax's training form; finite at any logit gap."""
    _check_eps(eps)
    return _likelihood(
        lambda rows: functional.log_evsoftmax(rows, eps=eps),
        logits,
        target,
        ignore_index,
        reduction,
        label_smoothing,
    )


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
    _check_eps(eps)
    q_scores, p_scores = q_scores.to(_wide(q_scores)), p_scores.to(_wide(p_scores))
    log_q, valid = functional.log_evsoftmax(q_scores, mask, dim, eps=eps, return_support=True)
    log_p = functional.log_evsoftmax(p_scores, mask, dim, eps=eps)
    ratio = torch.where(valid, log_q, 0.0) - torch.where(valid, log_p, 0.0)
    kl = (log_q.exp() * ratio).sum(dim)
    return _reduce(kl, torch.ones_like(kl, dtype=torch.bool), reduction)


def sparsemax_loss(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Sparsemax loss (Martins & Astudillo, 2016): the Fenchel–Young loss of alpha = 2."""
    return entmax_loss(
        logits,
        target,
        alpha=2.0,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def entmax15_loss(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """1.5-entmax (Tsallis) loss (Peters et al., 2019): the Fenchel–Young loss of alpha = 1.5."""
    return entmax_loss(
        logits,
        target,
        alpha=1.5,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def entmax_loss(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float | Tensor = 1.5,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Fenchel–Young loss of alpha-entmax: (p − y)·v + H(p) − H(y), H the Tsallis entropy.

    A smoothed target y gives the Fenchel–Young label smoothing of Peters & Martins (2021).
    ``alpha`` may be a scalar tensor, which receives a gradient.
    """
    rows, index, valid = _rows(logits, target, ignore_index, label_smoothing)
    # A shift changes nothing but keeps large logits from cancelling; -inf is a class ruled out.
    rows = rows - rows.detach().amax(-1, keepdim=True)
    rows = rows.clamp(min=torch.finfo(rows.dtype).min)
    p = functional.entmax(rows, alpha=alpha)
    classes = rows.size(-1)
    expected = (1.0 - label_smoothing) * _at(rows, index) + label_smoothing * rows.mean(-1)
    loss = (p * rows).sum(-1) - expected + _tsallis(p, alpha)
    if label_smoothing:
        rest = label_smoothing / classes
        smoothed = rows.new_tensor([1.0 - label_smoothing + rest] + [rest] * (classes - 1))
        loss = loss - _tsallis(smoothed, alpha)
    return _reduce(loss.reshape(target.shape), valid, reduction)


def _tsallis(p: Tensor, alpha: float | Tensor) -> Tensor:
    """Tsallis alpha-entropy Σ (p − p^alpha) / (alpha (alpha − 1)) along the last dimension."""
    # 1 stands in for 0: it adds as little, and its derivatives of any order are finite.
    safe = p.masked_fill(p == 0, 1.0)
    return (safe - safe**alpha).sum(-1) / (alpha * (alpha - 1.0))


def _likelihood(
    log_normalizer: Callable[[Tensor], Tensor],
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    rows, index, valid = _rows(logits, target, ignore_index, label_smoothing)
    log_p = log_normalizer(rows)
    loss = -(1.0 - label_smoothing) * _at(log_p, index)
    if label_smoothing:
        loss = loss - label_smoothing * log_p.mean(-1)
    return _reduce(loss.reshape(target.shape), valid, reduction)


def _rows(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits as rows (M, C), target as (M,) with 0 where ignored, and what is not ignored."""
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1), not {label_smoothing}")
    class_dim = 0 if logits.dim() == 1 else 1
    classes = logits.size(class_dim)
    expected = logits.shape[:class_dim] + logits.shape[class_dim + 1 :]
    if target.shape != expected:
        raise ValueError(
            f"target of shape {tuple(target.shape)} does not fit logits {tuple(logits.shape)}: "
            f"it must be {tuple(expected)}"
        )
    rows = logits.to(_wide(logits)).movedim(class_dim, -1).reshape(-1, classes)
    valid = target != ignore_index
    return rows, torch.where(valid, target, 0).reshape(-1), valid


def _at(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _reduce(loss: Tensor, valid: Tensor, reduction: str) -> Tensor:
    """``loss`` with 0 where not ``valid`` (True = counts), reduced."""
    loss = torch.where(valid, loss, 0.0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        return loss.sum() / valid.sum()
    raise ValueError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")


def _check_eps(eps: float) -> None:
    if not eps > 0:
        raise ValueError(
            f"eps must be positive, not {eps}: exact ev-softmax has zeros, whose logarithm is -inf"
        )

"""What the losses share: the conventions of torch's ``cross_entropy``.

``logits`` are ``(N, C, …)`` (or ``(C,)``) and ``target`` holds class indices ``(N, …)``; entries
equal to ``ignore_index`` count nowhere; ``reduction`` is ``"mean"`` (over what is not ignored),
``"sum"`` or ``"none"``. Half precision is computed and returned in float32, since a logit gap can
exceed what float16 holds.

softmax and ev-softmax are trained by likelihood; sparsemax and entmax by their Fenchel–Young loss
(Blondel et al., 2020), which is 0 exactly when the target has all the mass and whose gradient is
p − y.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers import masked


def likelihood(
    log_normalizer: Callable[[Tensor], Tensor],
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """Negative log-likelihood; ``log_normalizer`` makes log p (M, C) of logits (M, C)."""
    rows, index, valid = as_rows(logits, target, ignore_index, label_smoothing)
    log_p = log_normalizer(rows)
    loss = -(1.0 - label_smoothing) * at(log_p, index)
    if label_smoothing:
        loss = loss - label_smoothing * log_p.mean(-1)
    return reduce(loss.reshape(target.shape), valid, reduction)


def as_rows(
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
    rows = masked.widen(logits).movedim(class_dim, -1).reshape(-1, classes)
    valid = target != ignore_index
    return rows, torch.where(valid, target, 0).reshape(-1), valid


def at(rows: Tensor, index: Tensor) -> Tensor:
    """The entry ``index`` (M,) of each row (M, C)."""
    return rows.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def reduce(loss: Tensor, valid: Tensor, reduction: str) -> Tensor:
    """``loss`` with 0 where not ``valid`` (True = counts), reduced."""
    loss = torch.where(valid, loss, 0.0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        return loss.sum() / valid.sum()
    raise ValueError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")

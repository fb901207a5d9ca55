"""softmax: p ∝ exp(v)."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers import functional, losses
from onmt_evsoftmax.normalizers.registry import Normalizer


def log_softmax(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """log of :func:`softmax`; masked entries are ``-inf``, and so is a row with nothing valid."""
    if mask is None:
        return torch.log_softmax(scores, dim)
    hidden = scores.masked_fill(~mask, -torch.inf)
    return torch.log_softmax(hidden, dim).masked_fill(~mask, -torch.inf)


RECORDS = (
    Normalizer(
        name="softmax",
        function=functional.softmax,
        log_function=log_softmax,
        loss=losses.softmax_loss,
        colour="#e69f00",
        formula="p ∝ exp(v)",
        order=10,
    ),
)

"""ev-softmax: p ∝ 1{v ≥ mean(v)} · exp(v)."""

from __future__ import annotations

import math

from onmt_evsoftmax.normalizers import functional, losses
from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter


def parse_eps(text: str) -> float:
    """What a user wrote for eps."""
    try:
        eps = float(text)
    except ValueError:
        eps = math.nan
    if not 0.0 <= eps < math.inf:
        raise ValueError(f"eps must be 0 (exact) or a positive number, not {text!r}")
    return eps


RECORDS = (
    Normalizer(
        name="evsoftmax",
        function=functional.evsoftmax,
        log_function=functional.log_evsoftmax,
        loss=losses.evsoftmax_loss,
        parameters=(
            Parameter(
                "eps",
                "weight of the entries below the mean in training, as in the paper; "
                "evaluation is always exact",
                parse_eps,
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
    ),
)

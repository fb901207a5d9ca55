"""sparsehourglass: sparsemax of rescaled scores."""

from __future__ import annotations

import math

from onmt_evsoftmax.normalizers import functional
from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter


def parse_q(text: str) -> float:
    """What a user wrote for q."""
    try:
        q = float(text)
    except ValueError:
        q = math.nan
    if not 0.0 < q < math.inf:
        raise ValueError(f"q must be a positive number, not {text!r}")
    return q


RECORDS = (
    Normalizer(
        name="sparsehourglass",
        function=functional.sparsehourglass,
        parameters=(
            Parameter(
                "q",
                "trades scale invariance (towards 0) for translation invariance (towards ∞)",
                parse_q,
                1.0,
            ),
        ),
        colour="#8c564b",
        formula="p = sparsemax(v (1 + Kq) / (|Σv| + Kq))",
        order=60,
        row_kernel="sparsemax",
    ),
)

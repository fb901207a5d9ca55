"""sparsehourglass (Laha et al., 2018): sparsemax of rescaled scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onmt_evsoftmax.normalizers import masked
from onmt_evsoftmax.normalizers.entmax import sparsemax
from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter, number_parser


@masked.row_function
def sparsehourglass(
    scores: Tensor,
    mask: Tensor | None = None,
    dim: int = -1,
    *,
    q: float = 1.0,
    return_support: bool = False,
) -> Any:
    """Sparsemax of the scores times ``(1 + Kq) / (|Σv| + Kq)``.

    ``q`` trades scale invariance (q → 0) for translation invariance (q → ∞, which is sparsemax).
    """
    if not q > 0:
        raise ValueError(f"q must be positive, not {q}; at 0 a row that sums to 0 has no value")
    mask = masked.check(scores, mask, dim)
    wide = masked.widen(scores)
    hidden = masked.hidden_entries(wide, mask)
    wide = torch.where(hidden, 0.0, wide)
    mass = q * masked.count(hidden, wide, dim)
    # A row with nothing valid sums to 0 and has mass 0: any finite scale will do for it.
    size = wide.sum(dim, keepdim=True).abs() + mass
    scale = (1 + mass) / torch.where(size == 0, 1.0, size)
    p, support = sparsemax(wide * scale, ~hidden, dim, return_support=True)
    return masked.result(p.to(scores.dtype), support, return_support)


RECORDS = (
    Normalizer(
        name="sparsehourglass",
        function=sparsehourglass,
        parameters=(
            Parameter(
                "q",
                "trades scale invariance (towards 0) for translation invariance (towards ∞)",
                number_parser("q", "a positive number", lambda q: q > 0),
                1.0,
            ),
        ),
        colour="#8c564b",
        formula="p = sparsemax(v (1 + Kq) / (|Σv| + Kq))",
        limits={
            "scale invariance": ({"q": 1e-9}, "q → 0"),
            "translation invariance": ({"q": 1e9}, "q → ∞"),
        },
        lipschitz=lambda size: 1 + 1 / size,  # at q = 1
        order=60,
        row_kernel="sparsemax",
    ),
)

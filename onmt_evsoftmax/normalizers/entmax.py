"""The entmax family: sparsemax (alpha = 2), entmax-1.5, and entmax of any alpha."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers import functional, losses
from onmt_evsoftmax.normalizers.module import NormalizerModule
from onmt_evsoftmax.normalizers.registry import Normalizer, Parameter


def parse_alpha(text: str) -> float | str:
    """What a user wrote for alpha."""
    if text == "learn":
        return text
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not 1.0 < alpha < math.inf:
        raise ValueError(f"alpha must be a number above 1, or 'learn', not {text!r}")
    return alpha


class Entmax(NormalizerModule):
    """alpha-entmax; ``alpha="learn"`` trains alpha = 1 + sigmoid(a), one per head, from 1.5 on.

    With ``heads`` the scores must be (…, heads, queries, keys); without, one alpha serves all.
    """

    def __init__(self, alpha: float | str = 1.5, heads: int | None = None) -> None:
        alpha = parse_alpha(alpha) if isinstance(alpha, str) else alpha
        learned = alpha == "learn"
        super().__init__(ENTMAX, **({} if learned else {"alpha": alpha}))
        shape = () if heads is None else (heads, 1, 1)
        self.pre_alpha = nn.Parameter(torch.zeros(shape)) if learned else None

    @property
    def alpha(self) -> float | Tensor:
        """The number, or the learned values: a tensor of shape (heads, 1, 1) or ()."""
        if self.pre_alpha is None:
            return float(self.chosen["alpha"])
        return 1.0 + torch.sigmoid(self.pre_alpha)

    def options(self) -> dict[str, Any]:
        return {"alpha": self.alpha}


ENTMAX = Normalizer(
    name="entmax",
    function=functional.entmax,
    module=Entmax,
    loss=losses.entmax_loss,
    parameters=(
        Parameter(
            "alpha",
            "a number above 1, from softmax (1) to sparsemax (2) and beyond, or `learn` for one "
            "per head, trained",
            parse_alpha,
            1.5,
        ),
    ),
    title="entmax",
    colour="#0072b2",
    formula="p = [(α − 1) v − τ]₊^(1 / (α − 1))",
    order=50,
)

RECORDS = (
    Normalizer(
        name="sparsemax",
        function=functional.sparsemax,
        loss=losses.sparsemax_loss,
        colour="#d55e00",
        formula="p = [v − τ]₊",
        order=30,
        row_kernel="sparsemax",
    ),
    Normalizer(
        name="entmax15",
        function=functional.entmax15,
        loss=losses.entmax15_loss,
        title="entmax-1.5",
        colour="#56b4e9",
        formula="p = [v / 2 − τ]₊²",
        order=40,
        row_kernel="entmax15",
    ),
    ENTMAX,
)

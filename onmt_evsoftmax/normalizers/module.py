"""The Module around a normalizer's function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.registry import Normalizer


class NormalizerModule(nn.Module):
    """``forward(scores, mask=None, dim=-1)``: the function of a record with its parameters.

    Parameters that are for training only have their default in evaluation mode.
    """

    def __init__(self, record: Normalizer, **parameters: Any) -> None:
        super().__init__()
        self.record = record
        self.chosen: dict[str, Any] = {}
        for parameter in record.parameters:
            value = parameters.get(parameter.name, parameter.default)
            value = parameter.parse(value) if isinstance(value, str) else value
            self.chosen[parameter.name] = value
        if parameters:  # refuse a bad value here, not in a batch
            record.function(torch.zeros(1), **self.chosen)

    def options(self) -> dict[str, Any]:
        """Keyword arguments for the function, which may depend on the mode."""
        if self.training:
            return self.chosen
        return {
            p.name: p.default if p.training_only else self.chosen[p.name]
            for p in self.record.parameters
        }

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        dim: int = -1,
        *,
        return_support: bool = False,
    ) -> Any:
        """Probabilities of ``scores`` along ``dim``; mask True = takes part."""
        function = self.record.function
        return function(scores, mask, dim, return_support=return_support, **self.options())

    def _get_name(self) -> str:
        return self.record.name

    def extra_repr(self) -> str:
        return ", ".join(
            f"{key}={value:g}" for key, value in self.options().items() if isinstance(value, float)
        )

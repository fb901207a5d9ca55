"""The module that stands where OpenNMT-py has its softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from onmt_evsoftmax.normalizers.module import NormalizerModule

# OpenNMT-py fills excluded scores with −1e18 or −inf; no real score comes near this.
EXCLUDED = -1e17


class AttentionNormalizer(nn.Module):
    """Scores in, probabilities out; the mask is read off the fill, so excluded keys do nothing."""

    def __init__(self, normalizer: nn.Module) -> None:
        super().__init__()
        self.normalizer = normalizer

    def forward(self, scores: Tensor) -> Tensor:
        """``scores`` (…, queries, keys), excluded keys at −1e18 or −inf; same shape out."""
        ours = (
            isinstance(self.normalizer, NormalizerModule)
            and self.normalizer.record.package is None
            and scores.dtype == torch.float32
        )
        if ours and not (torch.is_grad_enabled() and scores.requires_grad):
            # For our own, -inf takes no part either: one operation instead of two, which can be
            # told in decoding, where a step is short.
            return self.normalizer(torch.threshold(scores, EXCLUDED, -math.inf))
        return self.normalizer(scores, included(scores))


def included(scores: Tensor) -> Tensor:
    """Mask (True = takes part) from scores with filled keys; a NaN score takes part and shows."""
    return ~(scores <= EXCLUDED)

"""The module in softmax's place reads the mask off the fill, in two ways that must agree."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from onmt_evsoftmax.normalizers.registry import get_normalizer, normalizer_names
from onmt_evsoftmax.opennmt.modules import AttentionNormalizer


def filled_scores() -> torch.Tensor:
    """(batch, heads, queries, keys), keys excluded with both fills, a row of nothing, a NaN."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 2, 5, 13, generator=generator) * 2
    scores[0, :, :, 9:] = -1e18
    scores[1, 0, 0] = -1e18
    scores[1, 1, 1, 4:] = -math.inf
    scores[2, 0, 3, 2] = math.nan
    return scores


@pytest.mark.parametrize("name", normalizer_names("attention"))
def test_decoding_equals_teacher_forcing_bit_for_bit(name):
    module = AttentionNormalizer(get_normalizer(name)).eval()
    scores = filled_scores()
    with torch.no_grad():
        decoded = module(scores)
    forced = module(scores.clone().requires_grad_())
    torch.testing.assert_close(decoded, forced.detach(), rtol=0, atol=0, equal_nan=True)
    assert (decoded[0, :, :, 9:] == 0).all()
    assert (decoded[1, 0, 0] == 0).all()
    assert decoded[2, 0, 3].isnan().any()  # a NaN takes part, and shows


def test_a_normalizer_of_others_gets_the_mask():
    class Counting(nn.Module):
        def forward(self, scores, mask, dim=-1):
            return mask.float()

    with torch.no_grad():
        p = AttentionNormalizer(Counting())(filled_scores())
    assert (p[0].sum(-1) == 9).all()

"""FlexAttention with our threshold as ``score_mod``: what a GPU computes."""

from __future__ import annotations

import pytest
import torch
from attention_cases import generator, random

from onmt_evsoftmax.attention import evsoftmax_attention
from onmt_evsoftmax.kernels import flex


def flex_case(masked: bool):
    query, key, value = (random(2, 2, 48, 16, seed=i) for i in range(3))
    mask = None
    if masked:
        mask = torch.rand(2, 1, 1, 48, generator=generator(3)) < 0.7
        mask[..., 0] = True
    return query, key, value, mask


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_computes_the_same(is_causal, masked):
    """Uncompiled: torch's own definition of FlexAttention, applied to our ``score_mod``."""
    from torch.nn.attention.flex_attention import flex_attention

    query, key, value, mask = flex_case(masked)
    key_mask = None if mask is None else mask.select(-2, 0)
    out, lost = flex.attention(query, key, value, key_mask, is_causal, 0.25, run=flex_attention)
    expected = evsoftmax_attention(query, key, value, mask, is_causal, way="explicit")
    assert not lost.any()
    close = (out - expected).abs().amax(-1) < 2e-6
    assert close.float().mean() > 0.99


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_reports_rows_that_rounding_emptied():
    from torch.nn.attention.flex_attention import flex_attention

    query = random(1, 2, 64, 16) * 3
    key = random(1, 2, 1, 16, seed=1).expand(1, 2, 48, 16)
    value = random(1, 2, 48, 16, seed=2)
    out, lost = flex.attention(query, key, value, None, False, 0.25, run=flex_attention)
    assert lost.any()
    mean = value.mean(-2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out[~lost], mean[~lost], atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_compiled_on_the_cpu():
    query, key, value, mask = flex_case(True)
    with torch.no_grad():
        try:
            out = evsoftmax_attention(query, key, value, mask, is_causal=True, way="flex")
        except Exception as error:
            if "compile" in str(error).lower() and "c++" in str(error).lower():
                pytest.skip(f"torch.compile needs a C++ compiler: install g++ ({error})")
            raise
        expected = evsoftmax_attention(query, key, value, mask, is_causal=True, way="explicit")
    close = (out - expected).abs().amax(-1) < 2e-6
    assert close.float().mean() > 0.99

"""FlexAttention with our threshold as ``score_mod``: what a GPU computes."""

from __future__ import annotations

import pytest
import torch
from attention_cases import generator, random
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode

from onmt_evsoftmax.attention import flex
from onmt_evsoftmax.attention.call import Call, Choice
from onmt_evsoftmax.attention.sparse_attention import evsoftmax_attention


def flex_case(masked: bool, queries: int = 48, keys: int = 48):
    query, key, value = (
        random(2, 2, length, 16, seed=i) for i, length in enumerate((queries, keys, keys))
    )
    mask = None
    if masked:
        mask = torch.rand(2, 1, 1, keys, generator=generator(3)) < 0.7
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
    expected = evsoftmax_attention(query, key, value, mask, is_causal=is_causal, backend="explicit")
    assert not lost.any()
    close = (out - expected).abs().amax(-1) < 2e-6
    assert close.float().mean() > 0.99


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_reports_rows_that_rounding_emptied():
    from torch.nn.attention.flex_attention import flex_attention

    query = random(1, 2, 64, 16) * 3
    key = random(1, 2, 1, 16, seed=1).repeat(1, 1, 48, 1)
    value = random(1, 2, 48, 16, seed=2)
    out, lost = flex.attention(query, key, value, None, False, 0.25, run=flex_attention)
    assert not lost.any()  # equal keys are kept
    torch.testing.assert_close(out, value.mean(-2, keepdim=True).expand_as(out), atol=1e-6, rtol=0)
    key[..., 0, 0] = torch.nextafter(key[..., 0, 0], torch.tensor(9.0))
    _, lost = flex.attention(query, key, value, None, False, 0.25, run=flex_attention)
    assert lost.any()


def call_of(query, key, value):
    choice = Choice.of("evsoftmax")
    return Call(query, key, value, None, None, False, 1.0, 0.0, None, choice, query.shape[:2])


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("which", [0, 2])
def test_small_heads_are_refused_on_a_gpu(size, which):
    """Triton multiplies no blocks below 16; that tensors are on a GPU is pretended."""
    sizes = [64, 64, 64]
    sizes[which] = size
    with FakeTensorMode():
        tensors = [torch.empty(1, 2, 9, size, device="cuda") for size in sizes]
        obstacle = flex.blocker(call_of(*tensors))
    assert (obstacle is not None and "at least 16" in obstacle) == (size < 16)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_no_gradients_on_a_cpu(which):
    tensors = [random(1, 2, 9, 16, seed=i) for i in range(3)]
    tensors[which].requires_grad_()
    with pytest.raises(ValueError, match="no backward pass on a CPU"):
        evsoftmax_attention(*tensors, backend="flex")
    with torch.no_grad():
        assert flex.blocker(call_of(*tensors)) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_flex_attention_compiled_on_the_cpu():
    """More lengths than torch would compile kernels for, one by one; two kernels do."""
    counters.clear()
    for queries, keys in [(48, 48), *((30 + i, 70 - 3 * i) for i in range(9)), (64, 64)]:
        query, key, value, mask = flex_case(True, queries, keys)
        with torch.no_grad():
            try:
                out = evsoftmax_attention(query, key, value, mask, is_causal=True, backend="flex")
            except Exception as error:
                if "compile" in str(error).lower() and "c++" in str(error).lower():
                    pytest.skip(f"torch.compile needs a C++ compiler: install g++ ({error})")
                raise
            expected = evsoftmax_attention(
                query, key, value, mask, is_causal=True, backend="explicit"
            )
        close = (out - expected).abs().amax(-1) < 2e-6
        assert close.float().mean() > 0.99
    assert counters["stats"]["unique_graphs"] == counters["frames"]["ok"] == 2

"""The cost model: what it counts, and that its numbers in the documentation are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from onmt_evsoftmax.kernels.triton import available

if not available():
    pytest.skip("needs Triton (make test-triton)", allow_module_level=True)

from onmt_evsoftmax.kernels.triton import cost
from onmt_evsoftmax.kernels.triton.normalizers import load

A100 = cost.DEVICES[0]


def test_rows_move_each_number_once_while_they_fit():
    ours = cost.our_rows("evsoftmax", 100, 1000, 4)
    assert ours.bytes == cost.softmax_rows(100, 1000, 4).bytes == 2 * 4 * 100_000
    masked = cost.our_rows("evsoftmax", 100, 1000, 4, mask=True, support=True)
    assert masked.bytes - ours.bytes == 2 * 100_000
    longer = cost.our_rows("sparsemax", 1, 100_000, 4)
    assert longer.bytes == 4 * 100_000 * (2 + load("sparsemax").cost.passes + 1)


def test_attention_counts_its_products():
    shape = cost.Shape(heads=8, queries=1024, keys=2048, size=64)
    one = 2 * 8 * 1024 * 2048 * 64
    assert cost.flash_attention(shape).half == 2 * one
    assert cost.our_attention("evsoftmax", shape).half == 2 * one
    assert cost.our_attention("evsoftmax", shape, backward=True).half == 7 * one
    assert cost.our_attention("entmax15", shape, passes=4).half == 7 * one
    assert cost.our_attention("entmax15", shape, backward=True).half == 8 * one
    kept = cost.our_attention("entmax15", shape, backward=True, tiles_kept=0.5)
    assert kept.half == 5 * one


@pytest.mark.parametrize("device", cost.DEVICES)
def test_a_range_has_its_ends_in_order(device):
    shape = cost.Shape(8, 4096, 4096, 64, causal=True)
    for work in (cost.our_attention("evsoftmax", shape), cost.our_rows("entmax", 64, 1024, 2)):
        found = cost.seconds(work, device)
        assert 0 < found.best <= found.worst


def test_the_documentation_has_the_tables_of_the_model():
    text = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert cost.markdown() in text

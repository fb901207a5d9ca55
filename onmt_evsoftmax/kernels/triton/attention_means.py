"""Means of the scores, ev-softmax's thresholds, before there are scores."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from onmt_evsoftmax.kernels.triton import positions, threshold_kernels
from onmt_evsoftmax.kernels.triton.attention_call import Call
from onmt_evsoftmax.kernels.triton.attention_tile import QUERIES


def find_means(call: Call, thresholds: Tensor) -> None:
    """Means of the scores, from sums of keys where these decide."""
    key, mask = call.tensors["key"], call.tensors["mask"]
    assert key is not None
    tile = call.tile("thresholds")
    batch, heads = key.size(0), call.sizes["heads"]
    sums = counts = of_distances = None
    chunks, shared = 1, 1
    if call.kind is not QUERIES and call.tensors["bias"] is None:
        # Heads that share keys share their sums too, unless each masks them by itself.
        own = mask is not None and mask.stride(1) != 0
        shared = 1 if own else call.sizes["heads_per_key"]
        chunks = triton.cdiv(key.size(2), tile.queries)
        shape = (batch, heads // shared, chunks)
        sums = key.new_empty(*shape, key.size(3), dtype=torch.float64)
        counts = key.new_empty(shape, dtype=torch.int32)
        each = {
            "sums": sums,
            "counts": counts,
            "heads": heads // shared,
            "heads_per_key": call.sizes["heads_per_key"] if own else 1,
            "chunks": chunks,
            "CHUNK": tile.queries,
        }
        call.launch(threshold_kernels.key_sums, counts.numel(), each, num_warps=4)
        causal = call.task.causal
        sums, counts = _running_sums(sums, causal), _running_sums(counts, causal)
        chunks = sums.size(2)
        of_distances = positions.totals(call)
    known = {"sums": sums, "counts": counts, "heads_per_sum": shared, "chunks": chunks}
    call.run(
        threshold_kernels.mean_thresholds,
        "thresholds",
        {"thresholds": thresholds, "of_distances": of_distances, **known},
    )


def _running_sums(of_chunks: Tensor, causal: bool) -> Tensor:
    """The sum over all chunks (B, H, 1, …), or over those before each, and over all at the end."""
    if not causal:
        return of_chunks.sum(2, keepdim=True, dtype=of_chunks.dtype)
    running = of_chunks.cumsum(2, dtype=of_chunks.dtype)
    return torch.cat([torch.zeros_like(running[:, :, :1]), running], 2)

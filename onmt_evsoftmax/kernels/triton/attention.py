"""Attention on a GPU, forward and backward, as functions of tensors.

Shapes: query (B, H, L, E), key (B, H / G, S, E), value (B, H / G, S, V): G heads share keys and
values. ``mask`` (boolean, True = takes part) and ``bias`` (added to the scores) are (B, H, L, S)
with any dimension 1. Results lie in memory as (B, L, H, V): joining the heads copies nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from onmt_evsoftmax.kernels.triton import attention_kernels, threshold_kernels
from onmt_evsoftmax.kernels.triton.attention_tile import KEYS, QUERIES, UNMASKED
from onmt_evsoftmax.kernels.triton.normalizers import load
from onmt_evsoftmax.kernels.triton.rows import _device, _stored
from onmt_evsoftmax.kernels.triton.tiles import Tile, largest_head, tile_for


class Options(NamedTuple):
    """What a call of attention has besides tensors and the name of its normalizer."""

    causal: bool
    scale: float
    dropout_p: float = 0.0
    seed: Tensor | None = None
    #: Whether to skip tiles of which nothing is kept. It pays where the kept keys lie together.
    skip_empty: bool = False


def attention_forward(
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, tops, thresholds, inverses); the latter, (B, H, L), are for the backward pass."""
    batch, heads, queries, _ = query.shape
    out = _empty(query, queries, value.size(3))
    tops, thresholds, inverses = (
        query.new_zeros(batch, heads, queries, dtype=torch.float32) for _ in range(3)
    )
    if 0 in (batch * heads, queries, key.size(2), value.size(3)):
        return out.zero_().to(query.dtype), tops, thresholds, inverses
    call = _Call(normalizer, query, key, value, mask, bias, options)
    with _device(query):
        if call.functions.mean:
            call.find_means(thresholds)
        else:
            call.run(
                threshold_kernels.searched_thresholds,
                "searched_thresholds",
                {"tops": tops, "thresholds": thresholds},
                "query key mask bias",
            )
        call.run(
            attention_kernels.attention_forward,
            "forward",
            {"out": out, "tops": tops, "thresholds": thresholds, "inverses": inverses},
            "query key value mask bias out",
        )
    return out.to(query.dtype), tops, thresholds, inverses


def attention_backward(
    grad: Tensor,
    normalizer: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    tops: Tensor,
    thresholds: Tensor,
    inverses: Tensor,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    queries, keys = query.size(2), key.size(2)
    grad_query = _empty(query, queries, query.size(3))
    grad_key, grad_value = _empty(key, keys, key.size(3)), _empty(value, keys, value.size(3))
    if 0 in (*out.shape, keys):
        grads = (grad_query.zero_(), grad_key.zero_(), grad_value.zero_())
    else:
        grads = (grad_query, grad_key, grad_value)
        call = _Call(normalizer, query, key, value, mask, bias, options)
        of_rows = {"tops": tops, "thresholds": thresholds, "inverses": inverses}
        of_rows = {name: numbers.contiguous() for name, numbers in of_rows.items()}
        of_rows["deltas"] = torch.empty_like(of_rows["tops"])
        grad = _readable(grad.to(query.dtype))
        with _device(query):
            call.run(
                attention_kernels.attention_grad_query,
                "grad_query",
                {"out": _readable(out), "grad": grad, "grad_query": grad_query, **of_rows},
                "query key value mask bias out grad grad_query",
            )
            call.run(
                attention_kernels.attention_grad_key_value,
                "grad_key_value",
                {"grad": grad, "grad_key": grad_key, "grad_value": grad_value, **of_rows},
                "query key value mask bias grad grad_key grad_value",
                over_keys=True,
            )
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype)


#: Names of the strides of a tensor, after its own.
_STRIDES = {"key": "bhs", "value": "bhs", "grad_key": "bhs", "grad_value": "bhs"}


class _Call:
    """The arguments that all kernels of one call share."""

    def __init__(
        self,
        normalizer: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        options: Options,
    ) -> None:
        self.functions = load(normalizer)
        dropped, seed = options.dropout_p, options.seed
        whole = (*query.shape[:3], key.size(2))
        kind = UNMASKED
        if mask is not None:
            kind = KEYS if mask.size(2) == 1 or mask.stride(2) == 0 else QUERIES
            if kind is QUERIES:
                key, value = _cleared(mask, key, value)
            mask = mask.view(torch.uint8).expand(whole)
        bias = None if bias is None else bias.expand(whole)
        self.options, self.kind = options, kind
        self.tensors: dict[str, Tensor | None] = {
            "query": _readable(query),
            "key": _readable(key),
            "value": _readable(value),
            "mask": mask,
            "bias": bias,
        }
        self.sizes = {
            "heads": query.size(1),
            "heads_per_key": query.size(1) // key.size(1),
            "queries": query.size(2),
            "keys": key.size(2),
        }
        self.numbers: dict[str, Any] = {
            "scale": options.scale,
            "seed": None if dropped == 0 or seed is None else seed.to(query.device),
            "least": int(dropped * 2**24),
            "factor": 1.0 / (1.0 - dropped) if dropped < 1 else 0.0,
        }
        self.heavy = dropped > 0 or bias is not None or kind is QUERIES or not self.functions.mean
        self.head = max(query.size(3), value.size(3))
        self.constants = {
            "WEIGHTS": self.functions.attention_weights,
            "SLOPE": self.functions.attention_slope,
            "STEEPNESS": self.functions.steepness,
            "WANTED": self.functions.wanted,
            "MEAN": self.functions.mean,
            "SIZE": query.size(3),
            "BLOCK": _block(query.size(3)),
            "VALUE_SIZE": value.size(3),
            "VALUE_BLOCK": _block(value.size(3)),
            "CAUSAL": options.causal,
            "MASK": kind.value,
            "SKIP": options.skip_empty,
        }

    def tile(self, kernel: str) -> Tile:
        """Its entry in the table for this device."""
        query = self.tensors["query"]
        assert query is not None
        float32 = query.dtype == torch.float32
        capability = _capability(query)
        largest = largest_head(float32=float32, capability=capability)
        if self.head > largest:
            raise ValueError(f"attention of {query.dtype} takes heads of up to {largest} numbers")
        return tile_for(kernel, self.head, float32=float32, heavy=self.heavy, capability=capability)

    def strides(self, name: str, tensor: Tensor | None) -> dict[str, int]:
        """Its strides as the kernels name them; the last of a tensor of vectors is 1."""
        letters = "bhls" if name in ("mask", "bias") else _STRIDES.get(name, "bhl")
        steps = (0,) * 4 if tensor is None else tensor.stride()
        return {f"{name}_{letter}": steps[k] for k, letter in enumerate(letters)}

    def run(
        self,
        kernel: Any,
        name: str,
        own: dict[str, Any],
        strided: str,
        over_keys: bool = False,
    ) -> None:
        """Launch a kernel with a program for each block of queries (or keys) of each head.

        ``own`` are arguments of this kernel alone; of those that all share it takes what it knows.
        """
        tile = self.tile(name)
        arguments = {**self.tensors, **self.sizes, **self.numbers, **self.constants, **own}
        for n in strided.split():
            arguments |= self.strides(n, arguments[n])
        if over_keys:
            blocks = triton.cdiv(self.sizes["keys"], tile.keys)
            heads = self.sizes["heads"] // self.sizes["heads_per_key"]
        else:
            blocks = triton.cdiv(self.sizes["queries"], tile.queries)
            heads = self.sizes["heads"]
        arguments |= {"blocks": blocks, "M": tile.queries, "N": tile.keys}
        arguments = {n: value for n, value in arguments.items() if n in kernel.arg_names}
        query = self.tensors["query"]
        assert query is not None
        kernel[(blocks * heads * query.size(0),)](
            **arguments,
            num_warps=tile.warps,
            num_stages=tile.stages,
            enable_fp_fusion=True,
        )

    def find_means(self, thresholds: Tensor) -> None:
        """Means of the scores, from sums of keys where these decide."""
        query, key, mask = (self.tensors[name] for name in ("query", "key", "mask"))
        assert query is not None
        assert key is not None
        tile = self.tile("thresholds")
        batch, heads = query.size(0), self.sizes["heads"]
        sums = counts = None
        chunks, shared = 1, 1
        if self.kind is not QUERIES and self.tensors["bias"] is None:
            # Heads that share keys share their sums too, unless each masks them by itself.
            own = mask is not None and mask.stride(1) != 0
            shared = 1 if own else self.sizes["heads_per_key"]
            chunks = triton.cdiv(key.size(2), tile.queries)
            shape = (batch, heads // shared, chunks)
            sums = key.new_empty(*shape, key.size(3), dtype=torch.float64)
            counts = key.new_empty(shape, dtype=torch.int32)
            mask_strides = self.strides("mask", mask)
            del mask_strides["mask_l"]
            threshold_kernels.key_sums[(counts.numel(),)](
                key,
                mask,
                sums,
                counts,
                heads // shared,
                self.sizes["heads_per_key"] if own else 1,
                key.size(2),
                chunks,
                **self.strides("key", key),
                **mask_strides,
                SIZE=key.size(3),
                BLOCK=_block(key.size(3)),
                CHUNK=tile.queries,
                MASK=self.kind.value,
                num_warps=4,
                enable_fp_fusion=True,
            )
            sums, counts = _before(sums, self.options.causal), _before(counts, self.options.causal)
            chunks = sums.size(2)
        known = {"sums": sums, "counts": counts, "heads_per_sum": shared, "chunks": chunks}
        self.run(
            threshold_kernels.mean_thresholds,
            "thresholds",
            {"thresholds": thresholds, **known},
            "query key mask bias",
        )


def _capability(tensor: Tensor) -> int:
    """The generation of its GPU: 8 for A100, 9 for H100; 0 for Triton's interpreter."""
    return torch.cuda.get_device_capability(tensor.device)[0] if tensor.is_cuda else 0


def _block(size: int) -> int:
    """Tensor cores multiply blocks of at least 16."""
    return max(16, triton.next_power_of_2(size))


def _before(of_chunks: Tensor, causal: bool) -> Tensor:
    """The sum over all chunks (B, H, 1, …), or over those before each, and over all at the end."""
    if not causal:
        return of_chunks.sum(2, keepdim=True, dtype=of_chunks.dtype)
    running = of_chunks.cumsum(2, dtype=of_chunks.dtype)
    return torch.cat([torch.zeros_like(running[:, :, :1]), running], 2)


def _cleared(mask: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, 0 where no query may see them: 0 · NaN would be NaN."""
    seen = mask.any(2)
    if seen.size(1) > 1:
        seen = seen.unflatten(1, (key.size(1), -1)).any(2)
    seen = seen.unsqueeze(-1)
    return torch.where(seen, key, 0.0), torch.where(seen, value, 0.0)


def _empty(like: Tensor, length: int, size: int) -> Tensor:
    """An empty (batch, heads, length, size), in memory (batch, length, heads, size)."""
    batch, heads = like.shape[:2]
    return like.new_empty(batch, length, heads, size, dtype=_stored(like)).transpose(1, 2)


def _readable(tensor: Tensor) -> Tensor:
    """With the numbers of a vector one after the other, none negated."""
    tensor = tensor.resolve_neg()
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) == 1 else tensor.contiguous()

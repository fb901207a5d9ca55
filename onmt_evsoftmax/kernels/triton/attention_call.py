"""One call of attention on its way to the kernels: the arguments that all of them share."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from onmt_evsoftmax.kernels.attention_task import Task, laid_out, readable
from onmt_evsoftmax.kernels.triton.attention_tile import KEYS, QUERIES, UNMASKED
from onmt_evsoftmax.kernels.triton.normalizers import load
from onmt_evsoftmax.kernels.triton.rows import _stored
from onmt_evsoftmax.kernels.triton.tiles import Tile, largest_head, tile_for


class Call:
    """The arguments that all kernels of one call share."""

    def __init__(self, task: Task) -> None:
        self.functions = load(task.normalizer)
        query, key, value, mask, bias = task[1:6]
        dropped, seed = task.dropout_p, task.seed
        whole = (*query.shape[:3], key.size(2))
        kind = UNMASKED
        if mask is not None:
            kind = KEYS if mask.size(2) == 1 or mask.stride(2) == 0 else QUERIES
            if kind is QUERIES:
                key, value = _cleared(mask, key, value)
            mask = mask.view(torch.uint8).expand(whole)
        bias = None if bias is None else bias.expand(whole)
        self.task, self.kind = task, kind
        self.tensors: dict[str, Tensor | None] = {
            "query": readable(query),
            "key": readable(key),
            "value": readable(value),
            "mask": mask,
            "bias": bias,
            "key_terms": None,
            "value_terms": None,
            "slopes": None if task.slopes is None else task.slopes.float().contiguous(),
        }
        self.sizes = {
            "heads": query.size(1),
            "heads_per_key": query.size(1) // key.size(1),
            "queries": query.size(2),
            "keys": key.size(2),
            "window": task.window,
            "offset": task.offset,
        }
        self.numbers: dict[str, Any] = {
            "scale": task.scale,
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
            "BLOCK": block_of(query.size(3)),
            "VALUE_SIZE": value.size(3),
            "VALUE_BLOCK": block_of(value.size(3)),
            "CAUSAL": task.causal,
            "MASK": kind.value,
            "SKIP": task.skip_empty,
        }

    def tile(self, kernel: str) -> Tile:
        """Its entry in the table for this device."""
        query = self.tensors["query"]
        assert query is not None
        float32 = query.dtype == torch.float32
        capability = capability_of(query)
        positions = self.task.positions
        largest = largest_head(float32=float32, positions=positions, capability=capability)
        if self.head > largest:
            raise ValueError(f"attention of {query.dtype} takes heads of up to {largest} numbers")
        return tile_for(
            kernel,
            self.head,
            float32=float32,
            mean=self.functions.mean,
            heavy=self.heavy,
            positions=positions,
            capability=capability,
        )

    def run(self, kernel: Any, name: str, own: dict[str, Any], over_keys: bool = False) -> None:
        """Launch a kernel with a program for each block of queries (or keys) of each head.

        ``own`` are arguments of this kernel alone.
        """
        tile = self.tile(name)
        query = self.tensors["query"]
        assert query is not None
        if over_keys:
            blocks = triton.cdiv(self.sizes["keys"], tile.keys)
            heads = self.sizes["heads"] // self.sizes["heads_per_key"]
        else:
            blocks = triton.cdiv(self.sizes["queries"], tile.queries)
            heads = self.sizes["heads"]
        own = {"blocks": blocks, "M": tile.queries, "N": tile.keys, **own}
        options = {"num_warps": tile.warps, "num_stages": tile.stages}
        self.launch(kernel, blocks * heads * query.size(0), own, **options)

    def launch(self, kernel: Any, programs: int, own: dict[str, Any], **options: int) -> None:
        """Launch so many programs; of the arguments that all share, a kernel takes what it knows.

        Strides are arguments, too, named ``tensor_b`` (batch), ``_h`` (head), ``_l`` and ``_s``
        (queries and keys, whichever a tensor has).
        """
        known = {**self.tensors, **self.sizes, **self.numbers, **self.constants, **own}
        for argument in kernel.arg_names:
            name, _, letter = argument.rpartition("_")
            if argument not in known and name in known:
                place = "bhls".index(letter)
                place = place if name in ("mask", "bias") else min(place, 2)
                known[argument] = 0 if known[name] is None else known[name].stride(place)
        arguments = {name: known[name] for name in kernel.arg_names}
        kernel[(programs,)](**arguments, **options, enable_fp_fusion=True)


def capability_of(tensor: Tensor) -> int:
    """The generation of its GPU: 8 for A100, 9 for H100; 0 for Triton's interpreter."""
    return torch.cuda.get_device_capability(tensor.device)[0] if tensor.is_cuda else 0


def block_of(size: int) -> int:
    """Tensor cores multiply blocks of at least 16."""
    return max(16, triton.next_power_of_2(size))


def _cleared(mask: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, 0 where no query may see them: 0 · NaN would be NaN."""
    seen = mask.any(2)
    if seen.size(1) > 1:
        seen = seen.unflatten(1, (key.size(1), -1)).any(2)
    seen = seen.unsqueeze(-1)
    return torch.where(seen, key, 0.0), torch.where(seen, value, 0.0)


def empty(like: Tensor, length: int, size: int, wide: bool = False) -> Tensor:
    """An empty result; ``wide``: in float32, since something is still to be added."""
    return laid_out(like, length, size, torch.float32 if wide else _stored(like))

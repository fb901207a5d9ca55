"""Position terms of attention on a GPU: Shaw's relative positions and ALiBi.

Around the kernels there are tables (B, H, L, 2w + 1), a column for each distance: products of
queries and relative keys, which scores take their term from; probabilities by distance, to multiply
relative values with; and the same two backward. Products that decide on scores are ours, the others
are torch's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from onmt_evsoftmax.kernels.triton import distance_kernels
from onmt_evsoftmax.kernels.triton.attention_call import Call, block_of
from onmt_evsoftmax.kernels.triton.attention_tile import UNMASKED


def set_terms(call: Call, grad: Tensor | None = None) -> None:
    """Compute what distances add to the scores; with ``grad`` (B, H, L, V), to its products, too.

    A call without position terms stays as it is.
    """
    query = call.tensors["query"]
    assert query is not None
    for name, table, vectors, scale in (
        ("key_terms", call.task.relative_keys, query, call.task.scale),
        ("value_terms", call.task.relative_values, grad, 1.0),
    ):
        if table is not None and vectors is not None:
            call.tensors[name] = _products(call, vectors, table, scale)


def new_table(call: Call) -> Tensor:
    """(B, H, L, 2w + 1) of zeros: where there is no key at a distance, nobody writes."""
    query = call.tensors["query"]
    assert query is not None
    size = 2 * call.sizes["window"] + 1
    return query.new_zeros(*query.shape[:3], size, dtype=torch.float32)


def _products(call: Call, vectors: Tensor, table: Tensor, scale: float) -> Tensor:
    """``vectors`` (B, H, L, size) times the rows of ``table``, never in TF32."""
    out, size = new_table(call), vectors.size(3)
    own = {
        "vectors": vectors,
        "table": table.to(vectors.dtype).contiguous(),
        "out": out,
        "distances": table.size(0),
        "scale": scale,
        "SIZE": size,
        "BLOCK": block_of(size),
    }
    call.run(distance_kernels.distance_products, "distances", own)
    return out


def totals(call: Call) -> Tensor | None:
    """What the terms add to the sum of every row of scores (B, H, L), or None."""
    query, mask = call.tensors["query"], call.tensors["mask"]
    if call.tensors["key_terms"] is None and call.tensors["slopes"] is None:
        return None
    assert query is not None
    numbers = places = None
    if call.kind is not UNMASKED:
        assert mask is not None
        seen = mask[:, :, 0]
        seen = seen[: 1 if seen.stride(0) == 0 else None, : 1 if seen.stride(1) == 0 else None]
        at = torch.arange(seen.size(2), device=seen.device)
        numbers = nn.functional.pad(seen.cumsum(2, dtype=torch.int32), (1, 0))
        places = nn.functional.pad((seen * at).cumsum(2), (1, 0))
    of_distances = query.new_empty(query.shape[:3], dtype=torch.float64)
    steps = {"numbers_b": 0, "numbers_h": 0}
    if numbers is not None:
        pairs = zip(steps, numbers.shape[:2], numbers.stride()[:2], strict=True)
        steps = {name: 0 if size == 1 else stride for name, size, stride in pairs}
    own = {"numbers": numbers, "places": places, "of_distances": of_distances, **steps}
    call.run(distance_kernels.distance_totals, "totals", own)
    return of_distances


def fill_near(call: Call, table: Tensor, of_rows: dict[str, Any], grad: Tensor | None) -> None:
    """The columns strictly inside the window: probabilities or, with ``grad``, gradients."""
    call.run(
        distance_kernels.near_distances,
        "near",
        {"table": table, "grad": grad, "deltas": None, **of_rows},
    )


def add_product(out: Tensor, by_distance: Tensor, table: Tensor, scale: float = 1.0) -> None:
    """``out`` (B, H, L, size) plus a table by distance times the rows of positions."""
    with _in_float32(out):
        out.add_(by_distance @ table.float(), alpha=scale)


def gradient(by_distance: Tensor, vectors: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
    """Gradient of a table of positions, as large as it is."""
    with _in_float32(vectors):
        axes = [0, 1, 2]
        found = torch.tensordot(by_distance, vectors.float(), dims=(axes, axes)) * scale
    return found.to(table.dtype)


def _in_float32(tensor: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, which looks into operators, too."""
    if tensor.is_meta:
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)

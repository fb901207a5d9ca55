"""Attention a block of queries at a time, in torch: for every registered normalizer and device.

A block is computed explicitly, and in the backward pass once more, so that no more than the matrix
of one block is ever held: memory grows with the length, not with its square.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from onmt_evsoftmax import kernels
from onmt_evsoftmax.attention import explicit
from onmt_evsoftmax.attention.call import Call

#: Entries of the matrix that one block may have, and from which on a call is worth blocks.
BLOCK, WORTH = 2**20, 2**24


def blocker(call: Call) -> str | None:
    """Why this cannot be computed in blocks, or None."""
    if call.choice.record is None:
        return "a function that is not registered may look at all queries at once"
    for name, value in call.choice.parameters.items():
        if isinstance(value, Tensor) and value.dim() > 1 and value.size(-2) != 1:
            return f"{name} differs between queries"
    if kernels.tracing() or kernels.forward_mode() or torch._C._are_functorch_transforms_active():
        return "blocks of queries are for plain calls: not compiled, exported or transformed"
    return explicit.blocker(call)


def is_worth_it(call: Call) -> bool:
    """Whether the whole matrix would be large."""
    return _entries(call) * call.query.size(-2) >= WORTH


def _entries(call: Call) -> int:
    """Of one query, in all heads."""
    return max(1, call.leading.numel() * call.key.size(-2))


def run(call: Call) -> Tensor:
    """(…, L, V)."""
    queries = call.query.size(-2)
    rows = min(max(1, BLOCK // _entries(call)), max(1, queries))
    if not queries:
        return explicit.run(call)
    # A block is cut out just before it is computed: the backward pass goes the other way, and so
    # adds up the gradients of keys and values after each block instead of keeping all of them.
    return torch.cat(
        [
            _compute(_part(call, first, min(first + rows, queries)))
            for first in range(0, queries, rows)
        ],
        -2,
    )


def _compute(part: Call) -> Tensor:
    if not torch.is_grad_enabled():
        return explicit.run(part)
    # Tensors that need a gradient are found by checkpoint in what it calls, too.
    result: Tensor = checkpoint(_run, part.query, part.key, part.value, part, use_reentrant=False)
    return result


def _run(query: Tensor, key: Tensor, value: Tensor, part: Call) -> Tensor:
    return explicit.run(part._replace(query=query, key=key, value=value))


def _part(call: Call, first: int, last: int) -> Call:
    """Queries ``first`` … ``last`` − 1 of a call, as a call of its own."""
    keys = call.key.size(-2)
    seen = min(keys, last) if call.is_causal else keys  # the others are in the future of all
    mask: Any = call.mask
    if mask is not None:
        if mask.dim() > 1 and mask.size(-2) != 1:
            mask = mask[..., first:last, :]
        if mask.dim() > 0 and mask.size(-1) != 1:
            mask = mask[..., :seen]
    if call.is_causal:
        at = torch.arange(first, last, device=call.query.device).unsqueeze(1)
        past = torch.arange(seen, device=at.device) <= at
        if mask is None:
            mask = past
        elif mask.dtype == torch.bool:
            mask = mask & past
        else:
            mask = torch.where(past, mask, -torch.inf)
    positions = call.positions
    if positions is not None:
        positions = positions._replace(offset=positions.offset + first)
    return call._replace(
        query=call.query[..., first:last, :],
        key=call.key[..., :seen, :],
        value=call.value[..., :seen, :],
        mask=mask,
        key_mask=None,
        is_causal=False,
        positions=positions,
        rows=(first, call.query.size(-2)),
    )
